#include "worker/site/step_rules.h"

#include <algorithm>
#include <utility>

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

void StepRules::On(const event::Completing&) {
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

}  // namespace causeway::worker
