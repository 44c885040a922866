#include "worker/site/site_rules.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace causeway::worker {

// ---- The end of a step ----

void StepRules::On(const event::Stepped& stepped) {
  if (s_.reported == stepped.step) {  // the same call again, after a timeout
    s_.trained.tokens += stepped.tokens;
    return;
  }
  s_.reported = stepped.step;
  CountStep(stepped);
  s_.end = StepEnd{.step = stepped.step};
  if (s_.stay.stage != Stage::kTraining) return;
  if (s_.synchronous()) {
    for (FragmentRules& fragment : s_.fragments) {
      const core::Version scheduled = s_.schedule.SendsAt(fragment.id(), stepped.step);
      if (scheduled < 0 || scheduled < fragment.facts().first) continue;
      // The run continued without this site before it learned of its place, or of losing it.
      if (fragment.facts().version > scheduled) {
        s_.Do(action::Say{absl::StrCat("fragment ", fragment.id(), ": version ", scheduled, " is due, and ",
                                       fragment.facts().version, " is here: the run went on without this site")});
        return s_.LosePlace();
      }
      if (fragment.facts().version != scheduled || !fragment.MayBegin()) {
        return s_.Fail(absl::InternalError(
            absl::StrCat("step ", stepped.step, " sends version ", scheduled, " of fragment ", fragment.id(),
                         ", this site holds ", fragment.facts().version, " and ", OutgoingName(fragment.outgoing()),
                         ": the place that it was given does not fit the schedule")));
      }
      Send(fragment);
    }
    return;
  }
  for (FragmentRules& fragment : s_.fragments) {
    if (fragment.incoming() == Incoming::kTaken) s_.Do(fragment.Move());
  }
  s_.end->sends_due = true;
}

void StepRules::CountStep(const event::Stepped& stepped) {
  ++s_.trained.steps;
  s_.trained.tokens += stepped.tokens;
  s_.step = stepped.step;
  const double waited_s = s_.counts.stall_s - std::exchange(s_.stalled_at_step_s, s_.counts.stall_s);
  if (s_.stepped_us) s_.delay.Stepped(std::max(0.0, Seconds(s_.now_us - *s_.stepped_us) - waited_s));
  s_.stepped_us = s_.now_us;
}

void StepRules::GoOn() {
  if (s_.stay.stage == Stage::kCompleting && Completed()) {
    s_.stay.stage = Stage::kCompleted;
    const bool evaluates = s_.MayEvaluate(
        std::ranges::any_of(s_.fragments, [](const FragmentRules& fragment) { return fragment.evaluates(); }));
    if (evaluates) s_.Do(action::Evaluate{});
  }
  if (!s_.end || s_.stay.stage != Stage::kTraining) return;
  if (MoveDue()) return;
  if (s_.end->sends_due) {
    s_.end->sends_due = false;
    for (FragmentRules& fragment : s_.fragments) SendDue(fragment);
  }
  if (s_.held) {
    if (s_.stepped_us) s_.Do(action::Say{"the run is paused: holds"});
    s_.stepped_us.reset();
  } else {
    s_.end.reset();
  }
}

// Synchronous: an update that is due and not here yet stalls the step loop.
bool StepRules::MoveDue() {
  bool moving = false, missing = false;
  for (FragmentRules& fragment : s_.fragments) {
    if (s_.synchronous() && s_.ApplyStep(fragment) <= s_.end->step) {
      if (fragment.incoming() == Incoming::kTaken) {
        const double stall_s = s_.end->stalled_since_us ? Seconds(s_.now_us - *s_.end->stalled_since_us) : 0;
        fragment.NoteNeeded(s_.now_us, stall_s);
        s_.Do(fragment.Move());
      }
      missing |= fragment.incoming() < Incoming::kTaken;
    }
    moving |= fragment.incoming() == Incoming::kMoving;
  }
  if (missing && !s_.end->stalled_since_us) s_.end->stalled_since_us = s_.now_us;
  if (!missing) EndStall();
  return moving || missing;
}

