
#include "tests/server/rounds/rules_script.h"

#include <algorithm>
#include <charconv>
#include <concepts>
#include <functional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/check.h"
#include "server/rounds/value_rules.h"

namespace causeway::server {

using core::SiteState;

namespace {

std::string Because(const std::string& reason) { return reason.empty() ? "" : absl::StrCat(" : ", reason); }

// " name=value", unless the value is what an absent field means.
std::string Field(const char* name, std::integral auto value, int64_t otherwise = 0) {
  return int64_t{value} == otherwise ? "" : absl::StrCat(" ", name, "=", int64_t{value});
}
std::string Field(const char* name, const std::string& value) {
  return value.empty() ? "" : absl::StrCat(" ", name, "=", value);
}
template <typename T>
std::string Field(const char* name, const std::vector<T>& values) {
  return values.empty() ? "" : absl::StrCat(" ", name, "=", absl::StrJoin(values, ","));
}
std::string Field(const char* name, double value) {
  return value == 0 ? "" : absl::StrCat(" ", name, "=", RealText(value));
}

// "training", or how one that is gone has ended: "expired".
template <typename Site>
std::string StateText(const Site& site) {
  const bool gone = site.state == SiteState::kGone;
  return gone ? core::EndedName(site.ended) : core::SiteStateName(site.state);
}
template <typename Site>
void ReadState(const std::string& text, Site& site) {
  const auto state = std::ranges::find(core::kSiteStates, text, core::SiteStateName);
  const auto ended = std::ranges::find(core::kEnds, text, core::EndedName);
  CHECK(state != core::kSiteStates.end() || ended != core::kEnds.end());
  site.state = state != core::kSiteStates.end() ? *state : SiteState::kGone;
  if (ended != core::kEnds.end()) site.ended = *ended;
}

std::string TextOfAdmitted(const core::Admitted& admitted) {
  return absl::StrCat(" base=", admitted.base, Field("tokens", admitted.tokens), Field("steps", admitted.steps),
                      Field("norm", admitted.norm));
}

struct TextOfAction {
  std::string operator()(const RequestSeed& action) const { return absl::StrCat("seed ", action.site); }
  std::string operator()(const Enter& action) const {
    const core::Entry& entry = action.entry;
    return absl::StrCat("enter ", action.site, Field("step", entry.step), Field("stay", entry.stay),
                        Field("versions", entry.versions), Field("first", entry.first_versions),
                        Field("sites", entry.sites));
  }
  std::string operator()(const CloseRound& action) const {
    std::vector<std::string> from;
    for (const CloseRound::Contributor& one : action.contributors) {
      from.push_back(absl::StrCat(one.site, "@", one.base, "*", RealText(one.weight),
                                  one.factor == 1 ? "" : absl::StrCat("/", RealText(one.factor))));
    }
    return absl::StrCat("close fragment=", action.fragment, " base=", action.base,
                        action.rolled_back_to ? absl::StrCat(" restores=", *action.rolled_back_to) : "",
                        Field("from", from), Field("sites", action.sites), Because(action.reason));
  }
  std::string operator()(const Dropped& action) const {
    return absl::StrCat("drop ", action.site, " ended=", core::EndedName(action.ended), Because(action.reason));
  }
  std::string operator()(const Forgotten& action) const { return absl::StrCat("forget ", action.site); }
};

}  // namespace

std::string RealText(double value) {
  char text[32];
  return std::string(text, std::to_chars(text, text + sizeof(text), value).ptr);
}

std::string TextOf(const Action& action) { return std::visit(TextOfAction(), action); }

std::string TextOf(const JoinDecision& decision) {
  if (!decision.accepted)
    return absl::StrCat("refused", Field("retry", decision.retry_after_ms), Because(decision.reason));
  return absl::StrCat("accepted", decision.resumed ? " resumed" : "", decision.forgotten ? " forgotten" : "",
                      Field("admitted", decision.last_admitted));
}

std::string TextOf(const absl::Status& status) {
  return status.ok() ? "ok" : absl::StrCat(absl::StatusCodeToString(status.code()), " : ", status.message());
}

std::string TextOf(const core::Membership& membership) {
  std::string text = absl::StrCat("membership", Field("started", membership.started),
                                  Field("finished", membership.finished), Field("paused", membership.paused),
                                  Field("stopped", membership.stopped), Field("seeder", membership.seeder), "\n");
  for (const auto& [site, member] : membership.sites) {
    absl::StrAppend(&text, "  member ", site, Field("session", member.session), Field("stay", member.stay),
                    Field("state", StateText(member)), Field("first", member.first_versions),
                    Field("releases", member.releases), Because(member.reason), "\n");
  }
  return text;
}

std::string TextOf(const core::RoundState& state) {
  std::string text = absl::StrCat(
      "state", Field("seeded", state.seeded), Field("started", state.started), Field("finished", state.finished),
      Field("paused", state.paused), Field("stopped", state.stopped), Field("versions", state.versions),
      Field("tokens",
            std::ranges::count(state.tokens, 0) == std::ssize(state.tokens) ? std::vector<int64_t>() : state.tokens),
      "\n");
  for (const auto& [site, record] : state.sites) {
    absl::StrAppend(&text, "  site ", site, Field("session", record.session), Field("stay", record.stay),
                    Field("state", StateText(record)), Field("first", record.first_versions),
                    Field("merged", record.last_merged), Field("refusals", record.refusals),
                    Field("quarantined", record.quarantined), Field("starts_anew", record.starts_anew),
                    Field("releases", record.releases), Because(record.reason), "\n");
  }
  for (size_t p = 0; p < state.contributions.size(); ++p) {
    for (const auto& [site, admitted] : state.contributions[p]) {
      absl::StrAppend(&text, "  contribution ", site, " fragment=", p, TextOfAdmitted(admitted), "\n");
    }
  }
  for (const auto& [site, record] : state.sites) {
    for (size_t p = 0; p < record.merged.size(); ++p) {
      for (const core::Merged& one : record.merged[p]) {
        absl::StrAppend(&text, "  merged ", site, " fragment=", p, " version=", one.version,
                        TextOfAdmitted(one.admitted), one.factor == 1 ? "" : Field("factor", double{one.factor}), "\n");
      }
    }
  }
  return text;
}

std::string TextOf(const ShardReport& report) {
  return absl::StrCat("report", Field("seeded", report.seeded), Field("versions", report.versions),
                      Field("stranded", report.stranded), Field("stay", report.stranded_stay));
}

std::string TextOf(const RoundSettings& settings) {
  const core::SyncConfig& sync = settings.sync;
  const core::MembershipConfig& membership = settings.membership;
  const int64_t most = settings.max_tokens_per_step == nullptr ? 0 : settings.max_tokens_per_step("");
  return absl::StrCat(
      "settings", sync.mode == core::SyncMode::kQuorum ? " mode=quorum" : "", " sync_every=", sync.sync_every,
      " fragments=", sync.num_fragments, Field("parts", sync.parts, 1), Field("delay", sync.fragment_sync_delay),
      Field("offsets", sync.fragment_offsets), Field("first_send", static_cast<int64_t>(sync.first_send)),
      Field("min_sites", membership.min_sites, 1), Field("min_quorum", membership.min_quorum, 1),
      Field("grace_ms", membership.grace_ms), " lease_ms=", membership.lease_ms,
      Field("max_staleness", membership.max_staleness, 1), Field("weights", static_cast<int64_t>(membership.weights)),
      Field("gate", settings.values.gate), Field("clip", settings.values.clip),
      Field("weight_cap", settings.values.weight_cap), Field("shard", settings.shard.index),
      Field("shards", settings.shard.count, 1), Field("max_tokens_per_step", most), Field("steps", settings.steps),
      Field("run_tokens", settings.run_tokens));
}

RoundSettings SettingsOf(const core::ScriptLine& line) {
  RoundSettings settings;
  core::SyncConfig& sync = settings.sync;
  if (line.Word("mode") == "quorum") sync.mode = core::SyncMode::kQuorum;
  sync.sync_every = line.Number("sync_every", 8);
  sync.num_fragments = static_cast<int>(line.Number("fragments", 1));
  sync.parts = static_cast<int>(line.Number("parts", 1));
  sync.fragment_sync_delay = line.Number("delay");
  sync.fragment_offsets = line.Numbers("offsets");
  sync.first_send = static_cast<core::FirstSend>(line.Number("first_send"));
  core::MembershipConfig& membership = settings.membership;
  membership.min_sites = static_cast<int>(line.Number("min_sites", 1));
  membership.min_quorum = static_cast<int>(line.Number("min_quorum", 1));
  membership.grace_ms = line.Number("grace_ms");
  membership.lease_ms = line.Number("lease_ms", 1000);
  membership.max_staleness = line.Number("max_staleness", 1);
  membership.weights = static_cast<core::WeightRule>(line.Number("weights"));
  settings.values = {
      .gate = line.Real("gate"), .clip = line.Number("clip") != 0, .weight_cap = line.Real("weight_cap")};
  settings.shard = {static_cast<int>(line.Number("shard")), static_cast<int>(line.Number("shards", 1))};
  settings.steps = line.Number("steps");
  settings.run_tokens = line.Number("run_tokens");
  if (const int64_t most = line.Number("max_tokens_per_step")) {
    settings.max_tokens_per_step = [most](const core::SiteId&) { return most; };
  }
  return settings;
}

core::Admitted AdmittedOf(const core::ScriptLine& line) {
  return {.base = line.Number("base"),
          .tokens = line.Number("tokens"),
          .steps = line.Number("steps"),
          .norm = line.Real("norm")};
}

void AddTo(const core::ScriptLine& line, core::Membership& membership) {
  if (line.words.at(0) == "membership") {
    membership = {.started = line.Number("started") != 0,
                  .finished = line.Number("finished") != 0,
                  .paused = line.Number("paused") != 0,
                  .stopped = line.Number("stopped") != 0,
                  .seeder = line.Word("seeder"),
                  .sites = {}};
    return;
  }
  CHECK(line.words.at(0) == "member");
  core::Member& member = membership.sites[line.words.at(1)];
  member = {.session = line.Word("session"),
            .stay = line.Number("stay"),
            .reason = line.text,
            .first_versions = line.Numbers("first"),
            .releases = line.Number("releases")};
  ReadState(line.Word("state"), member);
}

void AddTo(const core::ScriptLine& line, core::RoundState& state) {
  const std::string& kind = line.words.at(0);
  if (kind == "state") {
    state = {};
    state.seeded = line.Number("seeded") != 0;
    state.started = line.Number("started") != 0;
    state.finished = line.Number("finished") != 0;
    state.paused = line.Number("paused") != 0;
    state.stopped = line.Number("stopped") != 0;
    state.versions = line.Numbers("versions");
    state.tokens = line.Numbers("tokens");
    state.contributions.resize(state.versions.size());
  } else if (kind == "site") {
    core::SiteRecord& record = state.sites[line.words.at(1)];
    record.session = line.Word("session");
    record.stay = line.Number("stay");
    ReadState(line.Word("state"), record);
    record.reason = line.text;
    record.first_versions = line.Numbers("first");
    record.last_merged = line.Numbers("merged");
    record.refusals = static_cast<int>(line.Number("refusals"));
    record.quarantined = line.Number("quarantined") != 0;
    record.starts_anew = line.Number("starts_anew") != 0;
    record.releases = line.Number("releases");
  } else if (kind == "contribution") {
    state.contributions.at(line.Number("fragment"))[line.words.at(1)] = AdmittedOf(line);
  } else {
    CHECK(kind == "merged");
    core::SiteRecord& record = state.sites.at(line.words.at(1));
    record.merged.resize(state.versions.size());
    record.merged.at(line.Number("fragment"))
        .push_back({line.Number("version"), AdmittedOf(line), static_cast<float>(line.Real("factor", 1))});
  }
}

namespace {

std::string WithReason(const std::string& state, const std::string& reason) {
  return reason.empty() ? state : absl::StrCat(state, ": ", reason);
}

bool IsOneOf(const std::string& verb, std::initializer_list<const char*> verbs) {
  return std::find(verbs.begin(), verbs.end(), verb) != verbs.end();
}

}  // namespace

std::string RulesScript::Play(const std::string& script) {
  return core::PlayScript(script, [this](const core::ScriptLine& line) {
    Do(line);
    return std::exchange(said_, "");
  });
}

void RulesScript::Do(const core::ScriptLine& line) {
  size_t at = 0;
  at += absl::SimpleAtoi(line.words.at(0), &now_ms_);
  const std::string& verb = line.words.at(at);
  if (verb == "settings") {
    settings_ = SettingsOf(line);
    if (at == 0) now_ms_ = 0;
    rules_.emplace(settings_, core::RoundState(), now_ms_);
    last_state_ = WithReason(RunStateName(rules_->run_state()), rules_->Reason());
    last_rounds_.clear();
  } else if (verb == "restart") {  // with the state as it is, or as lines since the last event have said
    if (!std::exchange(state_given_, false)) state_ = rules_->state();
    rules_.emplace(settings_, state_, now_ms_, line.Word("seeder"));
  } else if (verb == "watch") {
    whole_ = true;
  } else if (verb == "round") {
    Round(line);
  } else if (verb == "values") {
    Handle(SettingsChanged{.versions = {1'000'000}, .membership = {}, .values = SettingsOf(line).values});
  } else if (IsOneOf(verb, {"membership", "member"}) && line.words.size() + line.fields.size() > 1) {
    return AddTo(line, membership_);
  } else if (IsOneOf(verb, {"state", "site", "contribution", "merged"}) && line.words.size() + line.fields.size() > 1) {
    state_given_ = true;
    return AddTo(line, state_);
  } else if (Ask(verb, line)) {
    return;
  } else if (line.words.size() == at + 1) {
    DoFor(verb, "", line);
  } else {
    for (size_t i = at + 1; i < line.words.size(); ++i) DoFor(verb, line.words[i], line);
  }
  SayWhatChanged();
}

void RulesScript::DoFor(const std::string& verb, const std::string& site, const core::ScriptLine& line) {
  const std::string session = line.Word("session", site + "-1");
  if (verb == "contribute") return Contribute(site, line);
  if (verb == "arrive") {
    Handle(JoinRequest{.site = site, .session = session, .held = {}});
    Handle(SeedComplete{});
    return Handle(SiteReady{site, session});
  }
  const std::optional<RunEvent> event = EventOf(verb, site, line);
  CHECK(event.has_value());
  Handle(*event);
}

std::optional<RunEvent> RulesScript::EventOf(const std::string& verb, const std::string& site,
                                             const core::ScriptLine& line) const {
  const std::string session = line.Word("session", site + "-1");
  const auto fragment = static_cast<core::FragmentId>(line.Number("fragment"));
  if (verb == "join") {
    return JoinRequest{
        site, session, line.Numbers("held"), line.Number("checkpoint") != 0, line.Number("stay"), line.Word("process")};
  }
  if (verb == "ready") return SiteReady{site, session};
  if (verb == "report") {
    return SiteReport{site,
                      session,
                      line.Number("step"),
                      line.Number("tokens"),
                      line.Number("completing") != 0,
                      line.Number("unheard"),
                      line.text};
  }
  if (verb == "disconnect") return SiteDisconnected{site, session};
  if (verb == "leave") return SiteLeaves{site, session, line.Number("finished") != 0, line.text};
  if (verb == "admit") {
    return ContributionAdmitted{site, fragment, AdmittedOf(line), line.Number("transfer"), line.Number("parameters")};
  }
  if (verb == "refuse") {
    return ContributionRefused{site, fragment, AdmittedOf(line), line.text, line.Number("counts") == 0};
  }
  if (verb == "seeded") return SeedComplete{};
  if (verb == "another_model") return ModelReplaced{};
  if (verb == "shard") {
    return ShardReported{static_cast<int>(line.Number("index")),
                         {.seeded = line.Number("seeded") != 0,
                          .versions = line.Numbers("versions"),
                          .stranded = line.Word("stranded"),
                          .stranded_stay = line.Number("stay")}};
  }
  if (verb == "follow") return MembershipChanged{membership_};
  if (verb == "pause") return PauseRun{};
  if (verb == "resume") return ResumeRun{};
  if (verb == "stop") return StopRun{};
  if (verb == "drain") return DrainSite{site, line.text};
  if (verb == "release") return ReleaseSite{site};
  if (verb == "rollback") return RollBackRun{line.Number("version"), line.Numbers("run_tokens")};
  if (verb == "doubt") return HoldRun{Hold::kDoubt, line.text};
  if (verb == "await_sites") return AwaitSites{};
  if (verb == "tick") return Tick{};
  if (verb == "stood_still") return StoodStill{line.Number("from")};
  return std::nullopt;
}

bool RulesScript::Ask(const std::string& verb, const core::ScriptLine& line) {
  const std::string site = line.words.size() > 1 ? line.words.back() : "";
  const auto fragment = static_cast<core::FragmentId>(line.Number("fragment"));
  if (verb == "check") {
    Say(TextOf(rules_->CheckContribution(site, line.Word("session", site + "-1"), fragment, AdmittedOf(line))));
  } else if (verb == "believed") {
    const core::Admitted believed = rules_->Believed(site, fragment, AdmittedOf(line));
    Say(absl::StrCat("steps=", believed.steps, " tokens=", believed.tokens));
  } else if (verb == "too_long") {
    Say(rules_->WhyTooLong(site, fragment, AdmittedOf(line), line.Number("parameters")).value_or("no"));
  } else if (verb == "membership" || verb == "state") {
    const std::string text = verb == "state" ? TextOf(rules_->state()) : TextOf(rules_->membership());
    for (const std::string& one : std::vector<std::string>(absl::StrSplit(text, '\n', absl::SkipEmpty()))) Say(one);
  } else if (verb == "check_change") {
    const RoundSettings settings = SettingsOf(line);
    core::MembershipConfig membership;
    membership.weights = settings.membership.weights;
    Say(TextOf(rules_->CheckChange(membership, settings.max_tokens_per_step)));
  } else if (verb == "record") {
    const core::SiteRecord& record = rules_->state().sites.at(site);
    const MergedOfSite merged = record.merged.empty() ? MergedOfSite() : record.merged.at(0);
    Say(absl::StrCat(
        "refusals=", record.refusals, record.quarantined ? " quarantined" : "", " merged=", merged.size(),
        merged.empty() ? "" : absl::StrCat(" from=", merged.front().version, " to=", merged.back().version), " : ",
        record.reason));
  } else if (verb == "is_anyone_in") {
    Say(rules_->AnySiteIn() ? "yes" : "no");
  } else if (verb == "report_of_shard") {
    Say(TextOf(rules_->report()));
  } else if (verb == "outliers") {
    constexpr const char* kKinds[] = {"scaled", "broken", "whole", "apart", "awaited"};
    for (const core::Outlier& one : rules_->Outliers()) {
      Say(absl::StrCat(kKinds[static_cast<int>(one.kind)], " ", one.site, " fragment=", one.fragment,
                       " version=", one.version, " : ", one.text));
    }
  } else {
    return false;
  }
  return true;
}

// `round a=1 b=32 times=3`: contributions of these lengths to fragment 0's version of now; the last round is said alone.
void RulesScript::Round(const core::ScriptLine& line) {
  for (int64_t left = line.Number("times", 1); left > 0; --left) {
    said_.clear();
    const core::Version base = rules_->state().versions.at(0);
    for (const auto& [site, norm] : line.fields) {
      if (site == "times") continue;
      Contribute(site, core::ScriptLine::Of(absl::StrCat("contribute steps=8 tokens=80 base=", base, " norm=", norm)));
    }
  }
}

// As the coordinator does it.
void RulesScript::Contribute(const core::SiteId& site, const core::ScriptLine& line) {
  const auto fragment = static_cast<core::FragmentId>(line.Number("fragment"));
  core::Admitted sent = AdmittedOf(line);
  if (sent.tokens == 0) sent.tokens = 100;
  if (sent.steps == 0) sent.steps = 10;
  const std::string session = line.Word("session", site + "-1");
  const absl::Status status = rules_->CheckContribution(site, session, fragment, sent);
  if (!status.ok()) {
    Say(TextOf(status));
    if (!absl::IsInvalidArgument(status)) return;
    return Handle(ContributionRefused{site, fragment, sent, std::string(status.message()), /*too_long=*/false});
  }
  const int64_t parameters = line.Number("parameters", sent.norm == 0 ? 0 : 100);
  if (sent.norm > 0) {
    if (const auto why = rules_->WhyTooLong(site, fragment, sent, parameters)) {
      Say("too long : " + *why);
      return Handle(ContributionRefused{site, fragment, sent, *why});
    }
  }
  Handle(ContributionAdmitted{site, fragment, sent, line.Number("transfer"), parameters});
}

void RulesScript::Handle(const RunEvent& event) {
  const Outcome outcome = rules_->Handle(event, now_ms_);
  if (!outcome.status.ok()) Say(TextOf(outcome.status));
  const JoinDecision& join = outcome.join;
  const bool usual = join.accepted && !join.resumed && !join.forgotten;
  if (std::holds_alternative<JoinRequest>(event) && (whole_ || !usual)) {
    Say(TextOf(outcome.join));
  }
  for (const Action& action : outcome.actions) Say(TextOf(action));
}

void RulesScript::SayWhatChanged() {
  const std::string state = WithReason(RunStateName(rules_->run_state()), rules_->Reason());
  if (state != last_state_) absl::StrAppend(&said_, "=> ", last_state_ = state, "\n");
  last_rounds_.resize(settings_.sync.map_fragments(), "idle");
  for (core::FragmentId p = 0; p < settings_.sync.map_fragments(); ++p) {
    const std::string round = WithReason(RoundPhaseName(rules_->Phase(p)), rules_->RoundReason(p));
    if (round != last_rounds_[p]) absl::StrAppend(&said_, "=> fragment ", p, " ", last_rounds_[p] = round, "\n");
  }
  if (whole_) absl::StrAppend(&said_, "=> ", absl::Hex(std::hash<std::string>()(TextOf(rules_->state()))), "\n");
}

}  // namespace causeway::server
