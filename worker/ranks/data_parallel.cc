#include "worker/ranks/data_parallel.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/check.h"
#include "worker/ranks/late_mean.h"

namespace causeway::worker {

absl::Status RankFailure(const absl::Status& status) {
  return status.ok() ? status : absl::InternalError(status.message());
}

void DataParallel::Begin(std::span<float> gradients) {
  gradients_ = gradients;
  reduced_from_ = std::ssize(gradients);
  last_ = 0;
}

void DataParallel::FinalFrom(int64_t first) {
  if (world() == 1) return;
  while (reduced_from_ - first >= bucket_values_ || (first == 0 && reduced_from_ > 0)) {
    const int64_t begin = std::max<int64_t>(0, reduced_from_ - bucket_values_);
    last_ = ranks_.gradients()->AllReduce(gradients_.subspan(begin, reduced_from_ - begin));
    reduced_from_ = begin;
  }
}

absl::Status DataParallel::Finish() {
  FinalFrom(0);
  if (last_ == 0) return absl::OkStatus();
  return RankFailure(ranks_.gradients()->Await(last_, TimeoutOf(ranks_.timeout_s)));
}

absl::StatusOr<std::vector<RankStep>> DataParallel::Share(RankStep mine) {
  std::vector<RankStep> steps(world());
  mine.stop_requested = ranks_.stop_requested != nullptr && ranks_.stop_requested();
  steps[rank()] = mine;
  if (world() > 1) {
    const Collectives::Ticket ticket =
        ranks_.values->AllGather(BytesOf(std::span<const RankStep>(&mine, 1)), BytesOf(std::span(steps)));
    RETURN_IF_ERROR(RankFailure(ranks_.values->Await(ticket, TimeoutOf(ranks_.timeout_s))));
    Note(steps);
  }
  return steps;
}

void DataParallel::Note(const std::vector<RankStep>& steps) {
  late_step_s_.resize(steps.size());
  for (size_t rank = 0; rank < steps.size(); ++rank) {
    AddToLateMean(steps[rank].compute_s, late_step_s_[rank]);
    stop_requested_ = stop_requested_ || steps[rank].stop_requested;
  }
  int64_t sent = ranks_.values->sent_bytes();
  if (ranks_.device_values != nullptr) sent += ranks_.device_values->sent_bytes();
  const auto slowest = std::ranges::max_element(late_step_s_);
  progress_ = {.ranks = world(),
               .hosts = ranks_.hosts,
               .slowest = ranks_.values->NameOf(static_cast<int>(slowest - late_step_s_.begin())),
               .slowest_step_s = *slowest,
               .standing_still = {},
               .step_bytes = static_cast<double>(sent - std::exchange(sent_bytes_, sent)),
               .onebit_adam = {},
               .levels = {}};
}

}  // namespace causeway::worker
