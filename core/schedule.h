// When a site sends and applies each fragment (Streaming DiLoCo, arXiv 2501.18512, section 2; docs/architecture.md).
//
//   inner step t    1 ........ H ....... H+t_p ........ H+t_p+τ ........ 2H+t_p ....
//   fragment p                           SEND v=0       APPLY v=0        SEND v=1
//
// Every fragment is sent once in H steps, at its own offset t_p, so that the link is busy evenly; the update is mixed
// in τ steps later, so that nobody waits for the link. Pure arithmetic on steps; no state, thread-safe.
#pragma once

#include <cstdint>
#include <vector>

namespace causeway::core {

using FragmentId = int32_t;  // 0 … P−1
using Version = int64_t;     // version v of a fragment: how many rounds made it; 0 is the initial parameters
using Step = int64_t;        // inner steps, counted from 1; 0 is "before the first"

// Where the first send of a fragment is: after a whole interval H more than its offset, or at its offset, of which 0
// counts as H.
enum class FirstSend { kFull, kOffset };

class FragmentSchedule {
 public:
  // Needs 1 ≤ num_fragments ≤ sync_every and 0 ≤ delay < sync_every; anything else is the caller's bug.
  FragmentSchedule(int64_t sync_every, int num_fragments, int64_t delay);

  int num_fragments() const { return num_fragments_; }
  int64_t delay() const { return delay_; }

  Step Offset(FragmentId p) const;  // t_p = floor((p+1) H / P) mod H

  // The step after which the contribution to version v → v+1 is sent, and the one at whose end its update is mixed in.
  Step SendStep(FragmentId p, Version base) const;
  Step ApplyStep(FragmentId p, Version base) const { return SendStep(p, base) + delay_; }

  // The base version that is sent (applied) at the end of step t, or −1. For one step, sends come before applies.
  Version SendsAt(FragmentId p, Step t) const;
  Version AppliesAt(FragmentId p, Step t) const { return SendsAt(p, t - delay_); }

  // The first base version whose send step is after t: what a site that joins at step t contributes first.
  Version FirstBaseAfter(FragmentId p, Step t) const;

 private:
  int64_t sync_every_;
  int num_fragments_;
  int64_t delay_;
};

// The step at which a joiner enters a run: the latest send step of which the outcome is decided, where versions[p]
// counts the decided rounds of fragment p. 0 for a run in which nothing was decided yet.
Step EntryStep(const FragmentSchedule& schedule, const std::vector<Version>& versions);

}  // namespace causeway::core
