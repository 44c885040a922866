// A model that is trained for some steps through InterleavedUpdate, on a fake device, and beside it by one plain pass
// of AdamW over everything: the reference of every test of the schedule.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/bfloat16.h"
#include "core/random.h"
#include "offload/interleaved_update.h"
#include "tests/offload/fake_device.h"

namespace causeway::offload {

struct UpdateCase {
  int64_t parameters = 0;
  int64_t subgroup = 0;
  int64_t k = 0;
  GradientType gradient_type = GradientType::kBfloat16;
  int steps = 1;
  uint64_t seed = 0;
  bool rooms = false;  // the buffer sets lie where forward keeps something for backward
  bool early_gradients = true, copy_in_pass = true;
};

struct TrainedState {
  std::vector<float> p, m, v;

  explicit TrainedState(int64_t size) : p(size), m(size), v(size) {}
};

// "" if all bits are equal.
inline std::string Difference(const std::vector<float>& expected, const std::vector<float>& got, const char* what) {
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::bit_cast<uint32_t>(expected[i]) == std::bit_cast<uint32_t>(got[i])) continue;
    return absl::StrCat(what, " ", i, ": expected ", expected[i], ", got ", got[i]);
  }
  return "";
}

class UpdateRun {
 public:
  // On the host alone where `device` is null.
  UpdateRun(const UpdateCase& c, FakeDevice* device, core::ThreadTeam* team, BusSchedule* bus = nullptr)
      : case_(c), device_(device), expected_(c.parameters), state_(c.parameters) {
    for (int64_t i = 0; i < c.parameters; ++i) expected_.p[i] = static_cast<float>(Uniform(0, i));
    state_.p = expected_.p;
    // Some tensors of each kind, cut anywhere.
    for (int64_t left = c.parameters; left > 0; left -= segments_.back().count) {
      segments_.push_back({std::min<int64_t>(left, 1 + Random(c.parameters)), Random(2) == 0});
    }
    const SubgroupPlan plan = {.parameters = c.parameters, .subgroup = c.subgroup, .k = c.k};
    const HostState host = {state_.p, state_.m, state_.v};
    if (device == nullptr) {
      update_ = std::make_unique<InterleavedUpdate>(host, segments_, plan, team, bus);
      return;
    }
    gradients_ = *device->Allocate(c.parameters * BytesOf(c.gradient_type));
    parameters_ = static_cast<uint16_t*>(*device->Allocate(c.parameters * sizeof(uint16_t)));
    for (int64_t i = 0; i < c.parameters; ++i) parameters_[i] = core::ToBfloat16(expected_.p[i]);
    pool_.emplace(device);
    DeviceModel model{gradients_, c.gradient_type, parameters_, &*pool_};
    model.early_gradients = c.early_gradients;
    model.copy_in_pass = c.copy_in_pass;
    if (c.rooms && c.k != core::kAllOnCpu) {
      room_bytes_ = InterleavedUpdate::SetBytes(plan);
      for (int i : {0, 1}) model.rooms[i] = rooms_[i] = *device->Allocate(room_bytes_);
    }
    update_ = *InterleavedUpdate::OnDevice(host, segments_, plan, team, bus, device, model);
  }
  ~UpdateRun() {
    update_.reset();
    pool_.reset();
    if (device_ == nullptr) return;
    device_->Free(gradients_);
    device_->Free(parameters_);
    for (void* room : rooms_) device_->Free(room);
  }

  // Step t of both, from 1. Differences says where they differ.
  void Step(int64_t t) {
    const AdamWParameters adamw = {.lr = 1e-2, .weight_decay = 0.1, .gradient_scale = t % 2 == 0 ? 0.75f : 1.0f};
    MakeGradient(t);
    if (device_ != nullptr) QueueBackward();
    if (const absl::Status status = update_->Step(adamw, t, device_ == nullptr ? gradient_ : std::span<float>());
        !status.ok()) {
      differences_ += status.ToString();
    }
    StepExpected(adamw, t);
    if (device_ != nullptr) ExpectOnDevice();
  }

  // The site mixes something into its parameters, as after a round: host state is whole then.
  void Mix() {
    differences_ += update_->Finish().ok() ? "" : "Finish failed";
    Compare();
    for (size_t i = 0; i < state_.p.size(); i += 3) expected_.p[i] = state_.p[i] *= 0.5f;
    mixed_on_host_ = true;
  }

  std::string Differences() {
    differences_ += update_->Finish().ok() ? "" : "Finish failed";
    Compare();
    if (device_ != nullptr) {  // what forward saw
      const Device::Event forward = device_->MakeEvent();
      device_->Record(forward, Queue::kCompute);
      device_->AwaitOnHost(forward);
      differences_ += *on_device_;
    }
    return differences_;
  }

  const TrainedState& expected() const { return expected_; }
  const std::vector<float>& parameters() const { return state_.p; }
  const InterleavedUpdate& update() const { return *update_; }

