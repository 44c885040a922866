#include "server/merge/contribution_reader.h"

#include "core/check.h"

namespace causeway::server {

bool Cover(std::span<const codecs::ChunkView> chunks, const core::Fragment& fragment) {
  auto chunk = chunks.begin();
  for (const core::TensorPlace& tensor : fragment.tensors) {
    for (int64_t at = 0; at < tensor.values; ++chunk) {
      const int64_t unit = tensor.first_unit + at / core::kUnitValues;
      if (at % core::kUnitValues != 0 || chunk == chunks.end() || chunk->span().first_unit != unit) return false;
      at += chunk->span().values;
      if (at > tensor.values) return false;
    }
  }
  return chunk == chunks.end();
}

void ContributionReader::SeekTo(int64_t unit) {
  const auto after = std::ranges::upper_bound(chunks_, unit, {},
                                              [](const codecs::ChunkView& chunk) { return chunk.span().first_unit; });
  CHECK(after != chunks_.begin());
  next_ = after - chunks_.begin() - 1;
}

void ContributionReader::DecodeAdd(const Tile& tile, float weight, std::span<float> sum) {
  int64_t at = tile.first_value();
  while (at < tile.end_value()) {
    CHECK(next_ < chunks_.size());
    const codecs::ChunkView& chunk = chunks_[next_];
    const int64_t chunk_end = chunk.span().first_value() + chunk.span().values;
    const int64_t end = std::min(chunk_end, tile.end_value());
    CHECK(chunk.span().first_value() <= at && at < end);  // a gap, or chunks out of order
    const int64_t count = chunk.rotates() ? core::BlocksFor(end - at) * core::kBlockValues : end - at;
    chunk.DecodeAddInDomain(at / core::kUnitValues, weight, sum.subspan(at - tile.first_value(), count));
    if (end == chunk_end) ++next_;
    at = end;
  }
}

std::optional<uint64_t> ContributionReader::rotation_seed() const {
  CHECK(next_ < chunks_.size());
  if (!chunks_[next_].rotates()) return std::nullopt;
  return chunks_[next_].span().rotation_seed;
}

}  // namespace causeway::server
