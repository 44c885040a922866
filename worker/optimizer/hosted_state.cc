#include "worker/optimizer/hosted_state.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "core/check.h"
#include "core/host_limits.h"
#include "worker/optimizer/inner_optimizer.h"
#include "worker/ranks/collectives.h"

namespace causeway::worker {

absl::Status CheckHostMemory(const offload::SubgroupPlan& plan, int64_t usable_bytes) {
  const int64_t state = 3 * static_cast<int64_t>(sizeof(float)) * plan.parameters;
  const int64_t beside = offload::InterleavedUpdate::HostBytes(plan, offload::GradientType::kFloat32);
  if (state + beside <= usable_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrFormat(
      "%s of %d parameters: expected %.1f GB that can be pinned, %.1f of p, m and v and %.1f of gradients and copies, "
      "got %.1f GB (of MemAvailable, and of the cgroup's memory.max); less is needed with --offload_k=1, and with a "
      "larger --resident_share",
      kNoHostMemory, plan.parameters, 1e-9 * static_cast<double>(state + beside), 1e-9 * static_cast<double>(state),
      1e-9 * static_cast<double>(beside), 1e-9 * static_cast<double>(usable_bytes)));
}

absl::StatusOr<std::unique_ptr<HostedState>> HostedState::Make(std::vector<offload::DecaySegment> segments,
                                                               const offload::SubgroupPlan& plan, const Model& model,
                                                               offload::PinnedPool* pool, offload::Device* device) {
  RETURN_IF_ERROR(CheckHostMemory(plan, core::UsableMemoryBytes() + pool->idle_bytes()));
  std::unique_ptr<HostedState> state(new HostedState(plan, model));
  for (offload::PinnedPool::Array& array : state->arrays_) {
    ASSIGN_OR_RETURN(array, pool->Take(static_cast<size_t>(plan.parameters) * sizeof(float)));
    const std::span<float> values = array.Values<float>();
    core::OnAllThreads(state->team_, std::ssize(values), [&](int64_t first, int64_t count) {
      std::ranges::fill(values.subspan(static_cast<size_t>(first), static_cast<size_t>(count)), 0.0f);
    });
  }
  const offload::HostState host{state->parameters(), state->moments(0), state->moments(1)};
  const offload::DeviceModel there{.gradients = model.gradients + model.first,
                                   .gradient_type = offload::GradientType::kFloat32,
                                   .parameters = model.computed + model.first,
                                   .pool = pool,
                                   .rooms = {model.rooms[0].memory, model.rooms[1].memory},
                                   .early_gradients = model.early_gradients,
                                   .copy_in_pass = model.copy_in_pass};
  ASSIGN_OR_RETURN(state->update_, offload::InterleavedUpdate::OnDevice(host, std::move(segments), plan, &state->team_,
                                                                        &state->bus_, device, there));
  return state;
}

HostedState::HostedState(const offload::SubgroupPlan& plan, const Model& model)
    : model_(model), team_(UpdateThreads(plan.parameters)), queued_from_(model.count) {}

HostedState::~HostedState() = default;

void HostedState::GradientsQueued(int64_t first) {
  const GpuLlama::Rooms& rooms = model_.rooms;
  for (; dead_rooms_ < rooms.size() && rooms[dead_rooms_].memory != nullptr && first <= rooms[dead_rooms_].dead_from;
       ++dead_rooms_) {
    update_->RoomIsDead();
  }
  const int64_t begin = std::max(first, model_.first);
  if (begin < queued_from_) update_->GradientsReady(begin - model_.first, queued_from_ - begin);
  queued_from_ = std::min(queued_from_, begin);
}

absl::Status HostedState::Step(const offload::AdamWParameters& adamw, int64_t t) {
  queued_from_ = model_.count;
  dead_rooms_ = 0;
  RETURN_IF_ERROR(update_->Step(adamw, t));
  TakeTime();  // of the one before
  return absl::OkStatus();
}

absl::Status HostedState::Finish() {
  RETURN_IF_ERROR(update_->Finish());
  TakeTime();
  return absl::OkStatus();
}

void HostedState::TakeTime() {
  const std::optional<double> seconds = update_->TakeSeconds();
  if (!seconds) return;
  last_s_ = *seconds;
  AddToLateMean(last_s_, measured_s_);
}

core::OffloadProgress HostedState::progress() const {
  const offload::SubgroupPlan& plan = update_->plan();
  const offload::UpdateCounts& counts = update_->counts();
  return {.k = plan.k,
          .subgroup = plan.subgroup,
          .reason = plan.reason,
          .predicted_s = plan.predicted_s,
          .measured_s = measured_s_,
          .waited_s = bus_.waited_s(),
          .device_subgroups = counts.device_subgroups,
          .cpu_subgroups = counts.cpu_subgroups,
          .to_device_bytes = counts.to_device_bytes,
          .to_host_bytes = counts.to_host_bytes,
          .early_gradient_bytes = counts.early_gradient_bytes};
}

}  // namespace causeway::worker
