// The chunks of one fragment from one site, spooled as they arrive, still encoded, until they are complete.
//
//   plan      |chunk 0|chunk 1|chunk 2| …      known to both ends (PlanChunks)
//   arrived   |  yes  |       |  yes  |        in any order, from several streams; a repeat is ignored
//
// Every chunk is checked in full when it arrives, so that a complete contribution can be merged without failing. Chunks
// that have arrived are kept when a stream breaks: the next stream sends only Missing(). Thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "codecs/chunk.h"
#include "core/fragment_map.h"
#include "core/layout.h"
#include "core/mutex.h"

namespace causeway::server {

class Contribution {
 public:
  explicit Contribution(std::vector<codecs::ChunkSpan> plan);

  // INVALID_ARGUMENT if the bytes are not a valid chunk (compressed or not), or not one of the plan;
  // FAILED_PRECONDITION if it is of another codec than the plan's. Nothing changes then.
  absl::Status Add(std::string bytes);

  std::vector<int> Missing() const;  // indices in the plan, ascending
  bool complete() const;

  // For a complete contribution, which no longer changes: its checked chunks in unit order, and their bytes. They live
  // as long as the contribution.
  std::vector<codecs::ChunkView> Views() const;
  const std::vector<std::string>& chunks() const;
  double Norm() const;  // ‖d‖ of the decoded values, in their codec's domain

 private:
  const std::vector<codecs::ChunkSpan> plan_;
  mutable core::Mutex mutex_;
  size_t num_missing_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> chunks_;                      // empty: not arrived; changed under mutex_, like views_
  std::vector<std::optional<codecs::ChunkView>> views_;  // the checked view of each chunk
  std::vector<double> squares_;                          // ‖d‖² of each chunk
};

// Reads contributions for a merge: tile by tile, in unit order, each in the domain of its codec.
//
//   tensor          |unit 0|unit 1|unit 2|unit 3|unit 4|      starts on a new unit
//   tiles           |          tile 0           | 1    |      four units, small enough for the cache
//   a contribution  |  chunk 0    |  chunk 1    |  2   |      its chunks may end elsewhere than the update's
//
// Each thread of a merge has its own readers and positions them at the tiles that it takes. Owned by one thread at a
// time; the chunks live elsewhere.

// Four units: W, v, ē, x and g of a tile are 5 · 64 KiB and stay in the second-level cache.
inline constexpr int64_t kTileUnits = 4;
inline constexpr int64_t kTileValues = kTileUnits * core::kUnitValues;

// The place of a tile in the fragment: whole units, except at a tensor's end.
struct Tile {
  int64_t first_unit = 0;
  int64_t values = 0;

  int64_t first_value() const { return first_unit * core::kUnitValues; }
  int64_t end_value() const { return first_value() + values; }
  int64_t padded_values() const { return core::UnitsFor(values) * core::kUnitValues; }
  int64_t values_in_blocks() const { return core::BlocksFor(values) * core::kBlockValues; }
};

// The tile at unit `unit` of `values` values that begin at unit `first_unit` of the fragment.
inline Tile TileAt(int64_t first_unit, int64_t values, int64_t unit) {
  return {first_unit + unit, std::min(values - unit * core::kUnitValues, kTileValues)};
}

// Whether the chunks are the whole fragment, each value once, in unit order.
bool Cover(std::span<const codecs::ChunkView> chunks, const core::Fragment& fragment);

class ContributionReader {
 public:
  explicit ContributionReader(std::span<const codecs::ChunkView> chunks) : chunks_(chunks) {}

  // Sets the unit of the fragment at which the next tile begins. Costs a search among the chunks.
  void SeekTo(int64_t unit);

  // sum ← fma(weight, d, sum) over the tile, in the domain of its codec: `sum` has whole blocks. Tiles come in unit
  // order.
  void DecodeAdd(const Tile& tile, float weight, std::span<float> sum);

  // ChunkOf: the chunk that holds all of the next tile, or null. Skip: moves past that tile.
  const codecs::ChunkView* ChunkOf(const Tile& tile) const;
  void Skip(const Tile& tile);

  // The seed for the next tile, if its codec rotates. All contributions have the round's codec for a tensor.
  std::optional<uint64_t> rotation_seed() const;

 private:
  std::span<const codecs::ChunkView> chunks_;
  size_t next_ = 0;
};

// sum = Σ weight d over the tile, site by site in the order of the readers: `sum` has whole blocks, with zeros after
// the values of a codec that does not rotate. A tile that lies within one chunk of each contribution, as nearly all do,
// takes one pass.
void DecodeSum(const Tile& tile, std::span<ContributionReader> readers, std::span<const float> weights,
               std::span<float> sum);

}  // namespace causeway::server
