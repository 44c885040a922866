#include "worker/ranks/gradient_buckets.h"

#include <algorithm>

namespace causeway::worker {

void GradientBuckets::Begin(std::span<float> gradients) {
  gradients_ = gradients;
  reduced_from_ = std::ssize(gradients);
  last_ = 0;
}

void GradientBuckets::FinalFrom(int64_t first) {
  if (group_ == nullptr || group_->world() == 1) return;
  while (reduced_from_ - first >= bucket_values_ || (first == 0 && reduced_from_ > 0)) {
    const int64_t begin = std::max<int64_t>(0, reduced_from_ - bucket_values_);
    last_ = group_->AllReduce(gradients_.subspan(begin, reduced_from_ - begin));
    reduced_from_ = begin;
  }
}

absl::Status GradientBuckets::Finish() {
  FinalFrom(0);
  return last_ == 0 ? absl::OkStatus() : group_->Await(last_, timeout_);
}

}  // namespace causeway::worker
