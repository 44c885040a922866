#include "server/merge/contribution_reader.h"

#include <vector>

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

const codecs::ChunkView* ContributionReader::ChunkOf(const Tile& tile) const {
  CHECK(next_ < chunks_.size());
  const codecs::ChunkSpan& span = chunks_[next_].span();
  const bool whole = span.first_unit <= tile.first_unit && tile.end_value() <= span.first_value() + span.values;
  return whole ? &chunks_[next_] : nullptr;
}

void ContributionReader::Skip(const Tile& tile) {
  const codecs::ChunkSpan& span = chunks_[next_].span();
  if (tile.end_value() == span.first_value() + span.values) ++next_;
}

void DecodeSum(const Tile& tile, std::span<ContributionReader> readers, std::span<const float> weights,
               std::span<float> sum) {
  std::vector<codecs::DecodeTerm> terms;
  const codecs::Codec* codec = nullptr;
  for (size_t m = 0; m < readers.size(); ++m) {
    const codecs::ChunkView* chunk = readers[m].ChunkOf(tile);
    if (chunk == nullptr || (m > 0 && &chunk->codec() != codec)) break;
    codec = &chunk->codec();
    terms.push_back(chunk->TermAt(tile.first_unit, tile.values, weights[m]));
  }
  if (terms.size() < readers.size()) {
    std::fill(sum.begin(), sum.end(), 0.0f);
    for (size_t m = 0; m < readers.size(); ++m) readers[m].DecodeAdd(tile, weights[m], sum);
    return;
  }
  codec->DecodeSum(terms, tile.values, sum.data());
  if (!codec->rotates()) std::fill(sum.begin() + tile.values, sum.end(), 0.0f);
  for (ContributionReader& reader : readers) reader.Skip(tile);
}

std::optional<uint64_t> ContributionReader::rotation_seed() const {
  CHECK(next_ < chunks_.size());
  if (!chunks_[next_].rotates()) return std::nullopt;
  return chunks_[next_].span().rotation_seed;
}

}  // namespace causeway::server
