#include "core/schedule.h"

#include <algorithm>

#include "core/check.h"

namespace causeway::core {

FragmentSchedule::FragmentSchedule(int64_t sync_every, int num_fragments, int64_t delay)
    : sync_every_(sync_every), num_fragments_(num_fragments), delay_(delay) {
  CHECK(num_fragments >= 1 && num_fragments <= sync_every);
  CHECK(delay >= 0 && delay < sync_every);
}

Step FragmentSchedule::Offset(FragmentId p) const { return (p + 1) * sync_every_ / num_fragments_ % sync_every_; }

Step FragmentSchedule::SendStep(FragmentId p, Version base) const { return Offset(p) + (base + 1) * sync_every_; }

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