void StepRules::EndStall() {
  if (!s_.end->stalled_since_us) return;
  s_.counts.stall_s += Seconds(s_.now_us - *s_.end->stalled_since_us);
  s_.end->stalled_since_us.reset();
}

void StepRules::SendDue(FragmentRules& fragment) {
  if (s_.schedule.SendsAt(fragment.id(), s_.end->step) >= 0) {
    if (fragment.facts().sent || fragment.facts().version < fragment.facts().first) {
      ++s_.counts.skipped;
    } else if (fragment.outgoing() == Outgoing::kNone) {
      fragment.Due();
    }
  }
  const bool still = !fragment.busy() && fragment.facts().version == fragment.facts().applied;
  if (fragment.outgoing() == Outgoing::kDue && still) Send(fragment);  // otherwise after the next step
}

void StepRules::Send(FragmentRules& fragment) {
  fragment.Begin(s_.trained, s_.now_us);
  s_.ChooseDelay(fragment);
  ++s_.counts.sent;
  s_.Do(action::ReadTheta{fragment.id()});
}

bool StepRules::TurnHasCome(const FragmentRules& fragment) const {
  if (fragment.busy()) return false;
  switch (s_.stay.stage) {
    case Stage::kAnchoring:
    case Stage::kReady:
    case Stage::kCatchingUp:
    case Stage::kCompleting: return true;
    // Synchronous: a site that repeats steps from a checkpoint first sends the contribution that this update has
    // already merged.
    case Stage::kTraining: return !s_.synchronous() || fragment.HadItsTurn();
    default: return false;
  }
}

void StepRules::Moved(const FragmentRules& fragment) {
  s_.sites = fragment.facts().sites;
  if (EvaluatesAfter(fragment)) s_.Do(action::Evaluate{});
}

// After every `every_rounds` rounds of all fragments; where all sites have the same data, the site that comes first in
// the update that completes them.
bool StepRules::EvaluatesAfter(const FragmentRules& fragment) const {
  const int64_t every = s_.config.eval.every_rounds;
  const core::Version applied = fragment.facts().applied;
  if (every == 0 || !s_.MayEvaluate(fragment.evaluates()) || applied % every != 0) return false;
  return std::ranges::all_of(s_.fragments,
                             [&](const FragmentRules& other) { return other.facts().applied >= applied; });
}

// ---- The end of the run ----

void StepRules::On(const event::TrainingDone&) {
  if (s_.stay.stage != Stage::kTraining) return;
  s_.stay.stage = Stage::kCompleting;
  for (FragmentRules& fragment : s_.fragments) {
    fragment.StopFollowing();
    if (fragment.outgoing() == Outgoing::kDue) fragment.GiveUp();
    if (fragment.incoming() != Incoming::kTaken) continue;
    fragment.Moved();
    s_.Do(fragment.AskForUpdate(s_.stay.number));
  }
}

bool StepRules::Completed() const {
  return std::ranges::all_of(s_.fragments, [this](const FragmentRules& fragment) {
    if (!s_.synchronous()) return !fragment.facts().sent;
    const FragmentFacts& facts = fragment.facts();
    // Sent, or awaited as a joiner: the update of this round is still to come.
    return facts.version >= facts.first && s_.schedule.SendStep(fragment.id(), facts.version) > s_.step;
  });
}

const char* StageName(Stage stage) {
  switch (stage) {
    case Stage::kOutside: return "outside";
    case Stage::kUnsettled: return "unsettled";
    case Stage::kAnchoring: return "anchoring";
    case Stage::kReady: return "ready";
    case Stage::kCatchingUp: return "catching up";
    case Stage::kEntering: return "entering";
    case Stage::kTraining: return "training";
    case Stage::kLost: return "lost";
    case Stage::kCompleting: return "completing";
    case Stage::kCompleted: return "completed";
  }
  return "?";
}

void SiteState::ChooseDelay(FragmentRules& fragment) const {
  if (!config.sync.auto_delay()) return fragment.ChooseDelay(schedule.delay(), "");
  SyncDelay::Choice choice = delay.Choose();
  fragment.ChooseDelay(choice.delay, std::move(choice.reason));
}

SiteRules::SiteRules(const core::RunConfig& config, core::SiteId site) : s_(config, std::move(site)) {}

