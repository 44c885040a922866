#include "server/merge/contribution.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "codecs/compression.h"
#include "core/check.h"

namespace causeway::server {
namespace {

std::string Describe(const codecs::ChunkSpan& span) {
  return absl::StrCat(core::CodecName(span.codec), ", ", span.values, " values from unit ", span.first_unit);
}

}  // namespace

Contribution::Contribution(std::vector<codecs::ChunkSpan> plan) : plan_(std::move(plan)), chunks_(plan_.size()) {}

absl::Status Contribution::Add(std::string bytes) {
  ASSIGN_OR_RETURN(std::string chunk, codecs::ExpandChunk(std::move(bytes)));
  ASSIGN_OR_RETURN(const codecs::ChunkView view, codecs::ChunkView::Parse(chunk));
  const auto planned =
      std::lower_bound(plan_.begin(), plan_.end(), view.span().first_unit,
                       [](const codecs::ChunkSpan& span, int64_t first_unit) { return span.first_unit < first_unit; });
  if (planned == plan_.end() || *planned != view.span()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected ", planned == plan_.end() ? "no chunk there" : Describe(*planned), ", got ", Describe(view.span())));
  }
  core::MutexLock lock(mutex_);
  std::string& place = chunks_[planned - plan_.begin()];
  if (place.empty()) place = std::move(chunk);
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

std::vector<codecs::ChunkView> Contribution::Views() const {
  std::vector<codecs::ChunkView> views;
  for (const std::string& chunk : chunks_) {
    auto view = codecs::ChunkView::Parse(chunk);
    CHECK(view.ok());  // it was, when it came in
    views.push_back(*view);
  }
  return views;
}

}  // namespace causeway::server
