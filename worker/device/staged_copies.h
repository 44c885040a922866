// Copies between ordinary memory and a device through a ring of pinned pieces: a copy of ordinary memory would wait for
// everything on its queue, and go through the driver's own pieces, on one thread.
//
//   ToDevice   memory ─► piece 0, all threads ─► device     ToHost   device ─► piece 0 ─► memory
//                        piece 1 ─► …            meanwhile           … ─► piece 1         meanwhile
// All copies are on one queue. One owner thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "core/thread_team.h"
#include "offload/host_array.h"
#include "replica/parameter_store.h"
#include "worker/device/compute_backend.h"

namespace causeway::worker {

class StagedCopies {
 public:
  static constexpr int64_t kPieceValues = int64_t{1} << 20;  // 4 MiB

  // Takes pieces when it is first used, for `most_values` at once or fewer. Pool and device outlive it; without a pool
  // it has its own.
  StagedCopies(offload::Device* device, offload::PinnedPool* pool, int64_t most_values,
               offload::Queue queue = offload::Queue::kCompute);

  // Converts the values to `type` on the way. Returns when `from` may change.
  absl::Status ToDevice(std::span<const float> from, void* to, ValueType type);
  // Waits for the work that is queued, and until all values have arrived.
  absl::Status ToHost(const float* from, std::span<float> to);

 private:
  static constexpr int kPieces = 3;
  struct Piece {
    offload::PinnedPool::Array memory;
    offload::Device::Event free = 0;
  };

  absl::Status Prepare();
  void Collect(const Piece& piece, std::span<float> to);

  offload::Device* const device_;
  offload::PinnedPool own_;
  offload::PinnedPool* const pool_;
  const offload::Queue queue_;
  const int64_t piece_values_;
  core::ThreadTeam team_;
  std::array<Piece, kPieces> pieces_;
};

// Copies a fragment's θ, whose tensors are scattered on the device, with one kernel. For the step thread.
class ThetaGather {
 public:
  // The permanent place of a range's values on the device, and their number.
  struct Place {
    const float* values = nullptr;
    int64_t count = 0;
  };
  using PlaceOf = std::function<Place(const replica::UnitRange&)>;

  ThetaGather(ComputeBackend* backend, PlaceOf place_of) : backend_(backend), place_of_(std::move(place_of)) {}
  ~ThetaGather();

  // Queues the copy on kCompute, into `to` in padded layout, and then the event.
  absl::Status Queue(const replica::UnitRanges& ranges, float* to, offload::Device::Event taken);

 private:
  // The ranges' pieces, on the device.
  struct Table {
    void* pieces = nullptr;
    int64_t count = 0, blocks = 0;
  };
  absl::StatusOr<const Table*> TableOf(const replica::UnitRanges& ranges);

  ComputeBackend* const backend_;
  const PlaceOf place_of_;
  std::map<std::pair<int, int64_t>, Table> tables_;  // by first tensor and unit, which are unique to a fragment
};

}  // namespace causeway::worker