void SiteRules::Restore(SiteFacts facts) {
  s_.step = facts.step;
  s_.trained = facts.trained;
  s_.sites = facts.sites;
  s_.restored = std::move(facts);
}

SiteActions SiteRules::Handle(const SiteEvent& event, int64_t now_us) {
  s_.now_us = std::max(s_.now_us, now_us);
  std::visit([this](const auto& happened) { On(happened); }, event);
  if (s_.failure.ok()) {
    join_.GoOn();
    step_.GoOn();
    for (FragmentRules& fragment : s_.fragments) {
      if (fragment.incoming() != Incoming::kArrived || !step_.TurnHasCome(fragment)) continue;
      s_.Do(fragment.Take(s_.synchronous(), fragment.keeps_local()));
    }
  }
  return std::exchange(s_.actions, {});
}

// ---- Questions ----

absl::Status SiteRules::failure() const {
  if (!s_.failure.ok() || !s_.stopping) return s_.failure;
  return absl::CancelledError("asked to stop");
}

SiteRules::Turn SiteRules::turn() const {
  if (!failure().ok()) return Turn::kFailed;
  switch (s_.stay.stage) {
    case Stage::kCompleting: return Turn::kWait;
    case Stage::kCompleted: return Turn::kDone;
    case Stage::kTraining: return s_.end ? Turn::kWait : Turn::kGoOn;
    default: return s_.stay.waited_for ? Turn::kWait : Turn::kJoin;
  }
}

transport::Standing SiteRules::GetStanding() const {
  transport::Standing standing;
  standing.data = s_.data;
  standing.joining = (s_.stay.stage == Stage::kAnchoring || s_.stay.stage == Stage::kReady) && !s_.stay.entry;
  standing.from_checkpoint = s_.restored.has_value() || s_.stay.resumes;
  const auto show = [&standing](const FragmentFacts& facts) {
    standing.versions.push_back(facts.version);
    standing.admitted.push_back(facts.sent && facts.sent->admitted ? facts.sent->base : facts.resolved);
  };
  if (s_.restored) {
    for (const FragmentFacts& fragment : s_.restored->fragments) show(fragment);
  } else if (s_.entered() || s_.stay.resumes) {
    for (const FragmentRules& fragment : s_.fragments) show(fragment.facts());
  }
  return standing;
}

core::Version SiteRules::CompletedRounds() const {
  if (s_.fragments.empty()) return 0;
  const auto applied = [](const FragmentRules& fragment) { return fragment.facts().applied; };
  return applied(*std::ranges::min_element(s_.fragments, {}, applied));
}

SiteFacts SiteRules::Facts() const {
  SiteFacts facts{.lineage = s_.lineage, .step = s_.step, .trained = s_.trained, .sites = s_.sites, .fragments = {}};
  for (const FragmentRules& fragment : s_.fragments) facts.fragments.push_back(fragment.facts());
  return facts;
}

bool SiteRules::Awaits(const event::Fetched& fetched) const {
  const auto p = static_cast<size_t>(fetched.tag.fragment);
  return p < s_.fragments.size() && s_.fragments[p].Awaits(fetched, s_.stay.number);
}

// ---- Contributions ----

void SiteRules::On(const event::Copied& copied) {
  FragmentRules& fragment = s_.fragments[copied.fragment];
  if (!s_.entered()) return fragment.GiveUp();  // its stay is over
  fragment.Copied();
  s_.Do(action::Encode{copied.fragment});
}

void SiteRules::On(const event::Encoded& encoded) {
  action::Upload upload = s_.fragments[encoded.fragment].Encoded(s_.stay.number, s_.stay.welcomed);
  if (s_.entered()) s_.Do(std::move(upload));
}

