// The automatic delay τ of a site (fragment_sync_delay: auto): the least number of inner steps between sending a
// fragment and needing its update in which the update has come so far.
//
//   SEND ───── latency: encode, up, the slowest site, merge, down, outer step ─────► update in W ── slack ──► APPLY
//
//   τ = ceil(1.1 · longest of the fragment's last latencies / step time) + 1,  1 ≤ τ < H
//
// A fragment that was not measured yet takes the longest of the others, the very first the longest τ there is: a
// too large τ costs a little of the fragment's newest local steps, a too small one makes the site wait. What is chosen
// at a SEND holds for that round. The longest of a few counts, so that τ follows a link that got slower at once, and
// one that got faster after some rounds. Source: Streaming DiLoCo (arXiv 2501.18512, section 2.2) has τ as a constant;
// its choice from measurement is ours. One owner at a time.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <string>

#include "core/schedule.h"

namespace causeway::worker {

class SyncDelay {
 public:
  explicit SyncDelay(core::Step sync_every) : sync_every_(sync_every) {}

  struct Choice {
    core::Step delay = 0;
    std::string reason;  // "updates take 812 ms, steps 25.0 ms"
  };

  void Stepped(double seconds);  // an inner step took so long, waiting for updates not counted
  void Arrived(core::FragmentId fragment, double latency_s);
  Choice Choose(core::FragmentId fragment) const;

 private:
  const core::Step sync_every_;
  double step_s_ = 0;  // exponential average
  std::map<core::FragmentId, std::deque<double>> latencies_;
};

}  // namespace causeway::worker
