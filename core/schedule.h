// When a site sends and applies each fragment (Streaming DiLoCo, arXiv 2501.18512, section 2; docs/architecture.md).
//
//   inner step t    1 ........ H ....... H+t_p ........ H+t_p+τ ........ 2H+t_p ....
//   fragment p                           SEND v=0       APPLY v=0        SEND v=1
//
// Every fragment is sent once in H steps, at its own offset t_p, so that the link is used evenly; the update is mixed
// in τ steps later, so that no site waits for the link. Pure arithmetic on steps; immutable, thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "core/ids.h"

namespace causeway::core {

// When a fragment is first sent: at step H + t_p, or at step t_p, where 0 counts as H.
enum class FirstSend { kFull, kOffset };

class FragmentSchedule {
 public:
  // Needs 1 ≤ num_fragments, 0 ≤ delay < sync_every, and 0 ≤ t_p < sync_every for each fragment; anything else is a bug
  // of the caller. Without offsets, t_p = floor((p+1) H / P) mod H, and num_fragments is at most sync_every.
  FragmentSchedule(int64_t sync_every, int num_fragments, int64_t delay, std::vector<Step> offsets = {},
                   FirstSend first_send = FirstSend::kFull);

  int num_fragments() const { return static_cast<int>(offsets_.size()); }
  int64_t delay() const { return delay_; }

  Step Offset(FragmentId p) const { return offsets_[p]; }  // t_p

  // The step after which the contribution to version v → v+1 is sent, and the step at whose end its update is mixed in.
  Step SendStep(FragmentId p, Version base) const;
  Step ApplyStep(FragmentId p, Version base) const { return SendStep(p, base) + delay_; }

  // The base version sent at the end of step t, or −1. Within a step, sends come before applies.
  Version SendsAt(FragmentId p, Step t) const;

  // The first base version whose send step is after t: the first contribution of a site that joins at step t.
  Version FirstBaseAfter(FragmentId p, Step t) const;

 private:
  int64_t sync_every_;
  int64_t delay_;
  std::vector<Step> offsets_;
  FirstSend first_send_;
};

// The step at which a joiner enters a run: the latest send step whose round is decided, where versions[p] counts the
// decided rounds of fragment p. 0 for a run without a decided round.
Step EntryStep(const FragmentSchedule& schedule, const std::vector<Version>& versions);

}  // namespace causeway::core
