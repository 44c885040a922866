#include "core/schedule.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/check.h"

namespace causeway::core {

FragmentSchedule::FragmentSchedule(int64_t sync_every, int num_fragments, int64_t delay, std::vector<Step> offsets,
                                   FirstSend first_send)
    : sync_every_(sync_every), delay_(delay), offsets_(std::move(offsets)), first_send_(first_send) {
  CHECK(num_fragments >= 1 && delay >= 0 && delay < sync_every);
  if (offsets_.empty()) {
    CHECK(num_fragments <= sync_every);
    for (FragmentId p = 0; p < num_fragments; ++p) {
      offsets_.push_back((p + 1) * sync_every / num_fragments % sync_every);
    }
  }
  CHECK(std::ssize(offsets_) == num_fragments);
  for (Step offset : offsets_) CHECK(offset >= 0 && offset < sync_every);
}

Step FragmentSchedule::SendStep(FragmentId p, Version base) const {
  const bool waits = first_send_ == FirstSend::kFull || offsets_[p] == 0;
  return offsets_[p] + (base + (waits ? 1 : 0)) * sync_every_;
}

Version FragmentSchedule::SendsAt(FragmentId p, Step t) const {
  const Step since_first = t - SendStep(p, 0);
  return since_first >= 0 && since_first % sync_every_ == 0 ? since_first / sync_every_ : -1;
}

Version FragmentSchedule::FirstBaseAfter(FragmentId p, Step t) const {
  const Step since_first = t - SendStep(p, 0);
  return since_first < 0 ? 0 : since_first / sync_every_ + 1;
}

Step EntryStep(const FragmentSchedule& schedule, const std::vector<Version>& versions) {
  Step entry = 0;
  for (FragmentId p = 0; p < schedule.num_fragments(); ++p) {
    if (versions[p] > 0) entry = std::max(entry, schedule.SendStep(p, versions[p] - 1));
  }
  return entry;
}

}  // namespace causeway::core
