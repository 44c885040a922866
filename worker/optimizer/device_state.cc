#include "worker/optimizer/device_state.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "worker/optimizer/inner_optimizer.h"

namespace causeway::worker {

using offload::Queue;

absl::StatusOr<std::unique_ptr<DeviceState>> DeviceState::Make(const Setting& setting, ComputeBackend* backend) {
  std::unique_ptr<DeviceState> state(new DeviceState(setting, backend));
  RETURN_IF_ERROR(state->arena_.Allocate(backend->device()));
  for (int which = 0; which < setting.moments; ++which) {
    backend->Launch(Queue::kCompute, FillKernel<float>{state->moments(which), state->resident_, 0});
  }
  if (setting.residency.hosted() > 0) RETURN_IF_ERROR(state->Host(setting));
  return state;
}

DeviceState::DeviceState(const Setting& setting, ComputeBackend* backend)
    : type_(setting.type),
      backend_(backend),
      firsts_(core::FlatOffsets(setting.manifest)),
      count_(firsts_.back()),
      resident_(setting.residency.resident),
      more_gradients_(setting.more_gradients),
      done_(backend->device().MakeEvent()),
      copies_(&backend->device(), setting.pool, count_) {
  const auto bytes = resident_ * static_cast<int64_t>(sizeof(float));
  parameters_ = arena_.Add("parameters", bytes);
  gradients_ = arena_.Add("gradients", (count_ + more_gradients_) * static_cast<int64_t>(sizeof(float)));
  computed_ = type_ == ValueType::kFloat32 ? parameters_ : arena_.Add("parameters", count_ * BytesOf(type_));
  for (int which = 0; which < setting.moments; ++which) moments_[which] = arena_.Add("optimizer state", bytes);
}

absl::Status DeviceState::Host(const Setting& setting) {
  std::vector<offload::DecaySegment> segments;
  int64_t end = 0;
  for (const offload::DecaySegment& segment : DecaySegmentsOf(setting.manifest)) {
    end += segment.count;
    const int64_t count = std::min(segment.count, end - resident_);
    if (count > 0) segments.push_back({count, segment.decays});
  }
  const HostedState::Model model{.first = resident_,
                                 .count = count_,
                                 .gradients = gradients(),
                                 .computed = bfloat16_copy(),
                                 .rooms = setting.rooms,
                                 .early_gradients = setting.overlaps,
                                 .copy_in_pass = setting.overlaps};
  ASSIGN_OR_RETURN(hosted_, HostedState::Make(std::move(segments), setting.residency.plan, model, setting.pool,
                                              &backend_->device()));
  return absl::OkStatus();
}

absl::Status DeviceState::Await() {
  backend_->device().Record(done_, Queue::kCompute);
  backend_->device().AwaitOnHost(done_);
  return hosted_ == nullptr ? backend_->device().status() : hosted_->Finish();
}

absl::Status DeviceState::Changed(int64_t first, int64_t count) {
  const int64_t here = std::clamp<int64_t>(resident_ - first, 0, count);
  if (type_ != ValueType::kFloat32 && here > 0) {
    backend_->Launch(Queue::kCompute, CopyKernel<float, Bfloat16>{parameters() + first,
                                                                  static_cast<Bfloat16*>(computed()) + first, here});
  }
  if (here == count) return backend_->device().status();
  const std::span<const float> on_host =
      hosted_->parameters().subspan(static_cast<size_t>(first + here - resident_), static_cast<size_t>(count - here));
  return copies_.ToDevice(on_host, bfloat16_copy() + first + here, ValueType::kBfloat16);
}

DeviceState::Placed DeviceState::Parameters() const {
  return {parameters(), hosted_ == nullptr ? std::span<float>() : hosted_->parameters()};
}

DeviceState::Placed DeviceState::Moments(int which) const {
  return {moments(which), hosted_ == nullptr ? std::span<float>() : hosted_->moments(which)};
}

absl::Status DeviceState::Read(const Placed& array, int64_t first, std::span<float> to) {
  RETURN_IF_ERROR(Await());
  const int64_t here = std::clamp<int64_t>(resident_ - first, 0, std::ssize(to));
  const std::span<float> others = to.subspan(static_cast<size_t>(here));
  if (!others.empty()) std::copy_n(array.host.begin() + (first + here - resident_), others.size(), others.begin());
  return here == 0 ? absl::OkStatus() : copies_.ToHost(array.device + first, to.first(static_cast<size_t>(here)));
}

absl::Status DeviceState::Write(std::span<const float> from, const Placed& array) {
  RETURN_IF_ERROR(Await());
  std::ranges::copy(from.subspan(static_cast<size_t>(resident_)), array.host.begin());
  return copies_.ToDevice(from.first(static_cast<size_t>(resident_)), array.device, ValueType::kFloat32);
}

absl::Status DeviceState::WriteParameters(std::span<const float> from) {
  RETURN_IF_ERROR(Write(from, Parameters()));
  return Changed(0, count_);
}

}  // namespace causeway::worker
