#include "server/rounds/run_rules.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/limits.h"
#include "server/rounds/rule_parts.h"
#include "server/rounds/run_facts.h"

namespace causeway::server {

using core::SiteId;
using core::SiteState;

namespace {

constexpr int64_t kUnseenMs = 12'000;  // sites retry every 5 s

LeadRules* Lead(RuleParts& run) { return std::get_if<LeadRules>(&run.role); }

// ---- Sites ----

void Accept(RuleParts& run, const JoinRequest& request, JoinDecision& decision) {
  const SiteId& site = request.site;
  run.members.Connect(site, request.process, decision.resumed);
  run.pace.Interrupted(site);
  run.facts.unseen.erase(site);
  decision.accepted = true;
  decision.last_admitted = run.rounds.LastAdmitted(site);
}

// At shard 0.
Outcome Join(RuleParts& run, LeadRules& lead, const JoinRequest& request) {
  Outcome outcome;
  JoinDecision& decision = outcome.join;
  const SiteId& site = request.site;
  const bool in_session = run.facts.InSession(site, request.session);
  if (in_session) decision = run.members.WhyPlaceIsTaken(request);
  if (!decision.reason.empty()) return outcome;
  const char* const anew = in_session ? lead.WhyAnew(request) : nullptr;
  if (anew != nullptr) Drop(run, {.site = site, .reason = anew}, outcome.actions);
  if (in_session && anew == nullptr) {
    core::SiteRecord& record = run.facts.state.sites[site];
    decision.resumed = core::IsActive(record.state);
    record.reason.clear();
  } else {
    decision.reason = lead.WhyClosed();
    if (decision.reason.empty() && !in_session) {
      if (StateOf(run.facts) == RunState::kDone) {
        decision.reason = "the run is done";
      } else {
        decision = run.members.WhyNameIsTaken(site);
      }
    }
    if (!decision.reason.empty()) return outcome;
    if (const std::optional<SiteId> given_up = run.members.MakeRoomFor(site)) {
      outcome.actions.push_back(Forgotten{*given_up});
      decision.forgotten = !request.held.empty();
    }
    lead.Begin(request);
  }
  decision.forgotten |= lead.IsVoid(request);
  Accept(run, request, decision);
  lead.AskForSeed(site, outcome.actions);
  return outcome;
}

// At another: shard 0's welcome has already decided about the site's transfers.
Outcome Join(RuleParts& run, ShardRules& shard, const JoinRequest& request) {
  if (!shard.Knows(request)) return {.join = ShardRules::AskAgain()};
  Outcome outcome{.join = {.resumed = true}};
  Accept(run, request, outcome.join);
  shard.Accepted(request.site, outcome.actions);
  return outcome;
}

Outcome On(RuleParts& run, const JoinRequest& event) {
  return std::visit([&](auto& role) { return Join(run, role, event); }, run.role);
}

Outcome On(RuleParts& run, const SiteReady& event) {
  return {.actions = Lead(run) == nullptr ? Actions() : Lead(run)->Ready(event)};
}

Outcome On(RuleParts& run, const SiteReport& event) {
  Outcome outcome;
  if (!run.facts.InSession(event.site, event.session) || !run.members.Report(event)) return outcome;
  // A site reports several times within its lease, or it was cut off.
  const int64_t longest_gap_ms = run.facts.settings.membership.lease_ms / 2;
  if (event.step >= run.facts.links[event.site].entry_step) {
    run.heard.Report(event.site, event.step, event.tokens, run.facts.now_ms);
    run.pace.Heard(event.site, event.step, run.facts.now_ms, longest_gap_ms, event.tokens);
  }
  if (run.members.Completes(event)) CloseRounds(run, outcome.actions);
  return outcome;
}

Outcome On(RuleParts& run, const SiteDisconnected& event) {
  if (!run.facts.InSession(event.site, event.session)) return {};
  run.members.Disconnect(event.site);
  run.pace.Interrupted(event.site);
  return {};
}

// One site's word ends no run: it has an end (run.steps, run.tokens), and the rounds are there, or what is believed of
// the site.
bool MayBeFinished(const RuleParts& run, const SiteId& site) {
  const RunFacts& facts = run.facts;
  if (facts.settings.run_tokens > 0) {
    double sum = 0, fragments = 0;  // its place: with what it has trained that is not merged
    for (core::FragmentId p = 0; p < facts.num_fragments(); ++p) {
      if (!facts.settings.shard.Owns(p)) continue;
      const core::Admitted all{.tokens = core::kMostRunTokens};
      sum += static_cast<double>(facts.state.tokens[p] + run.heard.Believed(site, p, all, facts.now_ms).tokens);
      ++fragments;
    }
    return sum >= static_cast<double>(facts.settings.run_tokens) * fragments;
  }
  if (facts.settings.steps == 0) return false;
  if (!facts.synchronous()) return run.heard.MayHaveDone(site, facts.settings.steps);
  for (core::FragmentId p = 0; p < facts.num_fragments(); ++p) {
    const bool is_last = facts.schedule.SendStep(p, facts.state.versions[p] + 1) > facts.settings.steps;
    if (facts.settings.shard.Owns(p) && !is_last) return false;
  }
  return true;
}

Outcome On(RuleParts& run, const SiteLeaves& event) {
  Outcome outcome;
  if (!run.facts.InSession(event.site, event.session)) return outcome;
  const bool finished = event.finished && MayBeFinished(run, event.site);
  run.facts.state.finished |= finished;
  const bool drained = run.facts.state.sites.at(event.site).state == SiteState::kDraining;
  const core::Ended ended = finished ? core::Ended::kFinished : drained ? core::Ended::kDrained : core::Ended::kLeft;
  Drop(run, {event.site, ended, event.reason}, outcome.actions);
  return outcome;
}

// ---- Contributions and initial parameters ----

Outcome On(RuleParts& run, const ContributionAdmitted& event) {
  run.values.Admit(event.site);
  run.rounds.Admit(event);
  run.members.Contributed(event.site);
  run.heard.Count(event.site, event.fragment, event.contribution);
  Outcome outcome;
  CloseRounds(run, outcome.actions);
  return outcome;
}

Outcome On(RuleParts& run, const ContributionRefused& event) {
  run.values.Refuse(event);
  Outcome outcome;
  CloseRounds(run, outcome.actions);
  DropStranded(run, outcome.actions);
  return outcome;
}

Outcome On(RuleParts& run, const SeedComplete&) {
  run.facts.seeded_here = true;
  return {.actions = std::visit([](auto& role) { return role.Seeded(); }, run.role)};
}

Outcome On(RuleParts& run, const ModelReplaced&) {
  CHECK(!run.facts.state.started);
  run.facts.seeded_here = run.facts.state.seeded = false;
  if (LeadRules* lead = Lead(run)) lead->BeginAnotherModel();
  return {};
}

// ---- Shards ----

Outcome On(RuleParts& run, const ShardReported& event) {
  LeadRules& lead = std::get<LeadRules>(run.role);
  Outcome outcome{.actions = lead.Report(event)};
  if (lead.IsStranded(event.report)) {
    const std::string reason =
        absl::StrCat("no site is left to fill an open round of shard ", event.shard, "; joins anew");
    Drop(run, {.site = event.report.stranded, .reason = reason}, outcome.actions);
  }
  return outcome;
}

Outcome On(RuleParts& run, const MembershipChanged& event) {
  ShardRules& shard = std::get<ShardRules>(run.role);
  const core::Membership& membership = event.membership;
  Outcome outcome;
  const auto ended = shard.Ended(membership);
  const bool another_seeder = shard.IsNews(membership.seeder, ended);
  for (const Dropped& one : ended) End(run, one, outcome.actions);
  for (const SiteId& site : shard.Unknown(membership)) {
    run.members.Forget(site);
    outcome.actions.push_back(Forgotten{site});
  }
  if ((run.facts.state.paused && !membership.paused) || run.facts.state.stopped != membership.stopped) {
    run.pace.InterruptedAll();  // sites stood still
  }
  const std::vector<SiteId> released = shard.Released(membership);
  const std::vector<SiteId> entered = shard.Take(membership);
  run.holds.Pause(membership.paused);
  for (const auto& [site, member] : membership.sites) run.members.Follow(site, member.state);
  for (const SiteId& site : entered) outcome.actions.push_back(shard.Place(site));
  if (another_seeder) shard.AskForSeed(outcome.actions);
  CloseRounds(run, outcome.actions);
  for (const SiteId& site : released) run.facts.state.sites.at(site).merged.clear();
  return outcome;
}

// ---- Operators ----

// A round that waited for more sites may go on now: the next Tick closes it.
Outcome On(RuleParts& run, const SettingsChanged& event) {
  run.facts.TakeOver(event);
  if (event.goes_on) {
    run.facts.state.finished = false;
    for (auto& [site, link] : run.facts.links) link.completed_at.clear();
  }
  LeadRules* const lead = Lead(run);
  return {.actions = lead == nullptr ? Actions() : lead->EnterReady()};
}

absl::Status RefuseIfDone(const RuleParts& run) {
  if (StateOf(run.facts) != RunState::kDone) return absl::OkStatus();
  return absl::FailedPreconditionError("the run is done");
}

absl::Status Pause(RuleParts& run) {
  if (run.facts.state.paused) return absl::FailedPreconditionError("the run is paused already");
  if (run.facts.state.stopped) return absl::FailedPreconditionError("the run is stopped");
  RETURN_IF_ERROR(RefuseIfDone(run));
  run.holds.Pause(true);
  return absl::OkStatus();
}

absl::Status Resume(RuleParts& run) {
  if (!run.facts.held && !run.facts.state.stopped && StateOf(run.facts) != RunState::kDone) {
    return absl::FailedPreconditionError("the run is neither paused nor stopped by an operator, nor done");
  }
  run.holds.Settle();
  if (Lead(run) == nullptr) return absl::OkStatus();  // this shard cannot resume what shard 0 has paused
  run.holds.Pause(false);
  run.facts.state.stopped = run.facts.state.finished = false;
  run.pace.InterruptedAll();  // sites stood still
  return absl::OkStatus();
}

absl::Status Stop(RuleParts& run) {
  if (run.facts.state.stopped) return absl::FailedPreconditionError("the run is stopped already");
  RETURN_IF_ERROR(RefuseIfDone(run));
  run.holds.Void();
  run.holds.Pause(false);  // or the rounds that the sites wait for in order to leave would not close
  run.facts.state.stopped = true;
  run.pace.InterruptedAll();
  run.members.DrainAll("stopped by an operator");
  return absl::OkStatus();
}

Outcome On(RuleParts& run, const PauseRun&) { return {.status = Pause(run)}; }
Outcome On(RuleParts& run, const ResumeRun&) { return {.status = Resume(run)}; }
Outcome On(RuleParts& run, const StopRun&) { return {.status = Stop(run)}; }
Outcome On(RuleParts& run, const DrainSite& event) { return {.status = run.members.Drain(event.site, event.reason)}; }

Outcome On(RuleParts& run, const ReleaseSite& event) {
  Outcome outcome;
  const absl::StatusOr<std::vector<SiteId>> released = run.values.Release(event.site);
  outcome.status = released.status();
  if (!released.ok()) return outcome;
  for (const SiteId& site : *released) {
    if (run.facts.state.sites.at(site).state == SiteState::kGone) continue;
    Drop(run, {.site = site, .reason = "released by an operator; joins anew, from the anchor"}, outcome.actions);
  }
  // After the rounds that close without them: what these merge is of before the release, too.
  for (const SiteId& site : *released) run.facts.state.sites.at(site).merged.clear();
  return outcome;
}

Outcome On(RuleParts& run, const RollBackRun& event) {
  Outcome outcome{.status = RefuseIfDone(run)};
  if (outcome.status.ok()) outcome.status = run.rounds.RollBack(event, outcome.actions);
  if (!outcome.status.ok()) return outcome;
  run.values.RollBack(event.version);
  const std::string reason = absl::StrCat("rolled back to version ", event.version, "; joins anew, from the anchor");
  for (auto& [site, record] : run.facts.state.sites) {
    record.starts_anew = true;
    if (record.state != SiteState::kGone) End(run, {.site = site, .reason = reason}, outcome.actions);
  }
  return outcome;
}

Outcome On(RuleParts& run, const HoldRun& event) {
  const bool over = run.facts.state.stopped || StateOf(run.facts) == RunState::kDone;
  if (!over) run.holds.Raise(event.hold, event.why);
  return {};
}

Outcome On(RuleParts& run, const AwaitSites&) {
  for (const auto& [site, record] : run.facts.state.sites) {
    if (core::IsActive(record.state)) run.facts.unseen.insert(site);
  }
  run.facts.unseen_until_ms = run.facts.now_ms + kUnseenMs;
  return {};
}

// ---- Time ----

Outcome On(RuleParts& run, const Tick&) {
  Outcome outcome;
  if (Lead(run) != nullptr) {
    for (const Dropped& one : run.members.Expired()) {
      if (run.facts.links.contains(one.site)) Drop(run, one, outcome.actions);  // else gone with another one
    }
    for (const Dropped& one : Lead(run)->Unwelcome()) Drop(run, one, outcome.actions);
    for (const Dropped& one : run.members.DrainsThatStand(run.rounds.StandsMs())) Drop(run, one, outcome.actions);
    for (Action& enter : Lead(run)->EnterReady()) outcome.actions.push_back(std::move(enter));
  }
  CloseRounds(run, outcome.actions);
  return outcome;
}

Outcome On(RuleParts& run, const StoodStill& event) {
  run.members.StoodStill(event.from_ms, run.facts.now_ms);
  run.pace.InterruptedAll();  // reports that were delayed meanwhile arrive all at once
  return {};
}

}  // namespace

RunRules::RunRules(const RoundSettings& settings, core::RoundState state, int64_t now_ms, const SiteId& seeder)
    : parts_(std::make_unique<RuleParts>(settings, std::move(state), now_ms, seeder)) {}
RunRules::RunRules(RunRules&&) noexcept = default;
RunRules& RunRules::operator=(RunRules&&) noexcept = default;
RunRules::~RunRules() = default;

Outcome RunRules::Handle(const RunEvent& event, int64_t now_ms) {
  parts_->facts.now_ms = std::max(parts_->facts.now_ms, now_ms);
  Outcome outcome = std::visit([&](const auto& one) { return On(*parts_, one); }, event);
  for (const Action& action : outcome.actions) {
    const Enter* const enter = std::get_if<Enter>(&action);
    if (enter != nullptr) parts_->heard.Enter(enter->site, enter->entry.step, parts_->facts.now_ms);
  }
  return outcome;
}

absl::Status RunRules::CheckContribution(const SiteId& site, const core::SessionId& session, core::FragmentId fragment,
                                         const core::Admitted& contribution) const {
  RETURN_IF_ERROR(parts_->rounds.Check(site, session, fragment, contribution.base));
  return parts_->values.Check(site, fragment, contribution);
}

core::Admitted RunRules::Believed(const SiteId& site, core::FragmentId fragment,
                                  const core::Admitted& contribution) const {
  if (parts_->facts.synchronous()) return contribution;  // its bits depend on no clock; rounds bound its steps
  return parts_->heard.Believed(site, fragment, contribution, parts_->facts.now_ms);
}

std::optional<std::string> RunRules::WhyTooLong(const SiteId& site, core::FragmentId fragment,
                                                const core::Admitted& contribution, int64_t parameters) const {
  return parts_->values.WhyTooLong(site, fragment, contribution, parameters);
}

const core::RoundState& RunRules::state() const { return parts_->facts.state; }
RunState RunRules::run_state() const { return StateOf(parts_->facts); }
bool RunRules::held() const { return parts_->facts.held; }
bool RunRules::doubted() const { return parts_->holds.raised(); }
RoundPhase RunRules::Phase(core::FragmentId fragment) const { return parts_->rounds.Phase(fragment); }
std::vector<core::Outlier> RunRules::Outliers() const {
  std::vector<core::Outlier> outliers = parts_->values.Outliers();
  parts_->rounds.AddAwaited(outliers);
  return outliers;
}
absl::Status RunRules::CheckChange(const core::MembershipConfig& membership,
                                   const TokensPerStep& max_tokens_per_step) const {
  return parts_->values.CheckChange(membership, max_tokens_per_step);
}
std::vector<SiteId> RunRules::ActiveSites() const { return parts_->facts.ActiveSites(); }
std::vector<core::Version> RunRules::LastAdmitted(const SiteId& site) const {
  return parts_->rounds.LastAdmitted(site);
}
absl::StatusOr<ChangePlace> RunRules::PlaceOfChange(core::Step steps, std::optional<core::Step> at_step) const {
  const RunFacts& facts = parts_->facts;
  const std::vector<core::Version>& versions = facts.state.versions;
  core::Step earliest = 1;
  for (core::FragmentId p = 0; p < facts.num_fragments(); ++p) {
    earliest = std::max(earliest, facts.schedule.SendStep(p, versions[p] + 1) + 1);
  }
  if (facts.state.finished && facts.ActiveSites().empty() && steps > 0) earliest = steps + 1;
  if (at_step && *at_step < earliest) {
    return absl::FailedPreconditionError(absl::StrCat("at_step: expected at least ", earliest,
                                                      ", which no site can have passed when it hears of it, got ",
                                                      *at_step));
  }
  ChangePlace place{.step = at_step.value_or(earliest), .versions = {}};
  for (core::FragmentId p = 0; p < facts.num_fragments(); ++p) {
    place.versions.push_back(std::max(versions[p] + 1, facts.schedule.FirstBaseAfter(p, place.step - 1)));
  }
  return place;
}

core::Membership RunRules::membership() const { return std::get<LeadRules>(parts_->role).membership(); }
ShardReport RunRules::report() const { return std::get<ShardRules>(parts_->role).Report(Stranded(*parts_)); }

std::string RunRules::Reason() const {
  const std::string waits = std::visit([](const auto& role) { return role.WhyWaiting(); }, parts_->role);
  return RunReason(parts_->facts, parts_->holds.Reason(), waits);
}

std::string RunRules::RoundReason(core::FragmentId fragment) const {
  return server::RoundReason(parts_->facts, parts_->rounds, fragment, parts_->holds.Reason());
}

bool RunRules::AnySiteIn() const {
  return std::ranges::any_of(state().sites, [](const auto& site) { return site.second.state != SiteState::kGone; });
}

bool RunRules::IsReady(const SiteId& site) const {
  const LeadRules* lead = Lead(*parts_);
  return lead != nullptr && lead->IsReady(site);
}

bool RunRules::MayHaveForgotten(const SiteId& site) const { return GoneNames::MayHaveForgotten(state(), site); }

}  // namespace causeway::server
