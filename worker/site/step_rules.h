// The end of an inner step, as the schedule requires: contributions are sent, and updates move θ.
//
//   synchronous   send what is due ─► move θ by each update that is due, waiting for it: the only wait, and measured
//   quorum        move θ by each update that is here ─► send what is due, unless an earlier contribution is unresolved
//
// Pure. Source: Streaming DiLoCo (arXiv 2501.18512, section 2); quorum mode: arXiv 2604.21428; docs/architecture.md.
#pragma once

#include "worker/site/site_state.h"

namespace causeway::worker {

class StepRules {
 public:
  explicit StepRules(SiteState* state) : s_(*state) {}

  void On(const event::Stepped& stepped);
  void On(const event::Completing&);
  void Moved(const FragmentRules& fragment);  // θ has an update while the site trains

  void GoOn();                                            // continues as far as it can, after any event
  bool TurnHasCome(const FragmentRules& fragment) const;  // for the update that has arrived

 private:
  void CountStep(const event::Stepped& stepped);
  void Send(FragmentRules& fragment);
  void SendDue(FragmentRules& fragment);
  bool MoveDue();  // whether some fragment still waits
  void EndStall();
  bool EvaluatesAfter(const FragmentRules& fragment) const;
  bool Completed() const;

  SiteState& s_;
};

}  // namespace causeway::worker
