#include "server/merge/contribution.h"

#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "codecs/compression.h"
#include "core/check.h"

namespace causeway::server {

Contribution::Contribution(std::vector<codecs::ChunkSpan> plan)
    : plan_(std::move(plan)),
      num_missing_(plan_.size()),
      chunks_(plan_.size()),
      views_(plan_.size()),
      squares_(plan_.size()) {}

absl::Status Contribution::Add(std::string bytes) {
  ASSIGN_OR_RETURN(std::string chunk, codecs::ExpandChunk(std::move(bytes)));
  ASSIGN_OR_RETURN(const codecs::ChunkView view, codecs::ChunkView::Parse(chunk));
  const auto planned =
      std::lower_bound(plan_.begin(), plan_.end(), view.span().first_unit,
                       [](const codecs::ChunkSpan& span, int64_t first_unit) { return span.first_unit < first_unit; });
  if (planned == plan_.end() || *planned != view.span()) {
    const std::string got = codecs::Describe(view.span());
    const std::string text = planned == plan_.end()
                                 ? absl::StrCat("unexpected chunk: ", got, " lies beyond the fragment")
                                 : absl::StrCat("expected ", codecs::Describe(*planned), ", got ", got);
    const bool other_codec = planned != plan_.end() && planned->codec != view.span().codec;
    return other_codec ? absl::FailedPreconditionError(text) : absl::InvalidArgumentError(text);
  }
  const double squares = view.SumSquares();
  core::MutexLock lock(mutex_);
  const auto index = planned - plan_.begin();
  if (!chunks_[index].empty()) return absl::OkStatus();
  chunks_[index] = std::move(chunk);  // the view stays valid: the bytes do not move
  views_[index] = view;
  squares_[index] = squares;
  --num_missing_;
  return absl::OkStatus();
}

std::vector<int> Contribution::Missing() const {
  core::MutexLock lock(mutex_);
  std::vector<int> missing;
  for (size_t i = 0; i < chunks_.size(); ++i) {
    if (chunks_[i].empty()) missing.push_back(static_cast<int>(i));
  }
  return missing;
}

bool Contribution::complete() const {
  core::MutexLock lock(mutex_);
  return num_missing_ == 0;
}

std::vector<codecs::ChunkView> Contribution::Views() const {
  CHECK(complete());
  std::vector<codecs::ChunkView> views;
  for (const std::optional<codecs::ChunkView>& view : views_) views.push_back(*view);
  return views;
}

double Contribution::Norm() const {
  CHECK(complete());
  return std::sqrt(std::accumulate(squares_.begin(), squares_.end(), 0.0));
}

const std::vector<std::string>& Contribution::chunks() const {
  CHECK(complete());
  return chunks_;
}

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
    CHECK(chunk.span().first_value() <= at && at < end);  // else a gap, or chunks out of order
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
