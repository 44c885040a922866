#include "worker/gpu/device_encoder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/layout.h"

namespace causeway::worker {
namespace {

using offload::Queue;

constexpr unsigned long long kNoBadBlock = ~0ull;  // as codecs/cuda/cuda_codec.h has it
constexpr auto kFloatBytes = static_cast<int64_t>(sizeof(float));

}  // namespace

DeviceEncoder::DeviceEncoder(ComputeBackend* backend, PlaceOf place_of)
    : backend_(backend), place_of_(std::move(place_of)), done_(backend->device().MakeEvent()) {}

DeviceEncoder::~DeviceEncoder() {
  const core::MutexLock lock(mutex_);
  for (auto& [ticket, kept] : kept_) free_.push_back(std::move(kept));
  for (const auto& kept : free_) backend_->device().Free(kept->room.memory);
  for (const Room* room : {&anchor_, &residual_, &scales_, &codes_, &bad_block_}) {
    backend_->device().Free(room->memory);
  }
}

absl::Status DeviceEncoder::Grow(Room& room, int64_t bytes) {
  if (bytes <= room.bytes) return absl::OkStatus();
  backend_->device().Free(room.memory);
  room = {};
  ASSIGN_OR_RETURN(room.memory, backend_->device().Allocate(static_cast<size_t>(bytes)));
  room.bytes = bytes;
  return absl::OkStatus();
}

absl::StatusOr<int64_t> DeviceEncoder::BeginKeep(const replica::UnitRanges& ranges) {
  int64_t values = 0;
  for (const replica::UnitRange& range : ranges) values += range.count * core::kUnitValues;
  std::unique_ptr<Kept> kept;
  {
    const core::MutexLock lock(mutex_);
    if (!free_.empty()) {
      kept = std::move(free_.back());
      free_.pop_back();
    }
  }
  if (kept == nullptr) kept = std::make_unique<Kept>(Kept{.room = {}, .taken = backend_->device().MakeEvent()});
  RETURN_IF_ERROR(Grow(kept->room, values * kFloatBytes));
  auto* to = static_cast<float*>(kept->room.memory);
  for (const replica::UnitRange& range : ranges) {
    const Place place = place_of_(range);
    backend_->Launch(Queue::kCompute, CopyKernel<float, float>{place.values, to, place.count});
    to += range.count * core::kUnitValues;
  }
  backend_->device().Record(kept->taken, Queue::kCompute);
  const core::MutexLock lock(mutex_);
  kept_[++tickets_] = std::move(kept);
  return tickets_;
}

absl::StatusOr<DeviceEncoder::Kept*> DeviceEncoder::Of(int64_t ticket) {
  const core::MutexLock lock(mutex_);
  const auto found = kept_.find(ticket);
  CHECK(found != kept_.end());
  backend_->device().Await(Queue::kSync, found->second->taken);
  return found->second.get();
}

absl::Status DeviceEncoder::Finish() {
  backend_->device().Record(done_, Queue::kSync);
  backend_->device().AwaitOnHost(done_);
  return backend_->device().status();
}

absl::Status DeviceEncoder::Encode(int64_t ticket, core::CodecId codec, const codecs::EncodeJob& job, int64_t first,
                                   std::span<const float> anchor) {
  ASSIGN_OR_RETURN(const Kept* const kept, Of(ticket));
  const codecs::Codec& sizes = codecs::GetCodec(codec);
  const int64_t scale_bytes = sizes.ScaleBytes(job.count), code_bytes = sizes.CodeBytes(job.count);
  const bool whole = sizes.rotates();  // the residual has whole blocks, then
  const int64_t residual_values = whole ? core::BlocksFor(job.count) * core::kBlockValues : job.count;
  RETURN_IF_ERROR(Grow(anchor_, job.count * kFloatBytes));
  RETURN_IF_ERROR(Grow(residual_, job.residual == nullptr ? 0 : residual_values * kFloatBytes));
  RETURN_IF_ERROR(Grow(scales_, std::max<int64_t>(scale_bytes, 1)));
  RETURN_IF_ERROR(Grow(codes_, code_bytes));
  RETURN_IF_ERROR(Grow(bad_block_, sizeof(kNoBadBlock)));

  offload::Device& device = backend_->device();
  codecs::EncodeJob there = job;
  there.values = static_cast<const float*>(anchor_.memory);
  there.subtract = static_cast<const float*>(kept->room.memory) + first;
  there.scales = static_cast<uint8_t*>(scales_.memory);
  there.codes = static_cast<uint8_t*>(codes_.memory);
  unsigned long long bad_block = kNoBadBlock;
  device.CopyToDevice(Queue::kSync, anchor_.memory, anchor.data(), anchor.size_bytes());
  device.CopyToDevice(Queue::kSync, bad_block_.memory, &bad_block, sizeof(bad_block));
  if (job.residual != nullptr) {
    there.residual = there.next_residual = static_cast<float*>(residual_.memory);
    device.CopyToDevice(Queue::kSync, residual_.memory, job.residual, residual_values * sizeof(float));
  }
  backend_->Encode(Queue::kSync, codec, there, static_cast<unsigned long long*>(bad_block_.memory));
  device.CopyToHost(Queue::kSync, job.codes, codes_.memory, code_bytes);
  if (scale_bytes > 0) device.CopyToHost(Queue::kSync, job.scales, scales_.memory, scale_bytes);
  if (job.residual != nullptr) {
    device.CopyToHost(Queue::kSync, job.next_residual, residual_.memory, residual_values * sizeof(float));
  }
  device.CopyToHost(Queue::kSync, &bad_block, bad_block_.memory, sizeof(bad_block));
  RETURN_IF_ERROR(Finish());
  if (bad_block == kNoBadBlock) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a value of block ", bad_block, " is out of range"));
}

absl::Status DeviceEncoder::Read(int64_t ticket, std::span<float> staging) {
  ASSIGN_OR_RETURN(const Kept* const kept, Of(ticket));
  backend_->device().CopyToHost(Queue::kSync, staging.data(), kept->room.memory, staging.size_bytes());
  return Finish();
}

void DeviceEncoder::End(int64_t ticket) {
  const core::MutexLock lock(mutex_);
  const auto found = kept_.find(ticket);
  if (found == kept_.end()) return;
  free_.push_back(std::move(found->second));
  kept_.erase(found);
}

}  // namespace causeway::worker
