#include "worker/device/device_encoder.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "codecs/chunk_plan.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/layout.h"

namespace causeway::worker {
namespace {

using BadBlock = unsigned long long;
constexpr BadBlock kNoBadBlock = ~0ull;  // as codecs/cuda/cuda_codec.h has it
constexpr auto kFloatBytes = static_cast<int64_t>(sizeof(float));
constexpr int64_t kSpareBytes = int64_t{256} << 20;  // to stay free besides W and e
constexpr int64_t kTriedValues = int64_t{1} << 22;   // 16 MiB

}  // namespace

const char* EncodeWayName(EncodeWay way) {
  switch (way) {
    case EncodeWay::kMapped: return "mapped";
    case EncodeWay::kCopied: return "copied";
    case EncodeWay::kHost: return "host";
  }
  return "";
}

DeviceEncoder::DeviceEncoder(EncodeBackend* backend, Keep keep, const Options& options)
    : backend_(backend),
      keep_(std::move(keep)),
      options_(options),
      done_(backend->device().MakeEvent()),
      anchor_used_(backend->device().MakeEvent()),
      copies_(&backend->device(), nullptr, options.parameters, offload::Queue::kSync),
      way_(options.way),
      memory_(&backend->device()) {}

DeviceEncoder::~DeviceEncoder() {
  const core::MutexLock lock(mutex_);
  for (auto& [ticket, kept] : kept_) free_.push_back(std::move(kept));
  for (const auto& kept : free_) backend_->device().Free(kept->room.memory);
  for (const auto& [key, arrays] : arrays_) {
    backend_->device().Free(arrays.anchor.memory);
    backend_->device().Free(arrays.residual.memory);
  }
  for (const Room* room : {&chunk_.scales, &chunk_.codes, &chunk_.bad_block}) backend_->device().Free(room->memory);
  chunk_.flags.reset();
}

absl::Status DeviceEncoder::Grow(Room& room, int64_t bytes) {
  if (bytes <= room.bytes) return absl::OkStatus();
  backend_->device().Free(room.memory);
  room = {};
  ASSIGN_OR_RETURN(room.memory, backend_->device().Allocate(static_cast<size_t>(bytes)));
  room.bytes = bytes;
  return absl::OkStatus();
}

void DeviceEncoder::Reserve(int64_t bytes) {
  if (chunk_.flags == nullptr) chunk_.flags = memory_.Take(2 * sizeof(BadBlock));
  Grow(chunk_.bad_block, sizeof(BadBlock)).IgnoreError();  // without memory the host encodes
  const core::MutexLock lock(mutex_);
  if (!kept_.empty()) return;
  if (free_.empty()) {
    free_.push_back(std::make_unique<Kept>(Kept{.key = {}, .room = {}, .taken = backend_->device().MakeEvent()}));
  }
  Grow(free_.back()->room, bytes).IgnoreError();
}

absl::Status DeviceEncoder::Finish() {
  backend_->device().Record(done_, offload::Queue::kSync);
  backend_->device().AwaitOnHost(done_);
  return backend_->device().status();
}

// ---- Kept copies of θ ----

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
  if (kept == nullptr)
    kept = std::make_unique<Kept>(Kept{.key = {}, .room = {}, .taken = backend_->device().MakeEvent()});
  absl::Status taken = Grow(kept->room, values * kFloatBytes);
  kept->key = KeyOf(ranges);
  if (taken.ok()) taken = keep_(ranges, kept->room.floats(), kept->taken);
  const core::MutexLock lock(mutex_);
  if (!taken.ok()) {
    free_.push_back(std::move(kept));
    return taken;
  }
  kept_[++tickets_] = std::move(kept);
  return tickets_;
}

absl::StatusOr<DeviceEncoder::Kept*> DeviceEncoder::Of(int64_t ticket) {
  const core::MutexLock lock(mutex_);
  const auto found = kept_.find(ticket);
  CHECK(found != kept_.end());
  backend_->device().Await(offload::Queue::kSync, found->second->taken);
  return found->second.get();
}

