// The operators' commands: all or nothing.
#include <spdlog/spdlog.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/check.h"
#include "core/random.h"
#include "formats/run_yaml.h"
#include "formats/settings.h"
#include "server/run/run_parts.h"

namespace causeway::server {
namespace {

using Change = v1::ChangeRunRequest;

constexpr double kLargeStep = 10;  // of a learning rate: more is likely a typing error

absl::StatusOr<RunEvent> EventOf(Change::Change change) {
  switch (change) {
    case Change::PAUSE: return PauseRun{};
    case Change::RESUME: return ResumeRun{};
    case Change::STOP: return StopRun{};
    default: return absl::InvalidArgumentError(absl::StrCat("expected pause, resume or stop, got ", change));
  }
}

absl::Status CheckLeads(const RunParts& run, const std::string& what) {
  if (run.options.shard.leads()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(what, ": this is ", run.options.shard.Text(), "; ask shard 0, at ", run.options.lead));
}

// A config of the run, and what makes it.
struct Changed {
  core::RunConfig config;
  std::vector<std::string> changes;  // "inner.lr: 0.003 → 0.0001"; empty: nothing differs
};

absl::StatusOr<Changed> ChangedBy(const core::RunConfig& now, const formats::SettingsChanges& changes) {
  ASSIGN_OR_RETURN(core::RunConfig to, formats::ChangedConfig(now, changes));
  std::vector<std::string> said = formats::ConfigChanges(now, to);
  return Changed{std::move(to), std::move(said)};
}

// The run's settings from that place on.
absl::StatusOr<Changed> ChangedAt(const RunParts& run, const v1::ChangeSettingsRequest& request,
                                  const ChangePlace& place) {
  const core::RunConfig& before = run.settings.AtStep(place.step);
  if (request.cancel()) {
    if (run.settings.Pending(place.step).empty()) {
      return absl::FailedPreconditionError(absl::StrCat("no change of settings is pending after step ", place.step));
    }
    return ChangedBy(run.settings.newest(), formats::ChangesBetween(run.settings.newest(), before));
  }
  formats::SettingsChanges changes;
  for (const v1::SettingChange& change : request.changes()) changes.emplace_back(change.key(), change.value());
  ASSIGN_OR_RETURN(Changed changed, ChangedBy(before, changes));
  if (changed.changes.empty()) return absl::FailedPreconditionError("the run has these values already");
  const std::vector<std::string> at_once = formats::KeysAtOnce(changes);
  if (request.at_step() > 0 && !at_once.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("at_step: ", absl::StrJoin(at_once, ", "), " would hold at once: set it by itself"));
  }
  const RoundSettings then = RulesOf(changed.config, run.options.shard);
  RETURN_IF_ERROR(run.rules->CheckChange(then.membership, then.max_tokens_per_step));
  const auto jumps = [](double was, double is) { return was > 0 && is > kLargeStep * was; };
  if (!request.yes() &&
      (jumps(before.inner.lr, changed.config.inner.lr) || jumps(before.outer.lr, changed.config.outer.lr))) {
    return absl::FailedPreconditionError(absl::StrCat(absl::StrJoin(changed.changes, ", "), ": more than ", kLargeStep,
                                                      " times the learning rate; --yes if it is meant"));
  }
  const core::Step steps = changed.config.steps;
  if (steps != before.steps && steps != 0 && steps < place.step) {
    return absl::FailedPreconditionError(absl::StrCat("run.steps: expected 0, or at least ", place.step,
                                                      ", the first step that a change can hold from, got ", steps));
  }
  return changed;
}

// A joining site hears of the newest alone: one of them has to hold already.
absl::Status CheckRoomForRevisions(const RunParts& run, size_t more) {
  constexpr size_t kMost = core::SettingsChain::kMost;
  const core::SettingsChain chain = run.settings.Chain();
  if (static_cast<size_t>(run.settings.revision()) + more <= kMost) return absl::OkStatus();
  const size_t told = chain.revisions.size() + more;
  const core::SettingsRevision& oldest = chain.revisions[std::min(told - std::min(told, kMost), told - more - 1)];
  if (std::ranges::equal(oldest.versions, run.rules->state().versions, std::ranges::less_equal())) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("the last ", kMost, " changes of settings have not taken effect yet: wait for some rounds"));
}

}  // namespace

absl::StatusOr<core::RunConfig> ReadSettings(const core::RunConfig& own, const std::string& run_config) {
  ASSIGN_OR_RETURN(const core::RunConfig stored, formats::ParseRunConfig(run_config));
  return formats::ConfigAtStart(stored, own);
}

v1::CoordinatorMessage DrainMessage() {
  v1::CoordinatorMessage message;
  message.mutable_drain()->set_reason("an operator asked for it");
  return message;
}

absl::Status Handle(RunParts& run, const input::Drain& drain, int64_t now_ms) {
  RETURN_IF_ERROR(CheckLeads(run, "drain"));
  RETURN_IF_ERROR(run.rules->Handle(DrainSite{drain.site, "asked to leave"}, now_ms).status);
  run.ready.state_changed = true;
  run.ready.Note("drain", drain.site, -1, "asked to leave");
  run.members.Send(drain.site, DrainMessage(), run.ready);
  return absl::OkStatus();
}

