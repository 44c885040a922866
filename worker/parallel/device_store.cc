#include "worker/parallel/device_store.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/layout.h"
#include "core/thread_team.h"
#include "replica/host_store.h"

namespace causeway::worker {

using offload::Queue;

DeviceStore::DeviceStore(const core::Manifest& manifest, std::vector<int64_t> firsts, DeviceState* state,
                         ComputeBackend* backend, const std::optional<DeviceEncoder::Options>& encode)
    : manifest_(manifest), firsts_(std::move(firsts)), state_(state), backend_(backend) {
  if (state->hosted() != nullptr) {
    reads_ = std::make_unique<replica::ScheduledReads>(&state->hosted()->bus());
    return;
  }
  if (!encode) return;
  DeviceEncoder::Options options = *encode;
  options.parameters = core::NumParameters(manifest);
  const auto place_of = [this](const replica::UnitRange& range) {
    const Part part = PartsOf({range}).front();
    return ThetaGather::Place{state_->parameters() + part.first, part.count};
  };
  gather_ = std::make_unique<ThetaGather>(backend, place_of);
  encoder_ = std::make_unique<DeviceEncoder>(
      backend,
      [this](const replica::UnitRanges& ranges, float* to, offload::Device::Event taken) {
        return gather_->Queue(ranges, to, taken);
      },
      options);
}

DeviceStore::~DeviceStore() {
  if (incoming_ != nullptr) backend_->device().Free(incoming_);
}

std::vector<DeviceStore::Part> DeviceStore::PartsOf(const replica::UnitRanges& ranges) const {
  std::vector<Part> parts;
  int64_t at = 0;
  for (const replica::UnitRange& range : ranges) {
    const int64_t first = range.first * core::kUnitValues, padded = range.count * core::kUnitValues;
    const int64_t count = std::min(padded, manifest_[range.tensor].NumValues() - first);
    const int64_t begin = firsts_[static_cast<size_t>(range.tensor)] + first;
    const int64_t here = std::clamp<int64_t>(state_->resident() - begin, 0, count);
    if (here > 0) parts.push_back({begin, here, at, true});
    if (here < count) parts.push_back({begin + here, count - here, at + here, false});
    at += padded;
  }
  return parts;
}

int64_t DeviceStore::BeginRead(const replica::UnitRanges& ranges, std::span<float> staging) {
  std::vector<replica::ScheduledReads::Piece> pieces;
  read_ = absl::OkStatus();
  for (const Part& part : PartsOf(ranges)) {
    const std::span<float> to = staging.subspan(static_cast<size_t>(part.at), static_cast<size_t>(part.count));
    if (!part.on_device) {
      pieces.push_back({{part.first - state_->resident(), part.count}, to});
    } else if (read_.ok()) {
      read_ = state_->copies().ToHost(state_->parameters() + part.first, to);
    }
  }
  if (read_.ok()) read_ = state_->Await();
  return reads_ == nullptr ? 0 : reads_->Begin(std::move(pieces));
}

absl::Status DeviceStore::AwaitRead(int64_t ticket) {
  if (reads_ != nullptr) {
    reads_->Await(ticket, [this](int64_t first) { return state_->hosted()->parameters().data() + first; });
  }
  return read_;
}

absl::Status DeviceStore::DoMove(const replica::UnitRanges& ranges, const replica::Movement& movement) {
  if (movement.kind == replica::Movement::Kind::kMix && movement.factor == 1) {
    return absl::OkStatus();  // as core::MixAnchor has it
  }
  const std::vector<Part> parts = PartsOf(ranges);
  const float* values = encoder_ == nullptr ? nullptr : encoder_->AnchorOf(ranges, movement.stamp);
  if (values == nullptr && std::ranges::any_of(parts, &Part::on_device)) {
    RETURN_IF_ERROR(Upload(movement.values));
    values = incoming_;
  }
  RETURN_IF_ERROR(state_->Await());
  for (const Part& part : parts) {
    part.on_device ? MoveOnDevice(part, movement, values) : MoveOnHost(part, movement);
    RETURN_IF_ERROR(state_->Changed(part.first, part.count));
  }
  if (encoder_ != nullptr) encoder_->AnchorWasUsed();
  return backend_->device().status();
}

absl::Status DeviceStore::Upload(std::span<const float> values) {
  if (std::ssize(values) > incoming_count_) {
    if (incoming_ != nullptr) backend_->device().Free(incoming_);
    incoming_ = nullptr;
    ASSIGN_OR_RETURN(void* const memory, backend_->device().Allocate(values.size_bytes()));
    incoming_ = static_cast<float*>(memory);
    incoming_count_ = std::ssize(values);
  }
  return state_->copies().ToDevice(values, incoming_, ValueType::kFloat32);
}

void DeviceStore::MoveOnDevice(const Part& part, const replica::Movement& movement, const float* of_ranges) {
  float* const parameters = state_->parameters() + part.first;
  const float* const values = of_ranges + part.at;
  if (movement.kind == replica::Movement::Kind::kStep) {
    backend_->Launch(Queue::kCompute, RebaseKernel{values, parameters, part.count, movement.factor});
  } else if (movement.factor == 0) {
    backend_->Launch(Queue::kCompute, CopyKernel<float, float>{values, parameters, part.count});
  } else {
    backend_->Launch(Queue::kCompute, MixKernel{values, parameters, part.count, movement.factor});
  }
}

void DeviceStore::MoveOnHost(const Part& part, const replica::Movement& movement) {
  core::OnAllThreads(state_->hosted()->team(), part.count, [&](int64_t first, int64_t count) {
    const auto size = static_cast<size_t>(count);
    replica::MoveValues(
        movement, movement.values.subspan(static_cast<size_t>(part.at + first), size),
        state_->hosted()->parameters().subspan(static_cast<size_t>(part.first - state_->resident() + first), size));
  });
}

}  // namespace causeway::worker