void DeviceEncoder::End(int64_t ticket) {
  const core::MutexLock lock(mutex_);
  const auto found = kept_.find(ticket);
  if (found == kept_.end()) return;
  free_.push_back(std::move(found->second));
  kept_.erase(found);
}

absl::Status DeviceEncoder::Read(int64_t ticket, std::span<float> staging) {
  ASSIGN_OR_RETURN(const Kept* const kept, Of(ticket));
  return copies_.ToHost(kept->room.floats(), staging);
}

// ---- Encoding ----

bool DeviceEncoder::Keeps() {
  if (!keeps_) {
    const int64_t bytes = 2 * kFloatBytes * options_.parameters, free = backend_->device().free_bytes();
    keeps_ = options_.memory == core::SyncMemory::kAuto && bytes + kSpareBytes <= free;
    spdlog::info("contributions' anchors and residuals {} on the device: {:.1f} MB, {:.1f} MB are free",
                 *keeps_ ? "stay" : "come fragment by fragment", 1e-6 * static_cast<double>(bytes),
                 1e-6 * static_cast<double>(free));
  }
  return *keeps_;
}

absl::Status DeviceEncoder::Bring(Room& room, std::span<const float> values, uint64_t had, uint64_t stamp) {
  if (values.empty()) return absl::OkStatus();  // there is no feedback
  RETURN_IF_ERROR(Grow(room, static_cast<int64_t>(values.size_bytes())));
  return had == 0 || had != stamp ? copies_.ToDevice(values, room.memory, ValueType::kFloat32) : absl::OkStatus();
}

absl::Status DeviceEncoder::BeginEncode(int64_t ticket, const Arrays& arrays) {
  ASSIGN_OR_RETURN(const Kept* const kept, Of(ticket));
  {
    const core::MutexLock lock(mutex_);
    current_ = &arrays_[Keeps() ? kept->key : Key{}];
  }
  if (!Keeps()) current_->anchor_stamp = current_->residual_stamp = 0;
  const absl::Status brought = BringBoth(*current_, arrays);
  current_->anchor_stamp = brought.ok() ? arrays.anchor_stamp : 0;
  // Overwritten; if the contribution is refused, or no chunk of it can be made, the old one is copied again.
  current_->residual_stamp = brought.ok() ? arrays.next_stamp : 0;
  return brought;
}

absl::Status DeviceEncoder::BringBoth(OnDevice& there, const Arrays& arrays) {
  // First the memory: no copy may be queued when this fails.
  RETURN_IF_ERROR(Grow(there.anchor, static_cast<int64_t>(arrays.anchor.size_bytes())));
  RETURN_IF_ERROR(Grow(there.residual, static_cast<int64_t>(arrays.residual.size_bytes())));
  RETURN_IF_ERROR(Bring(there.anchor, arrays.anchor, there.anchor_stamp, arrays.anchor_stamp));
  return Bring(there.residual, arrays.residual, there.residual_stamp, arrays.residual_stamp);
}

absl::Status DeviceEncoder::TakeAnchor(const replica::UnitRanges& ranges, std::span<const float> anchor,
                                       uint64_t stamp) {
  if (!Keeps()) return absl::OkStatus();
  OnDevice* there = nullptr;
  {
    const core::MutexLock lock(mutex_);
    there = &arrays_[KeyOf(ranges)];
  }
  const uint64_t had = std::exchange(there->anchor_stamp, 0);
  const auto bytes = static_cast<int64_t>(anchor.size_bytes());
  backend_->device().Await(offload::Queue::kSync, anchor_used_);
  RETURN_IF_ERROR(Bring(there->anchor, anchor, had, stamp));
  RETURN_IF_ERROR(Finish());
  there->anchor_stamp = stamp;
  Reserve(bytes);
  return options_.residuals ? Grow(there->residual, bytes) : absl::OkStatus();  // not at the first send, during a step
}