absl::Status Handle(RunParts& run, const input::ChangeRun& input, int64_t now_ms) {
  const std::string name = absl::AsciiStrToLower(Change::Change_Name(input.change));
  if (input.change != Change::RESUME || !run.rules->doubted()) {  // a doubt is each shard's own
    RETURN_IF_ERROR(CheckLeads(run, name));
  }
  ASSIGN_OR_RETURN(const RunEvent event, EventOf(input.change));
  RETURN_IF_ERROR(run.rules->Handle(event, now_ms).status);
  run.ready.state_changed = true;
  run.ready.Note(name, "by an operator");
  for (const auto& [site, record] : run.rules->state().sites) {
    if (record.state == core::SiteState::kDraining) run.members.Send(site, DrainMessage(), run.ready);
  }
  return absl::OkStatus();
}

absl::Status Handle(RunParts& run, const input::Release& release, int64_t now_ms) {
  RETURN_IF_ERROR(CheckLeads(run, "release"));
  const Outcome outcome = run.rules->Handle(ReleaseSite{release.site}, now_ms);
  RETURN_IF_ERROR(outcome.status);
  run.ready.state_changed = true;
  for (const auto& [name, record] : run.rules->state().sites) {
    if (!release.site.empty() && name != release.site) continue;
    if (Member* const member = run.members.Find(name)) member->norm = {};
  }
  run.ready.Note("release", release.site, -1, "by an operator: it starts from the anchor");
  Perform(run, outcome.actions);
  return absl::OkStatus();
}

absl::Status Handle(RunParts& run, const input::RollBack& back, int64_t now_ms) {
  const Outcome outcome = run.rules->Handle(RollBackRun{back.version, back.run_tokens}, now_ms);
  RETURN_IF_ERROR(outcome.status);
  run.ready.state_changed = true;
  run.ready.Note("rollback", absl::StrCat("to version ", back.version, ", by an operator"));
  spdlog::warn("the run is rolled back to version {}", back.version);
  Perform(run, outcome.actions);
  return absl::OkStatus();
}

// The settings change from a round and a step on; sites hear of it once it is durable.
absl::Status Handle(RunParts& run, const input::ChangeSettings& input, int64_t now_ms) {
  const v1::ChangeSettingsRequest& request = input.request;
  RETURN_IF_ERROR(CheckLeads(run, "set"));
  if (request.changes().empty() != request.cancel()) {
    return absl::InvalidArgumentError("set: expected KEY=VALUE at least once, or --cancel alone");
  }
  if (!run.options.shard.alone()) {
    return absl::FailedPreconditionError("the settings of a run of several shards cannot change while it runs yet");
  }
  const std::optional<core::Step> wanted = request.at_step() > 0 ? std::optional(request.at_step()) : std::nullopt;
  ASSIGN_OR_RETURN(const ChangePlace place, run.rules->PlaceOfChange(run.settings.newest().steps, wanted));
  ASSIGN_OR_RETURN(Changed changed, ChangedAt(run, request, place));
  std::vector<core::RunSettings::Change> pending = run.settings.Pending(place.step);
  if (request.cancel()) pending.clear();
  RETURN_IF_ERROR(CheckRoomForRevisions(run, 1 + pending.size()));
  std::vector<core::SettingsRevision> revisions;
  std::vector<core::RunConfig> configs;
  uint64_t parent = run.settings.digest();
  const auto append = [&](core::Step step, const std::vector<core::Version>& versions, Changed to) {
    core::SettingsRevision& one =
        revisions.emplace_back(core::SettingsRevision{.number = run.settings.revision() + std::ssize(revisions) + 1,
                                                      .step = step,
                                                      .versions = versions,
                                                      .run_config = formats::SerializeRunConfig(to.config),
                                                      .changes = std::move(to.changes),
                                                      .unix_ms = run.options.clock->UnixMs(),
                                                      .nonce = core::DeviceRandom()});
    parent = one.digest = core::DigestOf(parent, one);
    configs.push_back(std::move(to.config));
  };
  const core::RunConfig before = run.settings.AtStep(place.step);
  append(place.step, place.versions, std::move(changed));
  const core::RunConfig* was = &before;
  for (const core::RunSettings::Change& later : pending) {  // on top of it
    ASSIGN_OR_RETURN(Changed again, ChangedBy(configs.back(), formats::ChangesBetween(*was, *later.config)));
    append(later.step, later.versions, std::move(again));
    was = later.config;
  }
  run.ready.revisions = revisions;
  if (request.dry_run()) return absl::OkStatus();
  const auto longer = [](int64_t was_so, int64_t is) { return was_so > 0 && (is == 0 || is > was_so); };
  const bool goes_on = configs[0].steps != before.steps || longer(before.tokens, configs[0].tokens);
  for (size_t i = 0; i < revisions.size(); ++i) {
    const core::SettingsRevision& one = revisions[i];
    run.settings.Add(one, std::move(configs[i]));
    run.ready.entry.settings.revisions.push_back(one);
    const std::string text =
        absl::StrCat("revision ", one.number, ", from step ", one.step, ": ", absl::StrJoin(one.changes, ", "));
    spdlog::info("settings, {}", text);
    run.ready.Note("set", text);
  }
  run.ready.state_changed = true;
  run.ready.effects.emplace_back(effect::Durable{revisions.back().number});
  for (const core::SettingsRevision& one : revisions) TellRules(run, one, goes_on, now_ms);
  return absl::OkStatus();
}

absl::Status Handle(RunParts& run, const input::Command& command, int64_t) {
  run.ready.Note("command", command.text);
  return absl::OkStatus();
}

}  // namespace causeway::server
