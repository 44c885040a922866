// The automatic delay τ of a site (fragment_sync_delay: auto): the least number of inner steps between sending a
// fragment and needing its update in which all updates of the last rounds have come.
//
//   SEND ── encode, up ──► admitted ── wait for others ──► merge, down, outer step ──► update in W ── slack ──► APPLY
//
//   time of an update = t + min(wait, 3 t), where t is all but the wait
//   τ = ceil(1.1 · longest of the last times / step time) + 1,  1 ≤ τ < H
//
// A too large τ costs a little of the fragment's newest local steps, a too small one makes the site wait. So the
// longest of the last three rounds counts, of all fragments: what delays one of them (a lost packet, a slow site) meets
// the others as well; and while nothing is measured, the longest τ there is. A link that got slower is followed at
// once, one that got faster after three rounds. What is chosen at a SEND holds for that round.
//
// The wait counts as far as it may be chance: what delays others' transfers. Beyond that somebody computes more slowly
// than we do, and no delay helps: one that covered it would only let us run further ahead, wait longer and ask for
// more. Source: Streaming DiLoCo (arXiv 2501.18512, section 2.2) has τ as a constant; its choice from measurement is
// ours. One owner at a time.
#pragma once

#include <cstddef>
#include <deque>
#include <string>

#include "core/schedule.h"

namespace causeway::worker {

class SyncDelay {
 public:
  SyncDelay(core::Step sync_every, int num_fragments);

  struct Choice {
    core::Step delay = 0;
    std::string reason;  // "updates take 812 ms, steps 25.0 ms"
  };

  void Stepped(double seconds);                     // an inner step took so long, waiting for updates not counted
  void Arrived(double latency_s, double waited_s);  // from the send on; of that so long for others, admitted
  Choice Choose() const;

 private:
  const core::Step sync_every_;
  double step_s_ = 0;  // exponential average
  const size_t kept_;
  std::deque<double> times_;  // in seconds, newest last
};

}  // namespace causeway::worker
