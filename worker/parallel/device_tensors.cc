#include "worker/parallel/device_tensors.h"

#include <numeric>
#include <utility>

#include "core/check.h"
#include "worker/optimizer/inner_optimizer.h"
#include "worker/parallel/device_store.h"

namespace causeway::worker {
namespace {

using offload::Queue;

constexpr int64_t kSumShares = 1024;

std::vector<int> StagesOf(const plan::PipelineFile& file, int rank) {
  std::vector<int> stages;
  for (const std::vector<int>& copy : file.schedule.place) {
    for (size_t s = 0; s < copy.size(); ++s) {
      if (copy[s] == rank / file.width) stages.push_back(static_cast<int>(s));
    }
  }
  return stages;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShardedTensors>> DeviceTensors::Open(const plan::PipelineFile& file,
                                                                    PipelinePlaces places, const TrainerRanks& ranks,
                                                                    TensorValues weights,
                                                                    const DeviceEncoder::Options& encode,
                                                                    DeviceState* state, ComputeBackend* backend) {
  core::Manifest held = HeldManifest(places, ranks.rank());
  const bool in_place = file.schedule.stages == 1;
  TensorValues gradients = in_place
                               ? TensorValues(held, state->all_gradients().first(static_cast<size_t>(state->count())))
                               : TensorValues(held);
  std::unique_ptr<DeviceTensors> tensors(
      new DeviceTensors(file, std::move(places), ranks,
                        OwnTensors(std::move(held), std::move(weights), std::move(gradients)), encode, state, backend));
  if (!in_place) {
    RETURN_IF_ERROR(tensors->OpenExchange(file));
    return tensors;
  }
  tensors->host_sums_.resize(kSumShares);
  tensors->sums_.Add("sums", kSumShares * static_cast<int64_t>(sizeof(double)));
  RETURN_IF_ERROR(tensors->sums_.Allocate(backend->device()));
  const bool others_read = ranks.world() > 1;  // as soon as this one has said that they are final
  RETURN_IF_ERROR(tensors->OpenExchange(file, [=](std::span<float> head, std::span<float> embedding) {
    backend->Launch(Queue::kCompute, MoveSumKernel{head.data(), embedding.data(), std::ssize(head)});
    if (others_read) state->Await().IgnoreError();  // shows in the device's status
  }));
  return tensors;
}

DeviceTensors::DeviceTensors(const plan::PipelineFile& file, PipelinePlaces places, const TrainerRanks& ranks,
                             OwnTensors own, const DeviceEncoder::Options& encode, DeviceState* state,
                             ComputeBackend* backend)
    : HeldTensors(std::move(places), ranks, std::move(own),
                  file.schedule.stages == 1
                      ? std::optional(state->all_gradients().subspan(static_cast<size_t>(state->count())))
                      : std::nullopt),
      in_place_(file.schedule.stages == 1),
      encode_(encode),
      state_(state),
      backend_(backend),
      firsts_(HeldFirsts(this->places(), ranks.rank())),
      stages_(StagesOf(file, ranks.rank())) {}

std::span<float> DeviceTensors::tensor(int i) {
  const auto at = static_cast<size_t>(i);
  if (held_weights()[at].empty()) return HeldTensors::tensor(i);
  CHECK(state_->ReadParameters(firsts_[at], held_weights()[at]).ok());
  return held_weights()[at];
}

std::unique_ptr<replica::ParameterStore> DeviceTensors::MakeStore(offload::BusSchedule*) {
  return std::make_unique<DeviceStore>(manifest(), firsts_, state_, backend_,
                                       in_place_ ? std::optional(encode_) : std::nullopt);
}

// ---- A step ----

void DeviceTensors::ClearGradients() {
  const std::span<float> all = state_->all_gradients();
  backend_->Launch(Queue::kCompute, FillKernel<float>{all.data(), std::ssize(all), 0});
  read_.clear();
  copied_ = absl::OkStatus();
}

absl::Status DeviceTensors::ReadGradients(int stage) {
  if (!read_.insert(stage).second) return absl::OkStatus();
  for (const int gradient : places().stages[static_cast<size_t>(stage)]) {
    const auto at = static_cast<size_t>(gradient);
    RETURN_IF_ERROR(state_->copies().ToHost(state_->gradients() + firsts_[at], held_gradients()[at]));
  }
  return absl::OkStatus();
}

void DeviceTensors::Reduce(int stage) {
  copied_.Update(ReadGradients(stage));
  HeldTensors::Reduce(stage);
}

void DeviceTensors::Final(int tensor) {
  HeldTensors::Final(tensor);
  if (ranks().world() == 1 && state_->hosted() != nullptr) {
    state_->hosted()->GradientsQueued(firsts_[static_cast<size_t>(tensor)]);
  }
}

absl::Status DeviceTensors::Finish() {
  for (const int stage : stages_) {
    if (!in_place_) copied_.Update(ReadGradients(stage));
  }
  RETURN_IF_ERROR(HeldTensors::Finish());
  RETURN_IF_ERROR(copied_);
  if (!in_place_) {
    RETURN_IF_ERROR(state_->copies().ToDevice(own().gradients.Flat(), state_->gradients(), ValueType::kFloat32));
  }
  if (state_->hosted() != nullptr) state_->hosted()->GradientsQueued(0);
  return absl::OkStatus();
}

// ---- Σ g² ----

SquareGroups DeviceTensors::square_groups() const {
  if (!in_place_) return HeldTensors::square_groups();
  return {.groups = {{0, "a gradient"}}, .group_of = std::vector<int>(manifest().size(), 0)};
}

absl::StatusOr<std::vector<double>> DeviceTensors::SumsOfSquares(const SquareGroups& groups) {
  if (!in_place_) return HeldTensors::SumsOfSquares(groups);
  double* const sums = sums_.At<double>(0);
  backend_->Launch(Queue::kCompute, SumOfSquaresKernel{state_->gradients(), sums, state_->count(), kSumShares});
  backend_->device().CopyToHost(Queue::kCompute, host_sums_.data(), sums, kSumShares * sizeof(double));
  RETURN_IF_ERROR(state_->Await());
  return std::vector<double>{std::accumulate(host_sums_.begin(), host_sums_.end(), 0.0)};
}

absl::Status DeviceTensors::CheckGradients(const SquareGroups& groups, size_t group, core::Step t) {
  if (!in_place_) return HeldTensors::CheckGradients(groups, group, t);
  for (size_t i = 0; i < manifest().size(); ++i) {
    std::vector<float> gradient(static_cast<size_t>(manifest()[i].NumValues()));
    RETURN_IF_ERROR(state_->copies().ToHost(state_->gradients() + firsts_[i], gradient));
    RETURN_IF_ERROR(CheckFinite(manifest()[i], gradient, t));
  }
  return absl::OkStatus();
}

}  // namespace causeway::worker
