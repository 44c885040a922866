// How a site joins: from the welcome to its place in the schedule.
//
// A site that was dropped from the run and joins anew keeps θ, as W plus what it trained: it applies the updates that
// it missed or, where they are gone, takes the anchor. Only where the coordinator took a contribution that the site
// does not know of (it came back from an older checkpoint) does θ start from W, so that nothing is merged twice.
//
// A site without initial values for a run (the model to start from lies on another machine) offers none and waits for
// the run's; if the coordinator asks it for them, it fails, with a message that says which site to start first.
//
// Every wait here is for a state, never for a message: anything lost is requested again at the next welcome, or after a
// while of silence. Pure.
#pragma once

#include "worker/site/site_state.h"

namespace causeway::worker {

class JoinRules {
 public:
  explicit JoinRules(SiteState* state) : s_(*state) {}

  void On(const event::Welcomed& welcome);
  void On(const event::SeedRequested&) { s_.stay.seed_requested = true; }
  void On(const event::EntryGiven& given);
  void On(const event::Joining&);
  void On(const event::AnchorPlaced& placed);
  void On(const event::Ticked&);
  void ThetaIsSet() { --s_.sets_pending; }  // for one fragment

  void GoOn();                                                         // continues as far as it can, after any event
  void AskForAnchor(FragmentRules& fragment, core::Version at_least);  // or offers the site's initial values
  // Moves θ after an update or an anchor has reached W, before the site has its place.
  void Follow(FragmentRules& fragment);

 private:
  void FillFromCheckpoint();
  void Settle();
  void Resume();
  void BeginEntering();
  void Enter();
  bool AllAnchored() const;
  bool AnyBusy() const;
  bool CaughtUp() const;

  SiteState& s_;
};

}  // namespace causeway::worker
