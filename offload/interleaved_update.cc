#include "offload/interleaved_update.h"

#include "core/check.h"
#include "offload/round_copy.h"

namespace causeway::offload {
namespace {

constexpr int64_t kStateArrays = 3;  // p, m, v
constexpr size_t kLineBytes = 256;

// The bytes of one array of a set; each begins on its own line.
size_t ArrayBytes(const SubgroupPlan& plan) {
  const size_t bytes = static_cast<size_t>(std::min(plan.subgroup, plan.parameters)) * sizeof(float);
  return (bytes + kLineBytes - 1) / kLineBytes * kLineBytes;
}

}  // namespace

UpdateCounts PlannedCounts(const SubgroupPlan& plan, GradientType gradients) {
  UpdateCounts counts;
  constexpr int64_t kStateBytes = kStateArrays * static_cast<int64_t>(sizeof(float));
  for (int64_t i = 0; i < plan.num_subgroups(); ++i) {
    const bool on_device = plan.OnDevice(i);
    ++(on_device ? counts.device_subgroups : counts.cpu_subgroups);
    counts.to_device_bytes += plan.Size(i) * (on_device ? kStateBytes : static_cast<int64_t>(sizeof(uint16_t)));
    counts.to_host_bytes += plan.Size(i) * (on_device ? kStateBytes : BytesOf(gradients));
  }
  return counts;
}

size_t InterleavedUpdate::SetBytes(const SubgroupPlan& plan) {
  return plan.k == core::kAllOnCpu ? 0 : kStateArrays * ArrayBytes(plan);
}

InterleavedUpdate::InterleavedUpdate(const HostState& state, std::vector<DecaySegment> segments,
                                     const SubgroupPlan& plan, core::ThreadTeam* team, BusSchedule* bus)
    : InterleavedUpdate(state, std::move(segments), plan, team, bus, nullptr, {}) {
  CHECK(plan.k == core::kAllOnCpu);
}

InterleavedUpdate::InterleavedUpdate(const HostState& state, std::vector<DecaySegment> segments,
                                     const SubgroupPlan& plan, core::ThreadTeam* team, BusSchedule* bus, Device* device,
                                     const DeviceModel& model)
    : state_(state),
      segments_(std::move(segments)),
      plan_(plan),
      team_(team),
      bus_(bus),
      device_(device),
      model_(model),
      traffic_(device),
      on_cpu_(plan, model.gradient_type, device, &traffic_),
      timer_(device) {
  const auto size = static_cast<size_t>(plan.parameters);
  CHECK(state.parameters.size() == size && state.first_moment.size() == size && state.second_moment.size() == size);
  CHECK(segments_.count() == plan.parameters);
}

absl::StatusOr<std::unique_ptr<InterleavedUpdate>> InterleavedUpdate::OnDevice(
    const HostState& state, std::vector<DecaySegment> segments, const SubgroupPlan& plan, core::ThreadTeam* team,
    BusSchedule* bus, Device* device, const DeviceModel& model) {
  std::unique_ptr<InterleavedUpdate> update(
      new InterleavedUpdate(state, std::move(segments), plan, team, bus, device, model));
  RETURN_IF_ERROR(update->Prepare());
  return update;
}

absl::Status InterleavedUpdate::Prepare() {
  RETURN_IF_ERROR(on_cpu_.Prepare(*model_.pool));
  for (int i = 0; i < kBufferSets; ++i) {
    if (plan_.k == core::kAllOnCpu) break;
    BufferSet& set = sets_[i];
    set.memory = model_.rooms[i];
    if (!has_rooms()) {
      ASSIGN_OR_RETURN(set.memory, device_->Allocate(SetBytes(plan_)));
    }
    char* place = static_cast<char*>(set.memory);
    for (float** array : {&set.parameters, &set.first_moment, &set.second_moment}) {
      *array = reinterpret_cast<float*>(place);
      place += ArrayBytes(plan_);
    }
    for (Device::Event* event : {&set.arrived, &set.updated, &set.flushed}) *event = device_->MakeEvent();
  }
  for (Device::Event* event : {&events_.gradients_final, &events_.room_dead, &events_.updated}) {
    *event = device_->MakeEvent();
  }
  for (Device::Event* event : {&events_.flushed, &events_.parameters_ready}) *event = device_->MakeTimedEvent();
  timer_.Prepare();
  backward_.free_sets = has_rooms() ? 0 : kBufferSets;
  return device_->status();
}

InterleavedUpdate::~InterleavedUpdate() {
  if (device_ == nullptr) return;
  Finish().IgnoreError();  // a caller that needs the error has called Finish itself
  if (has_rooms()) return;
  for (const BufferSet& set : sets_) device_->Free(set.memory);
}

// ---- Backward ----

// The state does not change between here and Step, so the device's first subgroups may be copied already.
void InterleavedUpdate::PrefetchFree() {
  for (; plan_.k != core::kAllOnCpu && backward_.prefetched < backward_.free_sets; ++backward_.prefetched) {
    if (backward_.prefetched * plan_.k < plan_.num_subgroups()) Prefetch(backward_.prefetched * plan_.k);
  }
}

void InterleavedUpdate::RoomIsDead() {
  CHECK(has_rooms() && backward_.free_sets < kBufferSets);
  ++backward_.free_sets;
  device_->Record(events_.room_dead, Queue::kCompute);
  device_->Await(Queue::kPrefetch, events_.room_dead);
  PrefetchFree();
}

void InterleavedUpdate::GradientsReady(int64_t first, int64_t count) {
  PrefetchFree();
  backward_.gradients_ready += count;
  device_->Record(events_.gradients_final, Queue::kCompute);
  if (!model_.early_gradients) return on_cpu_.Hold(first, count);
  device_->Await(Queue::kGradients, events_.gradients_final);
  const int64_t sent = on_cpu_.Send(model_.gradients, first, count);
  if (backward_.gradients_ready < plan_.parameters) traffic_.CountEarly(sent);
}

// ---- Update ----

void InterleavedUpdate::Prefetch(int64_t subgroup) {
  BufferSet& set = SetOf(subgroup);
  const auto [first, count] = RangeOf(subgroup);
  const size_t bytes = static_cast<size_t>(count) * sizeof(float);
  // Waits for the flush of the set's previous contents; since flushes are in order, also for the subgroup's own in the
  // last step.
  device_->Await(Queue::kPrefetch, set.flushed);
  traffic_.ToDevice(Queue::kPrefetch, set.parameters, state_.parameters.data() + first, bytes);
  traffic_.ToDevice(Queue::kPrefetch, set.first_moment, state_.first_moment.data() + first, bytes);
  traffic_.ToDevice(Queue::kPrefetch, set.second_moment, state_.second_moment.data() + first, bytes);
  device_->Record(set.arrived, Queue::kPrefetch);
}

void InterleavedUpdate::UpdateOnDevice(int64_t subgroup, const Constants& constants) {
  if (subgroup / plan_.k >= backward_.prefetched) Prefetch(subgroup);
  BufferSet& set = SetOf(subgroup);
  const auto [first, count] = RangeOf(subgroup);
  device_->Await(Queue::kUpdate, set.arrived);
  const AdamWArrays arrays = {
      .gradient = static_cast<const char*>(model_.gradients) + first * BytesOf(model_.gradient_type),
      .gradient_type = model_.gradient_type,
      .first_moment = set.first_moment,
      .second_moment = set.second_moment,
      .parameters = set.parameters,
      .bfloat16_copy = model_.parameters + first,
      .count = count};
  segments_.ForEach(first, count, [&, begin = first](bool decays, int64_t from, int64_t size) {
    device_->AdamW(Queue::kUpdate, constants.Of(decays), arrays.Part(from - begin, size));
  });
  device_->Record(set.updated, Queue::kUpdate);
  device_->Await(Queue::kFlush, set.updated);
  const size_t bytes = static_cast<size_t>(count) * sizeof(float);
  traffic_.ToHost(Queue::kFlush, state_.parameters.data() + first, set.parameters, bytes);
  traffic_.ToHost(Queue::kFlush, state_.first_moment.data() + first, set.first_moment, bytes);
  traffic_.ToHost(Queue::kFlush, state_.second_moment.data() + first, set.second_moment, bytes);
  device_->Record(set.flushed, Queue::kFlush);
  traffic_.CountSubgroup(/*on_device=*/true);
}

void InterleavedUpdate::UpdateOnCpu(int64_t subgroup, std::span<const float> gradients, const Constants& constants) {
  const auto [first, count] = RangeOf(subgroup);
  AdamWArrays arrays = {.gradient = gradients.empty() ? nullptr : gradients.data() + first, .count = count};
  if (device_ != nullptr) arrays = on_cpu_.Await(subgroup);
  arrays.parameters = state_.parameters.data() + first;
  arrays.first_moment = state_.first_moment.data() + first;
  arrays.second_moment = state_.second_moment.data() + first;
  uint16_t* const copy = arrays.bfloat16_copy;
  if (!model_.copy_in_pass) arrays.bfloat16_copy = nullptr;
  OnAllThreads(*team_, count, [&, first = first](int64_t from, int64_t size) {
    segments_.ForEach(first + from, size, [&](bool decays, int64_t begin, int64_t values) {
      AdamWStep(constants.Of(decays), arrays.Part(begin - first, values));
    });
  });
  if (device_ == nullptr) return;
  if (!model_.copy_in_pass) {
    OnAllThreads(*team_, count,
                 [&](int64_t from, int64_t size) { RoundCopy(arrays.parameters + from, copy + from, size); });
  }
  on_cpu_.SendCopy(subgroup, model_.parameters + first);
  traffic_.CountSubgroup(/*on_device=*/false);
}

absl::Status InterleavedUpdate::Step(const AdamWParameters& parameters, int64_t t, std::span<const float> gradients) {
  const bool frozen = parameters.frozen_at > 0;
  CHECK(device_ == nullptr ? std::ssize(gradients) == (frozen ? 0 : plan_.parameters) : !frozen);
  AdamWParameters without_decay = parameters;
  without_decay.weight_decay = 0;
  const Constants constants = {MakeConstants(parameters, t), MakeConstants(without_decay, t)};
  if (device_ != nullptr) RETURN_IF_ERROR(BeginOnDevice());
  if (bus_ != nullptr) bus_->BeginUpdate();
  UpdateAll(gradients, constants);
  if (bus_ != nullptr) bus_->EndUpdate();
  return device_ == nullptr ? absl::OkStatus() : EndOnDevice();
}

absl::Status InterleavedUpdate::BeginOnDevice() {
  CHECK(backward_.gradients_ready == plan_.parameters);
  // All of backward: until its end it may read parameters whose own gradients are final.
  device_->Await(Queue::kUpdate, events_.gradients_final);
  device_->Await(Queue::kParameters, events_.gradients_final);
  if (backward_.free_sets < kBufferSets) device_->Await(Queue::kPrefetch, events_.gradients_final);
  RETURN_IF_ERROR(Finish());
  timer_.Begin(Queue::kFlush);
  if (!model_.early_gradients) {
    device_->Await(Queue::kGradients, events_.gradients_final);
    on_cpu_.SendHeld(model_.gradients);
  }
  return absl::OkStatus();
}

// The CPU's subgroups in the order in which their gradients come; those that still wait for a fragment's copy are last.
// The device's keep their order: a set is prefetched for the next but one.
void InterleavedUpdate::UpdateAll(std::span<const float> gradients, const Constants& constants) {
  const auto is_copied = [this](int64_t i) { return bus_ == nullptr || bus_->IsCopied(RangeOf(i)); };
  const int64_t subgroups = plan_.num_subgroups();
  int64_t next_on_device = plan_.k == core::kAllOnCpu ? subgroups : 0;
  const auto queue_on_device = [&] {
    for (; next_on_device < subgroups && is_copied(next_on_device); next_on_device += plan_.k) {
      UpdateOnDevice(next_on_device, constants);
    }
  };
  std::vector<int64_t> order = on_cpu_.order(), later;
  for (int64_t i = 0; device_ == nullptr && i < subgroups; ++i) order.push_back(i);
  for (const int64_t i : order) {
    queue_on_device();
    if (is_copied(i)) {
      UpdateOnCpu(i, gradients, constants);
    } else {
      later.push_back(i);
    }
  }
  queue_on_device();
  while (next_on_device < subgroups) {
    bus_->AwaitCopied(RangeOf(next_on_device));
    queue_on_device();
  }
  for (int64_t i : later) {
    bus_->AwaitCopied(RangeOf(i));
    UpdateOnCpu(i, gradients, constants);
  }
}

absl::Status InterleavedUpdate::EndOnDevice() {
  if (!has_rooms()) {  // with them forward waits for the flushes, which come after
    device_->Record(events_.updated, Queue::kUpdate);
    device_->Await(Queue::kParameters, events_.updated);
  }
  device_->Record(events_.parameters_ready, Queue::kParameters);
  device_->Await(Queue::kCompute, events_.parameters_ready);
  device_->Record(events_.flushed, Queue::kFlush);
  if (has_rooms()) device_->Await(Queue::kCompute, events_.flushed);
  backward_ = {.free_sets = has_rooms() ? 0 : kBufferSets};
  traffic_.EndUpdate();
  on_cpu_.EndUpdate();
  return device_->status();
}

absl::Status InterleavedUpdate::Finish() {
  if (device_ == nullptr) return absl::OkStatus();
  device_->AwaitOnHost(events_.flushed);
  device_->AwaitOnHost(events_.parameters_ready);
  RETURN_IF_ERROR(device_->status());
  timer_.End(events_.flushed, events_.parameters_ready);
  return absl::OkStatus();
}

}  // namespace causeway::offload
