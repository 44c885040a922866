// Parts of flat parameters with one rule each, in order and without gaps: weight decay applies only to matrices.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace causeway::offload {

struct DecaySegment {
  int64_t count = 0;
  bool decays = true;
};

class DecaySegments {
 public:
  explicit DecaySegments(std::vector<DecaySegment> segments) : segments_(std::move(segments)) {
    for (const DecaySegment& segment : segments_) ends_.push_back(count() + segment.count);
  }

  int64_t count() const { return ends_.empty() ? 0 : ends_.back(); }

  // Calls apply(decays, first, count) for each stretch of [first, first + count) with one rule.
  template <typename Apply>
  void ForEach(int64_t first, int64_t count, const Apply& apply) const {
    auto segment = std::ranges::upper_bound(ends_, first) - ends_.begin();
    for (const int64_t end = first + count; first < end; ++segment) {
      const int64_t size = std::min(end, ends_[segment]) - first;
      if (size > 0) apply(segments_[segment].decays, first, size);
      first += size;
    }
  }

 private:
  const std::vector<DecaySegment> segments_;
  std::vector<int64_t> ends_;
};

}  // namespace causeway::offload
