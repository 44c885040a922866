// Contributions of a device's trainer, encoded where θ lies (replica::ThetaEncoder).
//
//   step thread       θ ─► copy of the fragment's θ, on the device                       (kCompute, before θ changes)
//   another thread    W, e brought there if necessary ─► Δ = W − θ, + β e, codes ─► chunk, next e ─► host      (kSync)
//
//   mapped   the kernel writes a chunk's codes where the link sends them from
//   copied   it writes them to the device's memory, and a copy engine brings them
//
// Which of the two is faster, or whether the host's codec is faster than both, is measured at the start of the run and
// logged. W and e stay on the device where there is room (SyncMemory::kAuto): then a contribution moves only its codes
// and the next residual. The bytes are those of the CPU codec. Source: docs/gpu.md; GPU-oriented data communication,
// arXiv 2103.03330. BeginKeep is for the step thread; the others are for one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/mutex.h"
#include "core/run_config.h"
#include "replica/parameter_store.h"
#include "worker/device/chunk_memory.h"
#include "worker/device/encode_backend.h"
#include "worker/device/staged_copies.h"

namespace causeway::worker {

// The place where contributions are encoded: on the device in one of two ways, or on the host.
enum class EncodeWay { kMapped, kCopied, kHost };
inline constexpr EncodeWay kAllEncodeWays[] = {EncodeWay::kMapped, EncodeWay::kCopied, EncodeWay::kHost};
const char* EncodeWayName(EncodeWay way);  // mapped, copied, host

class DeviceEncoder final : public replica::ThetaEncoder {
 public:
  // Queues copies of θ of the ranges into `to` on the device, in padded layout, and then the event.
  using Keep = std::function<absl::Status(const replica::UnitRanges& ranges, float* to, offload::Device::Event taken)>;

  struct Options {
    std::optional<EncodeWay> way;  // none: the fastest
    core::SyncMemory memory = core::SyncMemory::kAuto;
    int64_t parameters = 0;  // the number in all fragments
    bool residuals = true;   // contributions have feedback
  };

  // The backend outlives it.
  DeviceEncoder(EncodeBackend* backend, Keep keep, const Options& options);
  ~DeviceEncoder() override;

  bool Takes(std::span<const core::CodecId> codecs) override;
  std::shared_ptr<char> ChunkMemory(size_t bytes) override { return memory_.Take(bytes); }
  absl::StatusOr<int64_t> BeginKeep(const replica::UnitRanges& ranges) override;
  absl::Status BeginEncode(int64_t ticket, const Arrays& arrays) override;
  absl::Status Encode(int64_t ticket, core::CodecId codec, const codecs::EncodeJob& job, int64_t first) override;
  absl::Status Read(int64_t ticket, std::span<float> staging) override;
  void End(int64_t ticket) override;
  absl::Status TakeAnchor(const replica::UnitRanges& ranges, std::span<const float> anchor, uint64_t stamp) override;

  const float* AnchorOf(const replica::UnitRanges& ranges, uint64_t stamp) override;
  void AnchorWasUsed();  // the work queued on kCompute so far reads W. For the step thread

 private:
  using Key = std::pair<int, int64_t>;  // a fragment's first tensor and unit, unique to it

  // Device memory that grows.
  struct Room {
    void* memory = nullptr;
    int64_t bytes = 0;
    float* floats() const { return static_cast<float*>(memory); }
  };
  // A fragment's θ, in padded layout.
  struct Kept {
    Key key;
    Room room;
    offload::Device::Event taken = 0;
  };
  // Device memory for the chunk being encoded; kCopied uses the first two.
  struct ChunkRooms {
    Room scales, codes, bad_block;
    std::shared_ptr<char> flags;  // on the host: bad_block before and after
  };
  // W and e of a fragment; a stamp of 0: the array is not there.
  struct OnDevice {
    Room anchor, residual;
    uint64_t anchor_stamp = 0, residual_stamp = 0;
  };

  static Key KeyOf(const replica::UnitRanges& ranges) { return {ranges.front().tensor, ranges.front().first}; }

  absl::Status Grow(Room& room, int64_t bytes);  // RESOURCE_EXHAUSTED: the room is then empty
  // Gets memory for a contribution of `bytes` of θ, if there is none: an allocation during a step waits for the device.
  void Reserve(int64_t bytes);
  bool Keeps();  // whether W and e of all fragments stay on the device; the first call decides, and logs it
  absl::Status Bring(Room& room, std::span<const float> values, uint64_t had, uint64_t stamp);
  absl::Status BringBoth(OnDevice& there, const Arrays& arrays);
  absl::StatusOr<Kept*> Of(int64_t ticket);
  absl::Status Finish();  // waits for the work queued for the chunk
  // Tries all ways; logs their times.
  absl::StatusOr<EncodeWay> Fastest(core::CodecId codec);
  void Queue(EncodeWay way, core::CodecId codec, const codecs::EncodeJob& job);

  EncodeBackend* const backend_;
  const Keep keep_;
  const Options options_;
  const offload::Device::Event done_, anchor_used_;
  StagedCopies copies_;  // copies W, e and θ, on kSync
  std::optional<EncodeWay> way_;
  core::Mutex mutex_;
  int64_t tickets_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<int64_t, std::unique_ptr<Kept>> kept_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Kept>> free_ ABSL_GUARDED_BY(mutex_);
  std::map<Key, OnDevice> arrays_ ABSL_GUARDED_BY(mutex_);  // an entry is used by one thread at a time
  std::optional<bool> keeps_;                               // used by the encoding thread, like all below
  OnDevice* current_ = nullptr;                             // arrays of the contribution being encoded
  ChunkRooms chunk_;
  worker::ChunkMemory memory_;  // last: unpins its memory while the device exists
};

}  // namespace causeway::worker
