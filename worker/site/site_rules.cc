#include "worker/site/site_rules.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace causeway::worker {

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