const float* DeviceEncoder::AnchorOf(const replica::UnitRanges& ranges, uint64_t stamp) {
  const core::MutexLock lock(mutex_);
  const auto found = arrays_.find(KeyOf(ranges));
  if (stamp == 0 || found == arrays_.end() || found->second.anchor_stamp != stamp) return nullptr;
  return found->second.anchor.floats();
}

void DeviceEncoder::AnchorWasUsed() { backend_->device().Record(anchor_used_, offload::Queue::kCompute); }

absl::Status DeviceEncoder::Encode(int64_t ticket, core::CodecId codec, const codecs::EncodeJob& job, int64_t first) {
  ASSIGN_OR_RETURN(const Kept* const kept, Of(ticket));
  const bool whole = codecs::GetCodec(codec).rotates();  // in which case the residual has whole blocks
  const int64_t residual_values = whole ? core::BlocksFor(job.count) * core::kBlockValues : job.count;
  if (chunk_.flags == nullptr) chunk_.flags = memory_.Take(2 * sizeof(BadBlock));
  auto* const flags = reinterpret_cast<BadBlock*>(chunk_.flags.get());
  flags[0] = kNoBadBlock;
  RETURN_IF_ERROR(Grow(chunk_.bad_block, sizeof(BadBlock)));
  const EncodeWay way = memory_.all_pinned() ? way_.value_or(EncodeWay::kMapped) : EncodeWay::kCopied;
  if (way == EncodeWay::kCopied) {
    RETURN_IF_ERROR(Grow(chunk_.scales, std::max<int64_t>(codecs::GetCodec(codec).ScaleBytes(job.count), 1)));
    RETURN_IF_ERROR(Grow(chunk_.codes, codecs::GetCodec(codec).CodeBytes(job.count)));
  }
  codecs::EncodeJob there = job;
  there.values = current_->anchor.floats() + first;
  there.subtract = kept->room.floats() + first;
  if (job.residual != nullptr) there.residual = there.next_residual = current_->residual.floats() + first;
  offload::Device& device = backend_->device();
  device.CopyToDevice(offload::Queue::kSync, chunk_.bad_block.memory, &flags[0], sizeof(BadBlock));
  Queue(way, codec, there);
  if (job.residual != nullptr) {
    RETURN_IF_ERROR(copies_.ToHost(there.residual, {job.next_residual, static_cast<size_t>(residual_values)}));
  }
  device.CopyToHost(offload::Queue::kSync, &flags[1], chunk_.bad_block.memory, sizeof(BadBlock));
  RETURN_IF_ERROR(Finish());
  if (flags[1] == kNoBadBlock) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a value of block ", flags[1], " is out of range"));
}

// The job's values are on the device, its scales and codes in a chunk's memory.
void DeviceEncoder::Queue(EncodeWay way, core::CodecId codec, const codecs::EncodeJob& job) {
  auto* const bad_block = static_cast<BadBlock*>(chunk_.bad_block.memory);
  if (way == EncodeWay::kMapped) return backend_->Encode(offload::Queue::kSync, codec, job, bad_block);
  const codecs::Codec& sizes = codecs::GetCodec(codec);
  const int64_t scale_bytes = sizes.ScaleBytes(job.count);
  codecs::EncodeJob there = job;
  there.scales = static_cast<uint8_t*>(chunk_.scales.memory);
  there.codes = static_cast<uint8_t*>(chunk_.codes.memory);
  backend_->Encode(offload::Queue::kSync, codec, there, bad_block);
  backend_->device().CopyToHost(offload::Queue::kSync, job.codes, chunk_.codes.memory, sizes.CodeBytes(job.count));
  if (scale_bytes > 0)
    backend_->device().CopyToHost(offload::Queue::kSync, job.scales, chunk_.scales.memory, scale_bytes);
}

// ---- Which way ----

