#include "server/merge/contribution.h"

#include <algorithm>
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

}  // namespace causeway::server
