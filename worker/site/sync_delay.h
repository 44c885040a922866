// The automatic delay τ of a site (fragment_sync_delay: auto): the smallest number of inner steps between sending a
// fragment and needing its update within which all updates of the last rounds arrived.
//
//   SEND ── encode, up ──► admitted ── wait for others ──► merge, down, outer step ──► update in W ── slack ──► APPLY
//
//   time of an update = t + min(wait, 3 t), where t excludes the wait
//   τ = ceil(1.1 · longest of the last times / step time) + 1,  1 ≤ τ < H
//
// Too large a τ costs a little of the fragment's newest local steps; too small a τ makes the site wait. So the longest
// time of the last three rounds over all fragments counts, since anything that delays one of them (a lost packet, a
// slow site) affects the others as well; while nothing is measured, the largest τ is used. A slower link takes effect
// at once, a faster one after three rounds. The choice at a SEND holds for that round.
//
// The wait counts only as far as it may be chance, such as a delay of other sites' transfers. A longer wait means that
// another site computes more slowly than we do, and no delay helps: covering it would only let us run further ahead,
// wait longer and ask for more. Source: Streaming DiLoCo (arXiv 2501.18512, section 2.2) has τ as a constant; its
// choice from measurement is ours. One owner at a time.
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

  void Stepped(double seconds);  // the time of an inner step, without waiting for updates
  void Arrived(double latency_s,
               double waited_s);  // counted from the send; the part of it spent admitted, waiting for others
  Choice Choose() const;

 private:
  const core::Step sync_every_;
  double step_s_ = 0;  // exponential average
  const size_t kept_;
  std::deque<double> times_;  // in seconds, newest last
};

}  // namespace causeway::worker
