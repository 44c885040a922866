#include "worker/data/corpus.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_format.h"
#include "core/check.h"
#include "core/random.h"

namespace causeway::worker {
namespace {

constexpr int64_t kMaxSegments = 1024;  // fine enough that sites get even shares, coarse enough to stay readable text
constexpr int64_t kWindowsPerSegment = 4;  // so that a segment gives more than one row

uint64_t Score(uint64_t seed, const core::SiteId& site, int64_t segment) {
  return core::HashCombine(core::HashCombine(seed, site), static_cast<uint64_t>(segment));
}

// Gives a site without segments the one it scores highest among those of owners that keep at least one.
void TakeOne(uint64_t seed, const core::SiteId& site, std::vector<std::vector<int64_t>>& owned, size_t taker) {
  std::vector<int64_t>* owner = nullptr;
  int64_t best = -1;
  for (std::vector<int64_t>& segments : owned) {
    if (segments.size() < 2) continue;
    for (int64_t segment : segments) {
      if (best >= 0 && Score(seed, site, segment) <= Score(seed, site, best)) continue;
      best = segment;
      owner = &segments;
    }
  }
  CHECK(owner != nullptr);  // there are at least as many segments as sites
  std::erase(*owner, best);
  owned[taker].push_back(best);
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Corpus>> Corpus::Open(const std::string& path, const formats::TokenFormat& format,
                                                           int64_t sequence, double held_out, core::DataMode mode,
                                                           const std::string& held_out_path) {
  ASSIGN_OR_RETURN(formats::TokenFile tokens, formats::TokenFile::Open(path, format, held_out_path));
  const int64_t most_segments = mode == core::DataMode::kOwn ? 1 : kMaxSegments;
  std::shared_ptr<const Corpus> corpus(new Corpus(std::move(tokens), path, sequence, held_out, most_segments));
  const bool can_evaluate = held_out == 0 || corpus->held_out().size() >= corpus->window();
  if (corpus->num_segments_ < 1 || !can_evaluate) return corpus->TooSmall(1);
  return corpus;
}

absl::StatusOr<std::shared_ptr<const Corpus>> Corpus::OpenHeldOut(const std::string& path,
                                                                  const formats::TokenFormat& format,
                                                                  int64_t sequence) {
  ASSIGN_OR_RETURN(formats::TokenFile tokens, formats::TokenFile::Open(path, format));
  std::shared_ptr<const Corpus> corpus(new Corpus(std::move(tokens), path, sequence, /*held_out=*/1, 0));
  if (corpus->size() >= corpus->window()) return corpus;
  return absl::InvalidArgumentError(absl::StrFormat("%s: expected at least %d tokens for a sequence of %d, got %d",
                                                    path, corpus->window(), sequence, corpus->size()));
}

Corpus::Corpus(formats::TokenFile tokens, std::string path, int64_t sequence, double held_out, int64_t most_segments)
    : tokens_(std::move(tokens)), path_(std::move(path)), sequence_(sequence), held_out_share_(held_out) {
  held_out_begin_ = size() - static_cast<int64_t>(static_cast<double>(size()) * held_out);
  num_segments_ = std::min(most_segments, held_out_begin_ / (kWindowsPerSegment * window()));
}

absl::Status Corpus::TooSmall(int64_t sites) const {
  const double for_training = static_cast<double>(sites * kWindowsPerSegment * window()) / (1 - held_out_share_);
  const double for_evaluation = held_out_share_ == 0 ? 0 : static_cast<double>(window()) / held_out_share_;
  const auto needed = static_cast<int64_t>(std::ceil(std::max(for_training, for_evaluation)));
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: expected at least %d tokens for %d site(s), sequences of %d tokens and %g held out, got %d",
                      path_, needed, sites, sequence_, held_out_share_, size()));
}

Corpus::Range Corpus::Segment(int64_t i) const {
  return {i * held_out_begin_ / num_segments_, (i + 1) * held_out_begin_ / num_segments_};
}

absl::StatusOr<std::vector<std::vector<int64_t>>> Corpus::AssignSegments(uint64_t seed,
                                                                         const std::vector<core::SiteId>& sites) const {
  CHECK(!sites.empty());
  if (static_cast<int64_t>(sites.size()) > num_segments_) return TooSmall(static_cast<int64_t>(sites.size()));
  std::vector<std::vector<int64_t>> owned(sites.size());
  for (int64_t segment = 0; segment < num_segments_; ++segment) {
    const auto owner = std::ranges::max_element(
        sites, {}, [&](const core::SiteId& site) { return std::pair(Score(seed, site, segment), site); });
    owned[owner - sites.begin()].push_back(segment);
  }
  std::vector<size_t> by_name(sites.size());  // every site must come to the same result, in whatever order it has them
  std::iota(by_name.begin(), by_name.end(), 0);
  std::ranges::sort(by_name, {}, [&](size_t i) { return sites[i]; });
  for (size_t i : by_name) {
    if (owned[i].empty()) TakeOne(seed, sites[i], owned, i);
  }
  return owned;
}

int64_t Corpus::HeldOutWindow(int64_t i, int64_t count) const {
  const int64_t last_start = held_out().size() - window();
  CHECK(last_start >= 0);  // something is held out
  return held_out_begin_ + (count > 1 ? i * last_start / (count - 1) : 0);
}

void Corpus::AppendRow(int64_t begin, Batch& batch) const {
  for (int64_t i = begin; i < begin + sequence_; ++i) {
    batch.tokens.push_back(tokens_[i]);
    batch.targets.push_back(tokens_[i + 1]);
  }
}

}  // namespace causeway::worker
