#include "server/run/run.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/check.h"
#include "core/limits.h"
#include "core/text.h"
#include "transport/messages.h"

namespace causeway::server {

RoundSettings RulesOf(const core::RunConfig& config, const core::Shard& shard) {
  return {config.sync,
          config.membership,
          shard,
          config.values,
          [config](const core::SiteId& site) { return config.MaxTokensPerStep(site); },
          config.steps,
          config.tokens};
}

RunParts::RunParts(const RunOptions& options, Journal& journal, RunFigures& figures, DurableFacts& durable,
                   RunModel::Listeners listeners)
    : options(options),
      journal(journal),
      figures(figures),
      durable(durable),
      settings(options.config),
      admission(options, journal.identity()),
      codecs(settings),
      model(settings, &journal, std::move(listeners)) {
  if (!options.shard.leads()) shard = FollowerShard();
}

// ---- The rules' decisions ----

namespace {

// γ of a round: the product over the legs that have no feedback, where the run wants it.
float GainOf(const core::RunConfig& config, const std::optional<RoundCodecs>& codecs) {
  if (!config.codec_gain) return 1;
  const float up = config.codec.feedback_up > 0 ? 1 : core::CodecGain(codecs ? codecs->up : config.codec.up);
  const float down = config.codec.feedback_down > 0 ? 1 : core::CodecGain(codecs ? codecs->down : config.codec.down);
  return up * down;
}

std::optional<RoundCodecs> DecideCodecs(RunParts& run, const CloseRound& round) {
  const std::optional<RoundCodecs> codecs =
      run.codecs.Decide(round.fragment, round.base, run.rules->ActiveSites(), std::ssize(round.contributors));
  for (const std::string& change : run.codecs.TakeChanges()) {
    spdlog::info("codec {}", change);
    run.ready.Note("codec", change);
  }
  return codecs;
}

std::string WhyMissed(const RunParts& run, const CloseRound& action, const core::SiteId& site,
                      const core::SiteRecord& record, const Member& member) {
  const core::Version first = record.first_versions[action.fragment];
  if (first > action.base) return absl::StrCat("takes part from version ", first + 1, " on");
  if (member.silent_ms) return "its control stream was broken";
  if (member.progress->completing) return "it has done all its steps";
  const char* where = run.uploads.Find(action.fragment, site) != nullptr ? "its contribution was on its way"
                                                                         : "it had not begun to send its contribution";
  return absl::StrCat(where, " when the round closed: ", action.reason);
}

void NoteMembers(RunParts& run, const CloseRound& action) {
  const int64_t unix_ms = run.options.clock->UnixMs();
  const core::Version version = action.base + 1;
  int64_t first_ms = run.options.clock->NowMs();
  const int64_t now_ms = first_ms;
  for (const CloseRound::Contributor& contributor : action.contributors) {
    first_ms = std::min(first_ms, run.uploads.Find(action.fragment, contributor.site)->begun_ms);
    Member& member = run.members[contributor.site];
    member.last_merged = {action.fragment, version, unix_ms};
    member.staleness = action.base - contributor.base;
  }
  for (const auto& [site, record] : run.rules->state().sites) {
    const bool contributed = std::ranges::count(action.contributors, site, &CloseRound::Contributor::site) > 0;
    Member* const member = run.members.Find(site);
    if (contributed || !core::IsActive(record.state) || member == nullptr) continue;
    member->missed = {action.fragment, version, WhyMissed(run, action, site, record, *member)};
  }
  run.figures.Decided(action.fragment, version, action.reason, unix_ms, SecondsOf(now_ms - first_ms));
}

// Takes the round's contributions; they are merged once the decision is durable.
void Do(RunParts& run, const CloseRound& action) {
  const core::RunConfig& config = run.settings.AtVersion(action.fragment, action.base);
  RoundRecord round{.fragment = action.fragment,
                    .base = action.base,
                    .outer = config.outer,  // its gain follows
                    .sites = action.sites,
                    .reason = action.reason,
                    .codecs = DecideCodecs(run, action),
                    .run_tokens = action.run_tokens,
                    .revision = run.settings.RevisionAt(action.fragment, action.base),
                    .rolled_back_to = action.rolled_back_to};
  round.outer.gain = GainOf(config, round.codecs);
  std::vector<double> weights;
  for (const CloseRound::Contributor& contributor : action.contributors) weights.push_back(contributor.weight);
  const std::vector<float> normalized = NormalizedWeights(weights);
  NoteMembers(run, action);
  MergeJob job;
  for (size_t i = 0; i < action.contributors.size(); ++i) {
    const CloseRound::Contributor& contributor = action.contributors[i];
    round.contributors.push_back({contributor.site, contributor.base, normalized[i], contributor.factor});
    job.contributions.push_back(run.uploads.Take(action.fragment, contributor.site));
    run.members[contributor.site].merged_weight += normalized[i];
  }
  if (action.rolled_back_to) run.uploads.Clear(action.fragment);
  ++run.said.rounds;
  // Without its numbers, a reason changes only when something other than the time does.
  std::string reason = action.reason;
  std::erase_if(reason, [](char c) { return absl::ascii_isdigit(c); });
  std::string& noted = run.said.reasons_of_rounds[action.fragment];
  if (noted != reason) spdlog::info("fragment {}: rounds close as {}", action.fragment, action.reason);
  noted = std::move(reason);
  run.ready.Note(
      "round", "", action.fragment,
      absl::StrCat("version ", action.base + 1, ": ", action.reason, ": ",
                   absl::StrJoin(round.contributors, ", ", [](std::string* out, const RoundRecord::Contributor& c) {
                     absl::StrAppend(out, c.site, " (base ", c.base, ", weight ", c.weight, ")");
                   })));
  run.ready.state_changed = true;
  job.round = round;
  run.ready.entry.decided.push_back(std::move(round));
  run.ready.effects.emplace_back(effect::Merge{run.model.parameters(), std::move(job)});
}

void Do(RunParts& run, const RequestSeed& action) {
  ModelFact& model = run.model.fact();
  if (!model.known()) return;
  if (!model.stays()) {  // else another shard lacks its part
    // Parts sent by another seeder so far are void.
    const bool another = model.ExpectSeedFrom(action.site, run.rules->state().sites.at(action.site).session);
    if (another || !run.uploads.seeding.expects()) run.uploads.seeding.Expect(model.map().num_fragments());
    if (another) run.model.Store(run.ready);
  }
  spdlog::info("site {}: the initial parameters are requested from it", action.site);
  v1::CoordinatorMessage message;
  message.mutable_seed_request();
  run.members.Send(action.site, message, run.ready);
}

void Do(RunParts& run, const Enter& action) {
  const std::string where =
      run.follower() != nullptr ? "where shard 0 has put it" : absl::StrCat("after step ", action.entry.step);
  spdlog::info("site {}: enters {}", action.site, where);
  run.ready.state_changed = true;
  run.ready.Note("enter", action.site, -1, where);
  v1::CoordinatorMessage message;
  transport::ToProto(action.entry, message.mutable_entry());
  run.members.Send(action.site, message, run.ready);
}

void Do(RunParts& run, const Dropped& action) {
  spdlog::info("site {}: is out of the run: {}", action.site, action.reason);
  run.ready.state_changed = true;
  run.ready.Note("drop", action.site, -1, action.reason);
  ForgetUploads(run, action.site);
  run.members.Drop(action.site, run.ready);
}

void Do(RunParts& run, const Forgotten& action) {
  spdlog::warn("site {}: its name is given up: the run has {} sites, and it has been gone for the longest time",
               action.site, core::kMaxSites);
  run.ready.state_changed = true;
  run.ready.Note("forget", action.site, -1, "if it comes back, it starts from the anchor");
  run.admission.ForgetData(action.site, run.ready);
  run.members.Erase(action.site);
  run.figures.Forget(action.site);
}

}  // namespace

void Apply(RunParts& run, const RunEvent& event, int64_t now_ms) {
  Perform(run, run.rules->Handle(event, now_ms).actions);
}

void Perform(RunParts& run, const Actions& actions) {
  // Rounds come first: they take the contributions left by sites that are gone.
  for (const Action& action : actions) {
    if (const auto* close = std::get_if<CloseRound>(&action)) Do(run, *close);
  }
  for (const Action& action : actions) {
    if (std::holds_alternative<CloseRound>(action)) continue;
    std::visit([&run](const auto& chosen) { Do(run, chosen); }, action);
  }
}

void BeginModel(RunParts& run) {
  run.uploads.Reset(run.model.fact().map().num_fragments());
  run.codecs.SetMap(run.model.fact().map());
  run.model.Begin(run.ready);
}

void TellRules(RunParts& run, const core::SettingsRevision& revision, bool goes_on, int64_t now_ms) {
  const RoundSettings changed = RulesOf(run.settings.Of(revision.number), run.options.shard);
  Apply(run,
        SettingsChanged{revision.versions, changed.membership, changed.values, changed.max_tokens_per_step,
                        changed.steps, changed.run_tokens, goes_on},
        now_ms);
}

// ---- Inputs of sites ----

absl::Status Handle(RunParts& run, const input::SiteReady& ready, int64_t now_ms) {
  const core::SiteId site = run.members.SiteOf(ready.peer);
  if (!site.empty()) Apply(run, SiteReady{site, run.members[site].session}, now_ms);
  return absl::OkStatus();
}

absl::Status Handle(RunParts& run, const input::Progress& input, int64_t now_ms) {
  const core::SiteId site = run.members.SiteOf(input.peer);
  if (site.empty()) return absl::OkStatus();
  Member& member = run.members[site];
  Apply(run,
        SiteReport{.site = site,
                   .session = member.session,
                   .step = input.progress.step(),
                   .tokens = input.progress.tokens(),
                   .completing = input.progress.completing(),
                   .unheard_ms = input.progress.unheard_ms(),
                   .standing_still = input.progress.ranks().standing_still()},
        now_ms);
  core::Progress progress = transport::FromProto(input.progress);
  run.codecs.Heard(site, progress);
  if (std::isnan(progress.loss)) progress.loss = member.progress->loss;  // nothing new
  if (progress.eval_loss && run.admission.data.EvaluatesForAll(site)) {
    run.eval_loss.latest = progress.eval_loss;
    run.eval_loss.versions = progress.eval_versions;
    if (!run.eval_loss.start) run.eval_loss.start = progress.eval_loss;
  } else if (progress.eval_loss) {
    run.eval_loss.by_site[site] = {.loss = *progress.eval_loss, .versions = progress.eval_versions};
  }
  if (progress.eval_loss) run.ready.entry.eval_loss = run.eval_loss;
  member.progress = std::make_shared<const core::Progress>(std::move(progress));
  return absl::OkStatus();
}

absl::Status Handle(RunParts& run, const input::Leave& input, int64_t now_ms) {
  const core::SiteId site = run.members.SiteOf(input.peer);
  if (site.empty()) return absl::OkStatus();
  if (run.follower() != nullptr) {  // shard 0 will announce its meaning
    run.members.Close(site, run.ready);
  } else {
    Apply(run,
          SiteLeaves{site, run.members[site].session, input.leave.finished(),
                     core::Clipped(input.leave.reason(), core::kMaxSiteTextBytes)},
          now_ms);
  }
  return absl::OkStatus();
}

absl::Status Handle(RunParts& run, const input::Disconnected& gone, int64_t now_ms) {
  const core::SiteId site = run.members.SiteOf(gone.peer);
  if (site.empty()) return absl::OkStatus();
  run.members.Silent(site, now_ms);
  Apply(run, SiteDisconnected{site, run.members[site].session}, now_ms);
  spdlog::warn("site {}: its control stream broke; its name is kept for {} ms", site,
               run.settings.newest().membership.lease_ms);
  return absl::OkStatus();
}

absl::Status Handle(RunParts& run, const input::Flooded& flooded, int64_t now_ms) {
  if (run.members.Complain(flooded.site, &Member::flood, flooded.why, now_ms)) {
    run.ready.Note("noisy", flooded.site, -1, flooded.why);
  }
  return absl::OkStatus();
}

// Leases do not run while this process stands still: a tick later than a quarter of a lease is late.
absl::Status Handle(RunParts& run, const input::Tick&, int64_t now_ms) {
  const bool first = !std::exchange(run.said.ticked, true);
  const int64_t from_ms = std::exchange(run.said.ticked_ms, now_ms);
  if (now_ms - from_ms > run.options.config.membership.lease_ms / 4) {
    run.rules->Handle(StoodStill{from_ms}, now_ms);
    if (!first) {
      const std::string text = absl::StrCat("this process stood still for ", now_ms - from_ms,
                                            " ms; the sites' leases go on from where they were");
      spdlog::warn("{}", text);
      run.ready.Note("stall", text);
    }
  }
  Apply(run, Tick{}, now_ms);
  return absl::OkStatus();
}

// ---- The run ----

namespace {

// Tells the sites, the log and the history what is news about the run as a whole: whether they hold before their next
// step, and why the run does not train.
void TellNews(RunParts& run) {
  if (const bool held = run.rules->held(); held != run.said.held) {
    run.said.held = held;
    v1::CoordinatorMessage message;
    message.mutable_hold()->set_held(held);
    run.members.SendToAll(message, run.ready);
  }
  const std::string reason = run.rules->Reason();
  if (reason == run.said.reason) return;
  run.said.reason = reason;
  if (reason.empty()) return;
  const char* const state = RunStateName(run.rules->run_state());
  spdlog::info("{}: {}", state, reason);
  run.ready.Note("run", absl::StrCat(state, ": ", reason));
  run.members.SendToAll(transport::NoticeOf(reason), run.ready);
}

}  // namespace

Ready Run::TakeReady() {
  TellNews(parts_);
  std::visit([this](auto& shard) { shard.Note(parts_); }, parts_.shard);
  if (parts_.ready.state_changed) parts_.ready.entry.state = parts_.rules->state();
  return std::exchange(parts_.ready, {});
}

Ready Run::Handle(const Input& input, int64_t now_ms) {
  parts_.ready.status = std::visit([&](const auto& one) { return server::Handle(parts_, one, now_ms); }, input);
  return TakeReady();
}

absl::StatusOr<Ready> Run::Restore(const StoredRun& stored, int64_t now_ms) {
  RunParts& run = parts_;
  run.said.ticked_ms = now_ms;
  run.settings.BeginAfter(stored.settings.before);
  for (const core::SettingsRevision& revision : stored.settings.revisions) {
    ASSIGN_OR_RETURN(core::RunConfig config, ReadSettings(run.options.config, revision.run_config));
    run.settings.Add(revision, std::move(config));
  }
  run.durable.revision = run.settings.revision();
  run.eval_loss = stored.eval_loss;
  run.admission.data = DataFact(run.options.config.data, stored.data);
  run.members.Restore(stored.rounds, now_ms);
  if (const ModelRecord& record = stored.model; record.generation > 0) {
    auto map = core::FragmentMap::FromParts(record.run.manifest, record.run.tensors_of_fragment);
    run.model.Restore(ModelFact(record.generation, std::move(map), stored.rounds.seeded, record.seeder));
    BeginModel(run);
  }
  run.rules = std::make_unique<RunRules>(RulesOf(run.options.config, run.options.shard), stored.rounds, now_ms,
                                         run.model.fact().seeder());
  for (const core::SettingsRevision& revision : run.settings.After(0)) {
    TellRules(run, revision, /*goes_on=*/false, now_ms);
  }
  if (run.admission.may_lose_its_end()) run.rules->Handle(AwaitSites{}, now_ms);
  run.ready.Note("start", absl::StrCat("epoch ", run.journal.identity().epoch));
  for (const std::string& repaired : run.journal.identity().repaired) {
    spdlog::warn("{}", repaired);
    run.ready.Note("repair", repaired);
  }
  return TakeReady();
}

absl::Status Run::RestoreFragments(const std::vector<StoredFragment>& stored, int64_t now_ms) {
  RunParts& run = parts_;
  if (!run.model.fact().known() || std::ssize(stored) != run.uploads.num_fragments()) {
    return absl::DataLossError(
        absl::StrCat("stored state: expected ", run.uploads.num_fragments(), " fragments, found ", stored.size()));
  }
  std::vector<StartingFragment> fragments;
  for (size_t p = 0; p < stored.size(); ++p) {
    const StoredFragment& fragment = stored[p];
    const auto id = static_cast<core::FragmentId>(p);
    if (!run.options.shard.Owns(id)) {
      fragments.emplace_back();
      continue;
    }
    ASSIGN_OR_RETURN(core::FragmentState state, run.journal.LoadSnapshot(id, fragment.snapshot));
    state.run_tokens = fragment.facts.run_tokens;
    const uint64_t digest = state.Digest();
    fragments.push_back(
        {.state = std::move(state), .digest = digest, .facts = fragment.facts, .updates = fragment.updates});
    run.codecs.Restore(id, run.rules->state().versions[p],
                       (fragment.to_replay.empty() ? fragment.facts : FactsOf(fragment.to_replay.back().record)).up);
    RETURN_IF_ERROR(RestoreUploads(run, id, fragment.open, now_ms));
  }
  run.model.parameters()->Set(std::move(fragments));
  run.model.MergeAgain(stored, run.codecs);
  return absl::OkStatus();
}

}  // namespace causeway::server
