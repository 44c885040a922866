#include "worker/site/join_rules.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace causeway::worker {
namespace {

constexpr int64_t kSayReadyAgainUs = 5'000'000;
constexpr core::Step kMostSteps = core::Step{1} << 53;  // a run with more is an error

}  // namespace

void JoinRules::On(const event::Welcomed& welcome) {
  Stay& stay = s_.stay;
  if (s_.fragments.empty()) {
    for (core::FragmentId p = 0; p < welcome.num_fragments; ++p) s_.fragments.emplace_back(p);
  }
  const bool from_checkpoint = s_.restored.has_value();
  if (from_checkpoint) FillFromCheckpoint();
  if (!welcome.same_lineage) {
    for (FragmentRules& fragment : s_.fragments) fragment.Void();
  }
  s_.lineage = welcome.lineage;
  stay.welcomed = welcome.stay;
  stay.last_admitted = welcome.last_admitted;
  stay.last_admitted.resize(s_.fragments.size(), -1);
  // A joiner's downloads stay useful whatever happens to its stay, as long as it has no place that it could miss.
  const bool has_no_place = s_.joining() && !stay.entry;
  const bool goes_on =
      welcome.kept_transfers && welcome.same_lineage && (welcome.resumed || has_no_place) && stay.stage != Stage::kLost;
  if (goes_on && stay.number > 0) {
    stay.said_ready_us.reset();  // the stream is a new one
    return;
  }
  const Stay before = std::move(stay);
  stay = {.number = before.number + 1,
          .welcomed = before.welcomed,
          .stage = Stage::kUnsettled,
          .resumes = welcome.resumed && from_checkpoint && welcome.same_lineage,
          .waited_for = before.waited_for,
          .entry = std::nullopt,
          .last_admitted = before.last_admitted};
  // The coordinator takes it for a continuing site: only a site that declares that it holds nothing gets a new place.
  if (welcome.resumed && (!from_checkpoint || !welcome.same_lineage)) s_.Do(action::Rejoin{});
}

void JoinRules::FillFromCheckpoint() {
  const SiteFacts facts = std::move(*s_.restored);
  s_.restored.reset();
  if (facts.fragments.size() != s_.fragments.size()) {
    return s_.Fail(absl::InternalError(absl::StrCat("the checkpoint: expected ", s_.fragments.size(),
                                                    " fragments, as the run has, got ", facts.fragments.size())));
  }
  s_.fragments.clear();
  for (const FragmentFacts& fragment : facts.fragments) {
    s_.fragments.emplace_back(static_cast<core::FragmentId>(s_.fragments.size()), fragment);
    if (!s_.config.sync.auto_delay()) s_.fragments.back().ChooseDelay(s_.schedule.delay(), "");
  }
  s_.counts.entered = 1;
}

void JoinRules::On(const event::EntryGiven& given) {
  const size_t expected = s_.fragments.size();
  if (given.entry.versions.size() != expected || given.entry.first_versions.size() != expected) {
    return s_.Fail(
        absl::InternalError(absl::StrCat("entry: expected ", expected, " versions, got ", given.entry.versions.size(),
                                         " and ", given.entry.first_versions.size())));
  }
  if (given.entry.step < 0 || given.entry.step > kMostSteps) {
    return s_.Fail(
        absl::InternalError(absl::StrCat("entry: expected a step from 0 to ", kMostSteps, ", got ", given.entry.step)));
  }
  s_.stay.entry = given.entry;
}

void JoinRules::On(const event::Joining&) {
  if (s_.stay.stage == Stage::kTraining) return;  // it got its place between two calls
  s_.stay.waited_for = true;
}

void JoinRules::On(const event::Ticked&) {
  if (s_.stay.said_ready_us && s_.now_us - *s_.stay.said_ready_us >= kSayReadyAgainUs) s_.stay.said_ready_us.reset();
  for (FragmentRules& fragment : s_.fragments) {
    if (s_.joining() && fragment.IsSilent(s_.now_us)) AskForAnchor(fragment, fragment.facts().version);
  }
}

bool JoinRules::AllAnchored() const {
  return std::ranges::all_of(s_.fragments, [](const FragmentRules& fragment) { return fragment.anchored(); });
}

bool JoinRules::AnyBusy() const {
  return s_.sets_pending > 0 || std::ranges::any_of(s_.fragments, [](const FragmentRules& fragment) {
           return fragment.busy() || fragment.incoming() == Incoming::kMoving ||
                  fragment.incoming() == Incoming::kStaged;
         });
}

bool JoinRules::CaughtUp() const {
  return std::ranges::all_of(s_.fragments, [this](const FragmentRules& fragment) {
    return fragment.anchored() && fragment.facts().version >= s_.stay.entry->versions[fragment.id()];
  });
}

