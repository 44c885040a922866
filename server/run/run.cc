#include "server/run/run.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/check.h"
#include "core/limits.h"
#include "core/random.h"
#include "transport/messages.h"

namespace causeway::server {

void Notices::Note(RunParts& run) {
  if (const bool held = run.rules.held(); held != held_) {
    held_ = held;
    v1::CoordinatorMessage message;
    message.mutable_hold()->set_held(held);
    run.members.SendToAll(message, run.ready);
  }
  const std::string reason = run.rules.Reason();
  if (reason == reason_) return;
  reason_ = reason;
  if (reason.empty()) return;
  const char* const state = RunStateName(run.rules.run_state());
  spdlog::info("{}: {}", state, reason);
  run.ready.Note("run", absl::StrCat(state, ": ", reason));
  run.members.SendToAll(transport::NoticeOf(reason), run.ready);
}
namespace {

constexpr double kLargeStep = 10;  // of a learning rate: more is likely a typing error

RoundSettings RulesOf(const core::RunConfig& config, core::Shard shard) {
  return {config.sync,
          config.membership,
          shard,
          config.values,
          [config](const core::SiteId& site) { return config.MaxTokensPerStep(site); },
          config.steps,
          config.tokens};
}

std::variant<LeadShard, FollowerShard> RoleOf(const RunOptions& options, OwnReport& report) {
  if (options.shard.leads()) return LeadShard(options);
  return FollowerShard(options, &report);
}

}  // namespace

Run::Run(const RunOptions& options, Journal& journal, RunFigures& figures, DurableFacts& durable,
         RunModel::Listeners listeners)
    : settings(options.config),
      admission(options.config, options.shard, options.bounds, options.new_run,
                !options.completed && journal.identity().may_have_lost_its_end,
                Claims(journal.identity(), core::DeviceRandom(), options.shard)),
      codecs(settings),
      uploads(model, codecs, figures, *options.clock),
      decisions(settings, *options.clock, model, codecs, uploads, figures),
      options_(options),
      journal_(journal),
      durable_(durable),
      shard_(RoleOf(options, durable.report)),
      model(settings, &journal, std::move(listeners)) {}

// ---- Settings ----

absl::Status Run::RestoreSettings(const core::SettingsChain& stored) {
  settings.BeginAfter(stored.before);
  for (const core::SettingsRevision& revision : stored.revisions) {
    if (options_.settings.read == nullptr) return absl::DataLossError("the settings have changed, and cannot be read");
    ASSIGN_OR_RETURN(core::RunConfig config, options_.settings.read(revision.run_config));
    settings.Add(revision, std::move(config));
  }
  durable_.revision = settings.revision();
  return absl::OkStatus();
}

void Run::TellRules(const core::SettingsRevision& revision, bool goes_on, int64_t now_ms) {
  const RoundSettings changed = RulesOf(settings.Of(revision.number), options_.shard);
  Apply(SettingsChanged{revision.versions, changed.membership, changed.values, changed.max_tokens_per_step,
                        changed.steps, changed.run_tokens, goes_on},
        now_ms);
}

// The run's settings from that place on.
absl::StatusOr<SettingsForms::Changed> Run::Changed(const v1::ChangeSettingsRequest& request,
                                                    const ChangePlace& place) const {
  const core::RunConfig& before = settings.AtStep(place.step);
  if (request.cancel()) {
    if (settings.Pending(place.step).empty()) {
      return absl::FailedPreconditionError(absl::StrCat("no change of settings is pending after step ", place.step));
    }
    return options_.settings.rebase(settings.newest(), before, settings.newest());
  }
  SettingsForms::Changes changes;
  for (const v1::SettingChange& change : request.changes()) changes.emplace_back(change.key(), change.value());
  ASSIGN_OR_RETURN(SettingsForms::Changed changed, options_.settings.change(before, changes));
  if (changed.changes.empty()) return absl::FailedPreconditionError("the run has these values already");
  if (request.at_step() > 0 && !changed.at_once.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("at_step: ", absl::StrJoin(changed.at_once, ", "), " would hold at once: set it by itself"));
  }
  const RoundSettings then = RulesOf(changed.config, options_.shard);
  RETURN_IF_ERROR(rules->CheckChange(then.membership, then.max_tokens_per_step));
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
absl::Status Run::CheckRoomForRevisions(size_t more) const {
  constexpr size_t kMost = core::SettingsChain::kMost;
  const core::SettingsChain chain = settings.Chain();
  if (static_cast<size_t>(settings.revision()) + more <= kMost) return absl::OkStatus();
  const size_t told = chain.revisions.size() + more;
  const core::SettingsRevision& oldest = chain.revisions[std::min(told - std::min(told, kMost), told - more - 1)];
  if (std::ranges::equal(oldest.versions, rules->state().versions, std::ranges::less_equal())) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the last ", kMost, " changes of settings have not taken effect yet: wait for some rounds"));
}

absl::StatusOr<std::vector<core::SettingsRevision>> Run::ChangeSettings(const v1::ChangeSettingsRequest& request) {
  if (!options_.shard.alone()) {
    return absl::FailedPreconditionError("the settings of a run of several shards cannot change while it runs yet");
  }
  if (options_.settings.change == nullptr) return absl::UnimplementedError("this coordinator cannot change settings");
  const std::optional<core::Step> wanted = request.at_step() > 0 ? std::optional(request.at_step()) : std::nullopt;
  ASSIGN_OR_RETURN(const ChangePlace place, rules->PlaceOfChange(settings.newest().steps, wanted));
  ASSIGN_OR_RETURN(SettingsForms::Changed changed, Changed(request, place));
  std::vector<core::RunSettings::Change> pending = settings.Pending(place.step);
  if (request.cancel()) pending.clear();
  RETURN_IF_ERROR(CheckRoomForRevisions(1 + pending.size()));
  std::vector<core::SettingsRevision> revisions;
  std::vector<core::RunConfig> configs;
  uint64_t parent = settings.digest();
  const auto append = [&](core::Step step, const std::vector<core::Version>& versions, SettingsForms::Changed to) {
    core::SettingsRevision& one =
        revisions.emplace_back(core::SettingsRevision{.number = settings.revision() + std::ssize(revisions) + 1,
                                                      .step = step,
                                                      .versions = versions,
                                                      .run_config = std::move(to.run_config),
                                                      .changes = std::move(to.changes),
                                                      .unix_ms = options_.clock->UnixMs(),
                                                      .nonce = core::DeviceRandom()});
    parent = one.digest = core::DigestOf(parent, one);
    configs.push_back(std::move(to.config));
  };
  const core::RunConfig& before = settings.AtStep(place.step);
  append(place.step, place.versions, std::move(changed));
  const core::RunConfig* was = &before;
  for (const core::RunSettings::Change& later : pending) {  // on top of it
    ASSIGN_OR_RETURN(SettingsForms::Changed again, options_.settings.rebase(*was, *later.config, configs.back()));
    append(later.step, later.versions, std::move(again));
    was = later.config;
  }
  if (request.dry_run()) return revisions;
  const auto longer = [](int64_t was_so, int64_t is) { return was_so > 0 && (is == 0 || is > was_so); };
  const bool goes_on = configs[0].steps != before.steps || longer(before.tokens, configs[0].tokens);
  for (size_t i = 0; i < revisions.size(); ++i) {
    const core::SettingsRevision& one = revisions[i];
    settings.Add(one, std::move(configs[i]));
    ready.entry.settings.revisions.push_back(one);
    ready.Note("set",
               absl::StrCat("revision ", one.number, ", from step ", one.step, ": ", absl::StrJoin(one.changes, ", ")));
  }
  ready.state_changed = true;
  ready.effects.emplace_back(effect::Durable{revisions.back().number});
  for (const core::SettingsRevision& one : revisions) TellRules(one, goes_on, options_.clock->NowMs());
  return revisions;
}

std::vector<core::SettingsRevision> Run::SettingsAfter(int64_t number) const {
  std::vector<core::SettingsRevision> later = settings.After(number);
  std::erase_if(later, [this](const core::SettingsRevision& one) { return one.number > durable_.revision; });
  return later;
}

// ---- The state of earlier lives ----

void Run::Restore(const StoredRun& stored, int64_t now_ms) {
  const core::RunConfig& config = options_.config;
  evaluations.Restore(stored.eval_loss);
  admission.RestoreData(stored.data);
  members.Restore(stored.rounds, now_ms);
  const bool seeded = stored.rounds.seeded;
  if (const ModelRecord& record = stored.model; record.generation > 0) {
    auto map = core::FragmentMap::FromParts(record.run.manifest, record.run.tensors_of_fragment);
    model.Restore(ModelFact(record.generation, std::move(map), seeded, record.seeder));
    BeginModel();
  }
  rules = std::make_unique<RunRules>(RulesOf(config, options_.shard), stored.rounds, now_ms, model.fact().seeder());
  for (const core::SettingsRevision& revision : settings.After(0)) {
    TellRules(revision, /*goes_on=*/false, now_ms);
  }
  ready.Note("start", absl::StrCat("epoch ", journal_.identity().epoch));
  for (const std::string& repaired : journal_.repaired()) {
    spdlog::warn("{}", repaired);
    ready.Note("repair", repaired);
  }
  Publish();
}

absl::Status Run::RestoreFragments(const std::vector<StoredFragment>& stored, int64_t now_ms) {
  if (!model.fact().known() || std::ssize(stored) != uploads.num_fragments()) {
    return absl::DataLossError(
        absl::StrCat("stored state: expected ", uploads.num_fragments(), " fragments, found ", stored.size()));
  }
  std::vector<StartingFragment> fragments;
  for (size_t p = 0; p < stored.size(); ++p) {
    const StoredFragment& fragment = stored[p];
    const auto id = static_cast<core::FragmentId>(p);
    if (!options_.shard.Owns(id)) {
      fragments.emplace_back();
      continue;
    }
    ASSIGN_OR_RETURN(core::FragmentState state, journal_.LoadSnapshot(id, fragment.snapshot));
    state.run_tokens = fragment.facts.run_tokens;
    const uint64_t digest = state.Digest();
    fragments.push_back(
        {.state = std::move(state), .digest = digest, .facts = fragment.facts, .updates = fragment.updates});
    codecs.Restore(id, rules->state().versions[p],
                   (fragment.to_replay.empty() ? fragment.facts : FactsOf(fragment.to_replay.back().record)).up);
    RETURN_IF_ERROR(uploads.Restore(id, fragment.open, rules->state(), now_ms));
  }
  model.parameters()->Set(std::move(fragments));
  model.MergeAgain(stored, codecs);
  return absl::OkStatus();
}

void Run::BeginModel() {
  uploads.Reset(model.fact().map().num_fragments());
  seeding.Void();
  codecs.SetMap(model.fact().map());
  model.Begin(ready);
}

absl::Status Run::Follow(const v1::MembershipUpdate& update, int64_t now_ms) {
  const bool had_seed = model.fact().stays();
  ASSIGN_OR_RETURN(const FollowerShard::News news, follower()->Take(update, *rules, model.fact(), ready));
  if (news == FollowerShard::News::kLater) return absl::OkStatus();
  if (news == FollowerShard::News::kAnotherModel) {
    spdlog::info("the model is generation {}, as shard 0 says", model.fact().generation());
    if (had_seed) {
      ready.Note("withdrawn", "the initial parameters: shard 0 has another model, no site has trained this");
    }
    model.Store(ready);
    BeginModel();
    rules->Handle(ModelReplaced{}, now_ms);
    members.CloseAll(ready);  // sites that were welcomed to another model come back, and are welcomed to this one
  }
  Apply(MembershipChanged{follower()->membership()}, now_ms);
  Publish();
  return absl::OkStatus();
}

void Run::Publish() {
  RunParts parts = Parts();
  notices_.Note(parts);
  std::visit([this](auto& shard) { shard.Note(*rules, model.fact(), ready); }, shard_);
  Commit(std::exchange(ready, {}), rules->state(), durable_, journal_);
}

void Run::Apply(const RunEvent& event, int64_t now_ms) { Perform(rules->Handle(event, now_ms).actions); }

void Run::Perform(const Actions& actions) {
  // Rounds come first: they take the contributions left by sites that are gone.
  for (const Action& action : actions) {
    if (const auto* close = std::get_if<CloseRound>(&action)) Do(*close);
  }
  for (const Action& action : actions) {
    if (std::holds_alternative<CloseRound>(action)) continue;
    std::visit([this](const auto& chosen) { Do(chosen); }, action);
  }
}

void Run::Do(const RequestSeed& action) {
  if (!model.fact().known()) return;
  if (!model.fact().stays()) {  // else another shard lacks its part
    // Parts sent by another seeder so far are void.
    const bool another = model.fact().ExpectSeedFrom(action.site, rules->state().sites.at(action.site).session);
    if (another || !seeding.expects()) seeding.Expect(model.fact().map().num_fragments());
    if (another) model.Store(ready);
  }
  spdlog::info("site {}: the initial parameters are requested from it", action.site);
  v1::CoordinatorMessage message;
  message.mutable_seed_request();
  members.Send(action.site, message, ready);
}

void Run::Do(const Enter& action) {
  const std::string where =
      follower() != nullptr ? "where shard 0 has put it" : absl::StrCat("after step ", action.entry.step);
  spdlog::info("site {}: enters {}", action.site, where);
  ready.state_changed = true;
  ready.Note("enter", action.site, -1, where);
  v1::CoordinatorMessage message;
  transport::ToProto(action.entry, message.mutable_entry());
  members.Send(action.site, message, ready);
}

void Run::Do(const CloseRound& action) {
  RunParts parts = Parts();
  decisions.Carry(action, parts);
}

void Run::Do(const Dropped& action) {
  spdlog::info("site {}: is out of the run: {}", action.site, action.reason);
  ready.state_changed = true;
  ready.Note("drop", action.site, -1, action.reason);
  uploads.Forget(action.site, rules->state());
  members.Drop(action.site, ready);
}

void Run::Do(const Forgotten& action) {
  spdlog::warn("site {}: its name is given up: the run has {} sites, and it has been gone for the longest time",
               action.site, core::kMaxSites);
  ready.state_changed = true;
  ready.Note("forget", action.site, -1, "if it comes back, it starts from the anchor");
  admission.ForgetData(action.site, ready);
  members.Erase(action.site);
  decisions.Forget(action.site);
}

}  // namespace causeway::server
