#include "tests/server/rounds/rules_script.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/check.h"
#include "server/rounds/value_rules.h"

namespace causeway::server {
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