void JoinRules::GoOn() {
  Stay& stay = s_.stay;
  if (stay.stage == Stage::kUnsettled && stay.waited_for && !AnyBusy()) Settle();
  if (stay.stage == Stage::kAnchoring && stay.seed_requested) {
    stay.seed_requested = false;
    if (!s_.initial_values.ok()) return s_.Fail(s_.initial_values);
    s_.Do(action::Say{"this site is the first: it supplies the initial parameters"});
    s_.Do(action::UploadInitial{});
  }
  if (stay.stage == Stage::kAnchoring && AllAnchored()) stay.stage = Stage::kReady;
  if (stay.stage == Stage::kReady && stay.entry) stay.stage = Stage::kCatchingUp;
  if (stay.stage == Stage::kReady && !stay.said_ready_us) {
    stay.said_ready_us = s_.now_us;
    s_.Do(action::SendReady{});
  }
  if (stay.stage == Stage::kCatchingUp && CaughtUp()) stay.stage = Stage::kEntering;
  if (stay.stage == Stage::kEntering && !AnyBusy()) BeginEntering();
}

// Settles θ and an unresolved contribution after the site has lost its place.
void JoinRules::Settle() {
  if (s_.stay.resumes) return Resume();
  s_.stay.stage = Stage::kAnchoring;
  for (FragmentRules& fragment : s_.fragments) {
    fragment.Settle(s_.stay.last_admitted[fragment.id()], s_.actions);
    if (fragment.incoming() == Incoming::kTaken) {
      s_.Do(fragment.Move());
    } else if (fragment.anchored()) {
      s_.Do(fragment.AskForUpdate(s_.stay.number));
    } else {
      AskForAnchor(fragment, /*at_least=*/0);
    }
  }
}

// The session is still in the run: the steps since the checkpoint are repeated, with the updates that the coordinator
// has kept, and contributions merged then are recognized when they are sent again.
void JoinRules::Resume() {
  s_.stay.stage = Stage::kTraining;
  s_.stay.resumes = s_.stay.waited_for = false;
  s_.Do(action::Say{absl::StrCat("goes on from the checkpoint after step ", s_.step)});
  for (FragmentRules& fragment : s_.fragments) {
    if (fragment.incoming() == Incoming::kAwaiting) s_.Do(fragment.AskForUpdate(s_.stay.number));
    if (fragment.outgoing() == Outgoing::kSending) s_.Do(fragment.Encoded(s_.stay.number, s_.stay.welcomed));
  }
  // A checkpoint taken when stopping may lie between the sends and the applies of its step.
  s_.end = StepEnd{.step = s_.step};
}

void JoinRules::AskForAnchor(FragmentRules& fragment, core::Version at_least) {
  const Tag tag = fragment.AskForAnchor(s_.stay.number);
  if (s_.counts.entered == 0 && at_least == 0 && s_.initial_values.ok()) return s_.Do(action::OfferInitial{tag});
  s_.Do(action::FetchAnchor{.tag = tag, .at_least = at_least});
  fragment.Asked(tag, s_.now_us);
}

void JoinRules::On(const event::AnchorPlaced& placed) {
  FragmentRules& fragment = s_.fragments[placed.fragment];
  fragment.AnchorPlaced();
  if (fragment.incoming() == Incoming::kStaged) return s_.Do(fragment.Move());
  Follow(fragment);
}

void JoinRules::Follow(FragmentRules& fragment) {
  if (!s_.joining() && s_.stay.stage != Stage::kEntering) return;  // Settle takes care of it
  if (fragment.incoming() == Incoming::kTaken) {
    if (fragment.keeps_local()) return s_.Do(fragment.Move());
    fragment.Moved();
  }
  if (fragment.anchored()) {
    s_.Do(fragment.AskForUpdate(s_.stay.number));
  } else {
    s_.stay.stage = s_.stay.stage == Stage::kReady ? Stage::kAnchoring : s_.stay.stage;
    AskForAnchor(fragment, fragment.facts().version);
  }
}

void JoinRules::BeginEntering() {
  if (!CaughtUp()) {  // an anchor was lost meanwhile
    s_.stay.stage = Stage::kCatchingUp;
    return;
  }
  for (FragmentRules& fragment : s_.fragments) {
    if (fragment.keeps_local()) continue;
    fragment.EnterFromAnchor(s_.trained, s_.stay.last_admitted[fragment.id()]);
    s_.Do(action::MoveTheta{fragment.id(), action::MoveTheta::How::kSet});
    ++s_.sets_pending;
  }
  if (s_.sets_pending == 0) Enter();  // otherwise when all are done: then each keeps its training
}

void JoinRules::Enter() {
  const core::Entry& entry = *s_.stay.entry;
  for (FragmentRules& fragment : s_.fragments) {
    fragment.Enter(entry.first_versions[fragment.id()]);
    s_.ChooseDelay(fragment);
  }
  s_.stay.stage = Stage::kTraining;
  s_.stay.waited_for = false;
  s_.step = entry.step;
  s_.reported.reset();
  s_.sites = entry.sites;
  // Where sites choose their delays, others may continue before an update that is due here is decided: the site waits
  // for it before the first step.
  s_.end = StepEnd{.step = entry.step};
  s_.stepped_us.reset();
  s_.stalled_at_step_s = s_.counts.stall_s = 0;
  ++s_.counts.entered;
  s_.Do(action::Say{absl::StrCat("enters after step ", entry.step, " with ", entry.sites.size(), " sites")});
  // The loss at the start.
  const bool is_first = !entry.sites.empty() && entry.sites.front() == s_.site;
  if (entry.step == 0 && s_.MayEvaluate(is_first)) s_.Do(action::Evaluate{});
}

}  // namespace causeway::worker
