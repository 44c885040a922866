// Reads contributions for a merge: tile by tile, in unit order, each in the domain of its codec.
//
//   tensor          |unit 0|unit 1|unit 2|unit 3|unit 4|      starts on a new unit
//   tiles           |          tile 0           | 1    |      four units, small enough for the cache
//   a contribution  |  chunk 0    |  chunk 1    |  2   |      its chunks may end elsewhere than the update's
//
// Each thread of a merge has its own readers and positions them at the tiles that it takes. Owned by one thread at a
// time; the chunks live elsewhere.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>

#include "codecs/chunk.h"
#include "core/fragment_map.h"
#include "core/layout.h"

namespace causeway::server {

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

  // The chunk that holds all of the next tile, or null; and moving on past that tile.
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