 private:
  uint64_t Random(uint64_t below) { return core::HashCombine(case_.seed + 1, draws_++) % below; }
  double Uniform(uint64_t stream, uint64_t i) const {
    return 2 * core::UnitInterval(core::HashCombine(core::HashCombine(case_.seed, stream), i)) - 1;
  }

  void MakeGradient(int64_t t) {
    gradient_.resize(case_.parameters);
    for (int64_t i = 0; i < case_.parameters; ++i) {
      const double scale = (i + t) % 5 == 0 ? 1e-20 : 0.1;
      gradient_[i] = static_cast<float>(scale * Uniform(t, i));
      if (case_.gradient_type == GradientType::kBfloat16) {
        gradient_[i] = core::FromBfloat16(core::ToBfloat16(gradient_[i]));
      }
    }
  }

  // Ranges in any order become final one after the other; each reads the model's parameters, too.
  void QueueBackward() {
    std::vector<int64_t> cuts = {0, case_.parameters};
    for (uint64_t i = Random(4); i > 0; --i) cuts.push_back(static_cast<int64_t>(Random(case_.parameters + 1)));
    std::ranges::sort(cuts);
    std::vector<size_t> order(cuts.size() - 1);
    std::iota(order.begin(), order.end(), 0);
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[Random(i)]);
    const auto values = std::make_shared<const std::vector<float>>(gradient_);
    for (int room : {0, 1}) KeepInRoom(room);
    int dead = 0;
    for (size_t i : order) {
      while (dead < 2 && room_bytes_ > 0 && Random(2) == 0) {
        ExpectInRoom(dead++);
        update_->RoomIsDead();
      }
      const int64_t first = cuts[i], count = cuts[i + 1] - cuts[i];
      ExpectOnDevice();
      device_->Launch(Queue::kCompute, [this, values, first, count, gradients = gradients_] {
        for (int64_t j = first; j < first + count; ++j) {
          if (case_.gradient_type == GradientType::kFloat32) {
            static_cast<float*>(gradients)[j] = (*values)[j];
          } else {
            static_cast<uint16_t*>(gradients)[j] = core::ToBfloat16((*values)[j]);
          }
        }
      });
      for (int room = dead; room < 2; ++room) ExpectInRoom(room);
      update_->GradientsReady(first, count);
    }
  }

  void KeepInRoom(int room) {
    device_->Launch(Queue::kCompute, [memory = rooms_[room], bytes = room_bytes_] {
      if (bytes > 0) std::memset(memory, 'k', bytes);
    });
  }
  void ExpectInRoom(int room) {
    device_->Launch(Queue::kCompute, [memory = rooms_[room], bytes = room_bytes_, found = on_device_] {
      const char* const kept = static_cast<const char*>(memory);
      if (!std::all_of(kept, kept + bytes, [](char byte) { return byte == 'k'; })) *found = "a room is not as it was";
    });
  }

  // Forward and backward compute with the parameters of the step before.
  void ExpectOnDevice() {
    auto expected = std::make_shared<std::vector<uint16_t>>();
    for (float p : expected_.p) expected->push_back(core::ToBfloat16(p));
    if (mixed_on_host_) return;
    device_->Launch(Queue::kCompute, [expected, parameters = parameters_, found = on_device_] {
      for (size_t i = 0; i < expected->size(); ++i) {
        if (parameters[i] == (*expected)[i]) continue;
        *found = absl::StrCat("the device's parameter ", i, ": expected ", (*expected)[i], ", got ", parameters[i]);
      }
    });
  }

  void StepExpected(const AdamWParameters& adamw, int64_t t) {
    AdamWParameters plain = adamw;
    plain.weight_decay = 0;
    int64_t i = 0;
    for (const DecaySegment& segment : segments_) {
      const AdamWConstants c = MakeConstants(segment.decays ? adamw : plain, t);
      for (int64_t end = i + segment.count; i < end; ++i) {
        UpdateValue(c, gradient_[i], expected_.m[i], expected_.v[i], expected_.p[i]);
      }
    }
    mixed_on_host_ = false;
  }

  void Compare() {
    differences_ += Difference(expected_.p, state_.p, "p");
    differences_ += Difference(expected_.m, state_.m, "m");
    differences_ += Difference(expected_.v, state_.v, "v");
  }

  const UpdateCase case_;
  FakeDevice* const device_;
  std::vector<DecaySegment> segments_;
  TrainedState expected_, state_;
  std::vector<float> gradient_;
  void* gradients_ = nullptr;
  uint16_t* parameters_ = nullptr;
  void* rooms_[2] = {};
  size_t room_bytes_ = 0;
  std::optional<PinnedPool> pool_;
  std::unique_ptr<InterleavedUpdate> update_;
  std::shared_ptr<std::string> on_device_ = std::make_shared<std::string>();
  std::string differences_;
  uint64_t draws_ = 0;
  bool mixed_on_host_ = false;
};

}  // namespace causeway::offload
