// The rules of a site: its response to each event, as a pure function of (state, event, now). No network, lock, thread
// or clock, so that a week of churn runs in seconds in a test.
//
//   event ─► SiteRules ─┬─ JoinRules   from the welcome to a place in the schedule (join_rules.h)
//                       ├─ StepRules   what the schedule wants at the end of a step (step_rules.h)
//                       └─ transfers and arrays of each fragment (fragment_rules.h) ─► actions
//
// Events of one site come one at a time, with times that do not decrease; the actions of an event are carried out in
// order, each by the thread that it belongs to (site_events.h), and their results come back as events. Times are
// microseconds of the caller's monotonic clock. One owner at a time. Source: docs/membership.md.
#pragma once

#include <string>
#include <utility>

#include "transport/coordinator_link.h"
#include "worker/site/join_rules.h"
#include "worker/site/site_state.h"

namespace causeway::worker {

// The end of an inner step, as the schedule requires: contributions are sent, and updates move θ.
//
//   synchronous   send what is due ─► move θ by each update that is due, waiting for it: the only wait, and measured
//   quorum        move θ by each update that is here ─► send what is due, unless an earlier contribution is unresolved
//
// Pure. Source: Streaming DiLoCo (arXiv 2501.18512, section 2); quorum mode: arXiv 2604.21428; docs/architecture.md.
class StepRules {
 public:
  explicit StepRules(SiteState* state) : s_(*state) {}

  void On(const event::Stepped& stepped);
  void On(const event::TrainingDone&);
  void Moved(const FragmentRules& fragment);  // θ has an update while the site trains

  void GoOn();                                            // continues as far as it can, after any event
  bool TurnHasCome(const FragmentRules& fragment) const;  // its update that has arrived may move θ

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

class SiteRules {
 public:
  SiteRules(const core::RunConfig& config, core::SiteId site);

  // Before the first event: sets the data that the site declares when it joins.
  void SetData(const core::SiteData& data) { s_.data = data; }
  // Before the first event: continues from a checkpoint.
  void Restore(SiteFacts facts);
  // Before the first event: the site has no initial values for a run, for this reason.
  void HasNoInitialValues(absl::Status why) { s_.initial_values = std::move(why); }

  SiteActions Handle(const SiteEvent& event, int64_t now_us);

  // The step thread's next move once it has carried out its actions.
  enum class Turn {
    kWait,    // wait for an event
    kGoOn,    // take the next step
    kJoin,    // the site has no place in the run: announce that it waits for one
    kFailed,  // see failure(); also after a requested stop
    kDone,    // all awaited rounds are complete
  };
  Turn turn() const;

  const SiteState& state() const { return s_; }
  absl::Status failure() const;
  // The site's standing, which the link sends to the coordinator whenever it joins.
  transport::Standing GetStanding() const;
  core::Version CompletedRounds() const;  // completed in θ by all fragments
  // The facts that a checkpoint needs. To be called between tasks, and only while CanBeSaved: θ is W plus the local
  // training.
  SiteFacts Facts() const;
  bool CanBeSaved() const { return s_.stay.stage == Stage::kTraining; }
  // Whether the result of this download is still awaited.
  bool Awaits(const event::Fetched& fetched) const;

 private:
  void On(const event::Welcomed& event) { join_.On(event); }
  void On(const event::SeedRequested& event) { join_.On(event); }
  void On(const event::EntryGiven& event) { join_.On(event); }
  void On(const event::Joining& event) { join_.On(event); }
  void On(const event::AnchorPlaced& event) { join_.On(event); }
  void On(const event::Ticked& event) { join_.On(event); }
  void On(const event::Stepped& event) { step_.On(event); }
  void On(const event::TrainingDone& event) { step_.On(event); }
  void On(const event::Held& event) { s_.held = event.held; }
  void On(const event::Failed& event) { s_.Fail(event.status); }
  void On(const event::StopRequested&) { s_.stopping = true; }
  void On(const event::Copied& event);
  void On(const event::Encoded& event);
  void On(const event::VerdictGiven& event);
  void On(const event::FetchBegan& event);
  void On(const event::Offered& event);
  void On(const event::Fetched& event);
  void On(const event::UpdateTaken& event);
  void On(const event::Moved& event);
  void FetchFailed(FragmentRules& fragment, const absl::Status& status);
  void LoseAnchor(FragmentRules& fragment, const std::string& why);

  SiteState s_;
  JoinRules join_{&s_};
  StepRules step_{&s_};
};

}  // namespace causeway::worker