bool DeviceEncoder::Takes(std::span<const core::CodecId> codecs) {
  const auto cannot = std::ranges::find_if(codecs, [&](core::CodecId codec) { return !backend_->Encodes(codec); });
  if (cannot != codecs.end()) {
    spdlog::info("contributions are encoded on the host: {} is not made on a device", core::CodecName(*cannot));
    return false;
  }
  if (!way_ && !backend_->timed()) way_ = EncodeWay::kMapped;
  if (!way_) {
    const absl::StatusOr<EncodeWay> fastest = Fastest(codecs.front());
    if (!fastest.ok())
      spdlog::warn("contributions are encoded on the host: {}", std::string(fastest.status().message()));
    way_ = fastest.value_or(EncodeWay::kHost);
  }
  return way_ != EncodeWay::kHost;
}

absl::StatusOr<EncodeWay> DeviceEncoder::Fastest(core::CodecId codec) {
  const codecs::Codec& sizes = codecs::GetCodec(codec);
  const int64_t scale_bytes = sizes.ScaleBytes(kTriedValues), code_bytes = sizes.CodeBytes(kTriedValues);
  const int64_t scale_room = (scale_bytes + 63) / 64 * 64;
  offload::Device& device = backend_->device();
  Room values;
  RETURN_IF_ERROR(Grow(values, kTriedValues * kFloatBytes));
  RETURN_IF_ERROR(Grow(chunk_.scales, scale_room));
  RETURN_IF_ERROR(Grow(chunk_.codes, code_bytes));
  RETURN_IF_ERROR(Grow(chunk_.bad_block, sizeof(BadBlock)));
  const std::shared_ptr<char> chunk = memory_.Take(static_cast<size_t>(scale_room + code_bytes));
  const std::shared_ptr<char> theta = memory_.Take(static_cast<size_t>(kTriedValues * kFloatBytes));
  auto* const on_host = reinterpret_cast<float*>(theta.get());
  std::fill_n(on_host, kTriedValues, 0.5f);
  device.CopyToDevice(offload::Queue::kSync, values.memory, on_host, kTriedValues * sizeof(float));
  codecs::EncodeJob job = {.values = values.floats(), .count = kTriedValues, .saturate = true};
  if (sizes.rotates()) job.rotation = codecs::Rotation{.seed = 1, .first_block = 0};
  job.scales = reinterpret_cast<uint8_t*>(chunk.get());
  job.codes = job.scales + scale_room;
  const auto once = [&](EncodeWay way) {
    if (way != EncodeWay::kHost) {
      Queue(way, codec, job);
      return Finish();
    }
    device.CopyToHost(offload::Queue::kSync, on_host, values.memory, kTriedValues * sizeof(float));
    RETURN_IF_ERROR(Finish());
    codecs::EncodeJob here = job;
    here.values = on_host;
    sizes.Encode(here);
    return absl::OkStatus();
  };
  std::string times;
  EncodeWay best = EncodeWay::kHost;
  double best_s = std::numeric_limits<double>::infinity();
  for (const EncodeWay way : kAllEncodeWays) {
    double least_s = std::numeric_limits<double>::infinity();
    for (int i = 0; i < 4; ++i) {
      const core::Clock::TimePoint begin = core::SystemClock().Now();
      RETURN_IF_ERROR(once(way));
      least_s = std::min(least_s, core::SystemClock().SecondsSince(begin));
    }
    absl::StrAppend(&times, times.empty() ? "" : ", ", EncodeWayName(way), " ", absl::SixDigits(1e3 * least_s), " ms");
    if (least_s < best_s) {
      best = way;
      best_s = least_s;
    }
  }
  device.Free(values.memory);
  spdlog::info("contributions are encoded {}: {} MiB of θ in {}",
               best == EncodeWay::kHost     ? "on the host"
               : best == EncodeWay::kMapped ? "on the device, into mapped memory"
                                            : "on the device, and copied",
               kTriedValues * kFloatBytes >> 20, times);
  return best;
}

}  // namespace causeway::worker
