// The rules of a site: what it does when something happens, as a pure function of (state, event, now). No network, no
// lock, no thread, no time of its own, so that a week of churn runs in seconds in a test.
//
//   event ─► SiteRules ─┬─ JoinRules   from the welcome to a place in the schedule (join_rules.h)
//                       ├─ StepRules   what the schedule wants at the end of a step (step_rules.h)
//                       └─ transfers and arrays of each fragment (fragment_rules.h) ─► actions
//
// Events of one site come one at a time, with times that do not go back; the actions of an event are carried out in
// order, each by the thread that it belongs to (site_events.h), and what they bring comes back as events. Times are
// microseconds of the caller's monotonic time. One owner at a time. Source: docs/architecture.md.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "transport/coordinator_link.h"
#include "worker/site/join_rules.h"
#include "worker/site/site_state.h"
#include "worker/site/step_rules.h"

namespace causeway::worker {

class SiteRules {
 public:
  SiteRules(const core::RunConfig& config, core::SiteId site);

  // Before the first event: what the site says of its data when it joins.
  void SetData(const core::SiteData& data) { s_.data = data; }
  // Before the first event: goes on from a checkpoint.
  void Restore(SiteFacts facts);
  // Before the first event: the site has no values that a run could begin with, for this reason.
  void HasNoInitialValues(absl::Status why) { s_.initial_values = std::move(why); }

  SiteActions Handle(const SiteEvent& event, int64_t now_us);

  // What the step thread does when it has carried out its actions.
  enum class Turn {
    kWait,    // for an event
    kGoOn,    // takes the next step
    kJoin,    // has no place in the run: says that it waits for one
    kFailed,  // see failure(); also when it was asked to stop
    kDone,    // all rounds that it waited for are complete
  };
  Turn turn() const;

  const SiteState& state() const { return s_; }
  absl::Status failure() const;
  // What the link tells the coordinator of the site, whenever it joins.
  transport::Standing GetStanding() const;
  core::Version CompletedRounds() const;  // that θ has, of all fragments
  // What a checkpoint needs. Between tasks, and only while CanBeSaved: θ is W and what was trained.
  SiteFacts Facts() const;
  bool CanBeSaved() const { return s_.stay.stage == Stage::kTraining; }
  // Whether what a download brings is still waited for.
  bool Awaits(const event::Fetched& fetched) const;

 private:
  void On(const event::Welcomed& event) { join_.On(event); }
  void On(const event::SeedRequested& event) { join_.On(event); }
  void On(const event::EntryGiven& event) { join_.On(event); }
  void On(const event::Joining& event) { join_.On(event); }
  void On(const event::AnchorPlaced& event) { join_.On(event); }
  void On(const event::Ticked& event) { join_.On(event); }
  void On(const event::Stepped& event) { step_.On(event); }
  void On(const event::Completing& event) { step_.On(event); }
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