void SiteRules::On(const event::VerdictGiven& given) {
  const auto p = static_cast<size_t>(given.tag.fragment);
  if (p >= s_.fragments.size() || absl::IsCancelled(given.verdict)) return;
  FragmentRules& fragment = s_.fragments[p];
  if (!fragment.Awaits(given, s_.stay.number)) return;
  if (given.verdict.ok()) return fragment.Admitted(s_.now_us);
  s_.Do(
      action::Say{.text = absl::StrCat("the contribution to fragment ", p, " of version ", fragment.facts().sent->base,
                                       " is refused: ", std::string(given.verdict.message())),
                  .warns = true});
  if (absl::IsDataLoss(given.verdict)) s_.Fail(absl::InternalError(given.verdict.message()));
  fragment.GiveUp();
  s_.Do(action::Resolve{given.tag.fragment, /*merged=*/false});
}

// ---- Anchors and updates ----

void SiteRules::On(const event::FetchBegan& began) {
  const auto p = static_cast<size_t>(began.tag.fragment);
  if (p < s_.fragments.size() && began.tag.stay == s_.stay.number) s_.fragments[p].Began(began);
}

void SiteRules::On(const event::Offered& offered) {
  if (offered.tag.stay == s_.stay.number) s_.fragments[offered.tag.fragment].Asked(offered.tag, s_.now_us);
}

void SiteRules::On(const event::Fetched& fetched) {
  if (!Awaits(fetched) || absl::IsCancelled(fetched.status)) return;
  FragmentRules& fragment = s_.fragments[fetched.tag.fragment];
  if (fragment.incoming() != Incoming::kAnchoring && fragment.incoming() != Incoming::kAwaiting) return;
  if (!fetched.status.ok()) return FetchFailed(fragment, fetched.status);
  const bool update = fragment.incoming() == Incoming::kAwaiting;
  if (const core::Version next = fragment.facts().version + 1; update && fetched.version != next) {
    return s_.Fail(absl::InternalError(absl::StrCat("fragment ", fragment.id(), ": expected an update to version ",
                                                    next, ", got one to ", fetched.version)));
  }
  fragment.Arrived(fetched);
  if (!update) s_.Do(fragment.Place());
}

void SiteRules::FetchFailed(FragmentRules& fragment, const absl::Status& status) {
  if (fragment.incoming() == Incoming::kAnchoring || !absl::IsNotFound(status)) {
    return s_.Fail(absl::InternalError(status.message()));
  }
  LoseAnchor(fragment, std::string(status.message()));
}

// W does not agree with the run, or the updates after it are gone. A training site gives up its place and takes a new
// one, because nothing else may move θ that far.
void SiteRules::LoseAnchor(FragmentRules& fragment, const std::string& why) {
  s_.Do(action::Say{.text = absl::StrCat("fragment ", fragment.id(), ": ", why, "; takes the anchor"), .warns = true});
  if (fragment.incoming() == Incoming::kAwaiting) fragment.LoseAnchor();
  if (s_.entered()) {
    s_.LosePlace();
  } else {
    join_.Follow(fragment);
  }
}

void SiteRules::On(const event::UpdateTaken& taken) {
  FragmentRules& fragment = s_.fragments[taken.fragment];
  fragment.Taken(/*wrong=*/!taken.mismatch.empty());
  if (fragment.facts().merged) ++s_.counts.merged;
  const std::optional<FragmentRules::Latency> latency = fragment.NoteReady(s_.now_us);
  if (!taken.mismatch.empty()) return LoseAnchor(fragment, taken.mismatch);
  if (s_.stay.stage == Stage::kCompleting) {
    fragment.Moved();
    s_.Do(fragment.AskForUpdate(s_.stay.number));
  } else if (s_.stay.stage == Stage::kTraining) {
    if (fragment.facts().merged && latency) s_.delay.Arrived(latency->whole_s, latency->waited_s);
  } else {
    join_.Follow(fragment);
  }
}

void SiteRules::On(const event::Moved& moved) {
  FragmentRules& fragment = s_.fragments[moved.fragment];
  if (fragment.incoming() != Incoming::kMoving && fragment.incoming() != Incoming::kStaged) {
    return join_.ThetaIsSet();
  }
  fragment.Moved();
  if (s_.stay.stage == Stage::kTraining) {
    step_.Moved(fragment);
    s_.Do(fragment.AskForUpdate(s_.stay.number));
  } else {
    join_.Follow(fragment);
  }
}

}  // namespace causeway::worker
