#include "formats/run_fields.h"

#include <set>

#include "core/limits.h"
#include "formats/config_names.h"
#include "formats/presets.h"

namespace causeway::formats {
namespace {

using core::SyncMode;
using enum Holds;
using enum Set;

constexpr int64_t kMaxSyncEvery = 1'000'000'000;  // beyond it is a typing error

// A list with an item for each fragment, or none.
void CheckLength(const std::string& path, size_t length, int num_fragments, FieldCheck& check) {
  check.Expect(length == 0 || length == static_cast<size_t>(num_fragments), path,
               absl::StrCat(num_fragments, " items, one for each of num_fragments"), absl::StrCat(length));
}

void CheckOffsets(core::SyncConfig& sync, const Fields& fields, FieldCheck& check) {
  CheckLength(fields.Path("fragment_offsets"), sync.fragment_offsets.size(), sync.num_fragments, check);
  for (size_t p = 0; p < sync.fragment_offsets.size(); ++p) {
    sync.fragment_offsets[p] = check.Integer(fields.Path(absl::StrCat("fragment_offsets[", p, "]")),
                                             sync.fragment_offsets[p], 0, sync.sync_every - 1, "less than sync_every");
  }
}

// Two lists with the same prefix would both claim a tensor.
void CheckFragments(const core::SyncConfig& sync, const Fields& fields, FieldCheck& check) {
  if (sync.fragments.empty()) return;
  CheckLength(fields.Path("fragments"), sync.fragments.size(), sync.num_fragments, check);
  check.Expect(!fields.Given("fragment_assignment"), fields.Path("fragment_assignment"),
               "it only without sync.fragments", "it beside them");
  std::set<std::string> seen;
  for (size_t p = 0; p < sync.fragments.size(); ++p) {
    const std::string path = fields.Path(absl::StrCat("fragments[", p, "]"));
    const std::vector<std::string>& prefixes = sync.fragments[p];
    check.Expect(!prefixes.empty(), path, "a list of prefixes of tensor names", "none");
    for (size_t i = 0; i < prefixes.size(); ++i) {
      const std::string at = absl::StrCat(path, "[", i, "]");
      check.Expect(prefixes[i].size() <= core::kMaxTensorNameBytes, at,
                   absl::StrCat("at most ", core::kMaxTensorNameBytes, " bytes"),
                   absl::StrCat(prefixes[i].size(), " bytes"));
      check.Expect(seen.insert(prefixes[i]).second, at, "each prefix once", absl::StrCat(prefixes[i], " again"));
    }
  }
}

void DelayFields(core::SyncConfig& sync, Fields& fields) {
  fields.Any(
      {"fragment_sync_delay", kByStep,
       "τ, the inner steps between a send and its update; auto: the least that measured transfers allow", kNotYet},
      AutoInteger{&sync.fragment_sync_delay}, "auto | 0 or more, less than sync_every");
  FieldCheck* const check = fields.check();
  if (check == nullptr) return;
  if (sync.auto_delay()) {
    // Quorum mode applies an update at the first step boundary after it is there: there is nothing to choose.
    check->Expect(sync.mode == SyncMode::kSynchronous, fields.Path("fragment_sync_delay"),
                  "a number of steps (auto is for mode: synchronous)", kAuto);
    return;
  }
  sync.fragment_sync_delay = check->Integer(fields.Path("fragment_sync_delay"), sync.fragment_sync_delay, 0,
                                            sync.sync_every - 1, "less than sync_every");
}

void CheckBatchBySite(const core::InnerConfig& inner, const Fields& fields, FieldCheck& check) {
  for (const auto& [site, rows] : inner.batch_by_site) {
    const std::string path = fields.Path(absl::StrCat("batch_by_site.", site));
    check.Expect(core::IsValidName(site), path, kSiteName, site);
    check.Integer(path, rows, 1, kMaxWidth);
  }
  check.Expect(inner.batch_by_site.empty() || inner.batch_per_rank == 0, fields.Path("batch_per_rank"),
               "none beside inner.batch_by_site", absl::StrCat(inner.batch_per_rank));
}

void CheckOnebitAdam(const core::InnerConfig& inner, const Fields& fields, FieldCheck& check) {
  const char* const without = "none without inner.optimizer: onebit_adam";
  const bool onebit_adam = inner.optimizer == core::InnerOptimizerKind::kOnebitAdam;
  check.Expect(onebit_adam || inner.onebit.warmup_codec == core::DType::kFloat32, fields.Path("warmup_codec"), without,
               core::DTypeName(inner.onebit.warmup_codec));
  if (inner.onebit.freeze_at == core::kAutoFreeze) return;
  check.Expect(onebit_adam, fields.Path("freeze_at"), without, absl::StrCat(inner.onebit.freeze_at));
  check.Integer(fields.Path("freeze_at"), inner.onebit.freeze_at, 1, kMaxSteps, "or auto");
}

void PartitionFields(core::PartitionConfig& partition, bool onebit_adam, Fields& fields) {
  const auto level = [&](const Key& key, std::string* name) {
    fields.Any(key, name, "a link level's name, rank or site");
    if (!fields.Reads()) return;
    if (name->empty()) *name = "rank";
    fields.check()->Expect(core::IsValidName(*name), fields.Path(key.name), "the name of a link level, rank or site",
                           absl::StrCat("'", *name, "'"));
  };
  if (fields.Reads()) {
    fields.check()->Expect(!onebit_adam, "inner.partition",
                           "none with inner.optimizer: onebit_adam, which averages momenta of whole models",
                           "partition");
  }
  level({"weights", kFixed, "the link level over which ranks divide them"}, &partition.weights);
  level({"gradients", kFixed, "the same"}, &partition.gradients);
  level({"optimizer", kFixed, "the same of its state"}, &partition.optimizer);
}

// Larger values are typos.
constexpr int64_t kMaxRounds = 1'000'000'000;
constexpr int64_t kMaxMilliseconds = 86'400'000;  // a day
constexpr int64_t kMinLeaseMs = 100;              // a few heartbeats and a round trip around the world
constexpr int64_t kMaxKeptStates = 1'000;
constexpr int64_t kMaxStaleness = 1'000;
constexpr int64_t kMaxTokensPerStep = 1'000'000'000'000;
constexpr int64_t kMaxBytes = int64_t{1} << 50;
constexpr int64_t kMinSubgroup = 1'000;  // fewer would be all overhead
constexpr int64_t kMaxSubgroup = 10'000'000'000;

void DataFields(core::DataConfig& data, Fields& fields) {
  fields.OneOf({"mode", kFixed,
                "own: each site trains on all of its own data; shared: all bring the same, each trains on a part"},
               &data.mode, kDataModes);
  fields.Any({"token_bytes", kFixed, "of a token in .bin files that do not say it themselves"}, &data.token_bytes,
             "2 | 4");
  fields.Any({"allow_equal", kFixed, "own: sites may bring equal data"}, &data.allow_equal, "true | false");
  if (!fields.Reads()) return;
  if (data.token_bytes == 0) data.token_bytes = core::DataConfig().token_bytes;
  fields.check()->Expect(data.token_bytes == 2 || data.token_bytes == 4, fields.Path("token_bytes"), "2 | 4",
                         absl::StrCat(data.token_bytes));
}

// SGD is Nesterov with momentum 0; a momentum that is given beside it would be ignored, so it is refused.
void OuterFields(core::OuterParameters& outer, bool& codec_gain, Fields& fields) {
  bool sgd = outer.momentum == 0 && !fields.Reads();
  fields.OneOf<bool>({"optimizer", kFixed, "of the global parameters; sgd has no momentum"}, &sgd,
                     {{kNesterov, false}, {kSgd, true}});
  fields.NotNegative({"lr", kByRound, "its learning rate"}, &outer.lr);
  fields.ShareBelowOne({"momentum", kByRound, "its momentum"}, &outer.momentum);
  fields.Any({"codec_gain", kFixed, "undoes that codecs without feedback shrink the step: one lr serves all"},
             &codec_gain, "true | false");
  if (!fields.Reads() || !sgd) return;
  fields.check()->Expect(!fields.Given("momentum") || outer.momentum == 0, fields.Path("momentum"),
                         "0 (the optimizer is sgd)", absl::StrCat(outer.momentum));
  outer.momentum = 0;
}

void MembershipFields(core::MembershipConfig& membership, SyncMode mode, Fields& fields) {
  const bool quorum = mode == SyncMode::kQuorum;
  fields.Integer({"min_sites", kAtOnce, "training starts when this number of sites has joined"}, &membership.min_sites,
                 1, core::kMaxSites);
  fields.Integer({"min_quorum", kAtOnce,
                  "with fewer active sites the run pauses; in quorum mode a round takes at least this number"},
                 &membership.min_quorum, 1, core::kMaxSites);
  fields.Integer({"grace_ms", kAtOnce, "quorum mode: the longest wait for further sites once there is a quorum"},
                 &membership.grace_ms, 0, quorum ? kMaxMilliseconds : 0,
                 quorum ? "" : "a round in synchronous mode waits for all sites");
  fields.Integer({"lease_ms", kAtOnce, "a silent site keeps its place for this long"}, &membership.lease_ms,
                 kMinLeaseMs, kMaxMilliseconds);
  fields.Integer({"max_staleness", kAtOnce, "quorum mode: the versions that a late contribution may be behind"},
                 &membership.max_staleness, 0, kMaxStaleness);
  fields.OneOf({"weights", kByRound, "of the sites in a round"}, &membership.weights, kWeightRules);
  fields.OneOf({"merge", kByRound, "how a round's contributions become one outer gradient"}, &membership.merge,
               kMergeRules);
  fields.Integer(
      {"max_tokens_per_step", kByRound,
       "of a site, beyond which a contribution is refused; 0: as `inner` says for kind llama, else no bound"},
      &membership.max_tokens_per_step, 0, kMaxTokensPerStep);
}

void ValuesFields(core::ValuesConfig& values, Fields& fields) {
  fields.NotNegative({"gate", kAtOnce,
                      "a contribution longer than this many times the usual of the sites' last 16 is scaled down to "
                      "it, or refused; 0: off"},
                     &values.gate);
  fields.Any({"clip", kAtOnce, "true: scaled; false: refused, and after three in a row its site is in quarantine"},
             &values.clip, "true | false");
  fields.Share({"weight_cap", kAtOnce, "largest share of a site in a round; 0: off"}, &values.weight_cap);
  FieldCheck* const check = fields.check();
  if (check == nullptr) return;
  check->Expect(values.gate == 0 || values.gate >= 1, fields.Path("gate"), "0 (off) or at least 1",
                absl::StrCat(values.gate));
}

void EvalFields(core::EvalConfig& eval, Fields& fields) {
  fields.Integer(
      {"every_rounds", kByRound, "evaluates after this number of rounds of all fragments; 0: never", kNotYet},
      &eval.every_rounds, 0, kMaxRounds);
  fields.ShareBelowOne({"held_out", kFixed, "share of the data, at its end, that no site trains on"}, &eval.held_out);
  fields.Integer({"batches", kByRound, "of an evaluation", kNotYet}, &eval.batches, 1, kMaxWidth);
}

void CheckpointFields(core::CheckpointConfig& checkpoint, Fields& fields) {
  fields.Integer({"every_rounds", kByStart, "saves after this number of rounds; 0: only when stopped"},
                 &checkpoint.every_rounds, 0, kMaxRounds);
  fields.Integer({"keep", kByStart, "how many stay"}, &checkpoint.keep, 1, kMaxKeptStates);
  fields.Integer({"max_update_log_bytes", kByStart, "updates that the coordinator keeps for sites that come back"},
                 &checkpoint.max_update_log_bytes, 0, kMaxBytes);
  fields.Integer({"min_free_bytes", kByStart, "the coordinator ends before its disk has less"},
                 &checkpoint.min_free_bytes, 0, kMaxBytes);
}

// A value that is written as a word or a number; `read` takes the text.
template <typename ReadText>
void WordFields(const Key& key, std::string text, const char* expected, ReadText read, Fields& fields) {
  fields.Any(key, &text, expected);
  if (fields.Reads()) fields.check()->Ok(fields.Path(key.name), read(text));
}

void OffloadFields(core::OffloadConfig& offload, Fields& fields) {
  WordFields(
      {"k", kByStart, "every k-th subgroup of the optimizer's state is updated on the device"},
      core::InterleaveName(offload.k), "auto | resident | cpu | 1 | 2 | …",
      [&](const std::string& text) { return ReadInterleave(text, &offload); }, fields);
  fields.Integer({"subgroup", kByStart, "values that are moved at a time"}, &offload.subgroup, kMinSubgroup,
                 kMaxSubgroup, "values");
  WordFields(
      {"resident_share", kByStart, "of the subgroups, those that stay on the device"},
      core::ShareName(offload.resident_share), "auto | 0 to 1",
      [&](const std::string& text) { return ReadShare(text, &offload); }, fields);
}

}  // namespace

void SyncFields(core::SyncConfig& sync, Fields& fields) {
  fields.OneOf({"mode", kFixed, "an update merges all active sites, or a quorum of them"}, &sync.mode, kSyncModes);
  fields.Integer({"sync_every", kByStep, "H, inner steps between two sends of a fragment", kNotYet}, &sync.sync_every,
                 1, kMaxSyncEvery);
  fields.Integer({"num_fragments", kFixed, "P, at most sync_every"}, &sync.num_fragments, 1, core::kMaxFragments);
  if (FieldCheck* check = fields.check()) {
    sync.num_fragments = static_cast<int>(
        check->Integer(fields.Path("num_fragments"), sync.num_fragments, 1, sync.sync_every, "at most sync_every"));
  }
  if (fields.Wants(sync.fragments.empty())) {
    fields.OneOf({"fragment_assignment", kFixed, "which layers each fragment has"}, &sync.fragment_assignment,
                 kAssignments);
  }
  DelayFields(sync, fields);
  fields.Share({"fragment_update_alpha", kByStep,
                "α, weight of the site's own value when the update comes; 0 takes the global value", kNotYet},
               &sync.fragment_update_alpha);
  fields.OneOf({"first_send", kFixed, "of each fragment: sync_every steps after its offset, or at its offset"},
               &sync.first_send, kFirstSends);
  fields.Integer({"parts", kFixed, "into which each fragment is cut; placement: sites sets it to the number of shards"},
                 &sync.parts, 1, core::kMaxFragments / std::max(1, sync.num_fragments), "1024 fragments in all");
  fields.OneOf({"device_memory", kByStart, "of anchors and residuals where a GPU encodes"}, &sync.device_memory,
               kSyncMemories);
  fields.Any({"fragment_offsets", kFixed, "each fragment's step within sync_every; none: spread evenly"},
             &sync.fragment_offsets, "a list of steps");
  fields.Any(
      {"fragments", kFixed, "instead of fragment_assignment, for each fragment the prefixes of its tensors' names"},
      &sync.fragments, "a list of lists");
  if (FieldCheck* check = fields.check()) {
    CheckOffsets(sync, fields, *check);
    CheckFragments(sync, fields, *check);
  }
}

void InnerFields(core::InnerConfig& inner, Fields& fields) {
  fields.OneOf({"optimizer", kFixed, "inside each site"}, &inner.optimizer, kInnerOptimizers);
  fields.NotNegative({"lr", kByStep, "its learning rate"}, &inner.lr);
  fields.Integer({"warmup_steps", kByStep, "lr rises linearly over these"}, &inner.warmup_steps, 0, kMaxSteps);
  fields.OneOf({"schedule", kByStep, "cosine: to a tenth of lr at the run's end"}, &inner.schedule, kInnerSchedules);
  fields.ShareBelowOne({"beta1", kByStep, "decay of the mean of gradients; not sgd", kNotYet}, &inner.beta1);
  fields.ShareBelowOne({"beta2", kByStep, "decay of the mean of their squares; not sgd", kNotYet}, &inner.beta2);
  fields.NotNegative({"weight_decay", kByStep, "share of a parameter, times lr, that a step takes away", kNotYet},
                     &inner.weight_decay);
  fields.NotNegative({"clip", kByStep, "largest norm of a gradient; 0: off", kNotYet}, &inner.clip);
  fields.Integer({"batch_size", kByStep, "sequences in a step of one site, which its ranks share", kNotYet},
                 &inner.batch_size, 1, kMaxWidth);
  fields.Integer({"sequence_length", kFixed, "tokens of a training row; 0: max_position_embeddings"},
                 &inner.sequence_length, 0, kMaxWidth);
  fields.Integer(
      {"batch_per_rank", kByStep, "sequences in a step of each rank, in place of batch_size; 0: off", kNotYet},
      &inner.batch_per_rank, 0, kMaxWidth);
  fields.Any({"freeze_at", kByStep, "onebit_adam: the step after which the variance stays; auto: once it has settled",
              kNotYet},
             AutoInteger{&inner.onebit.freeze_at}, "auto | 1 or more");
  fields.OneOf({"warmup_codec", kFixed, "onebit_adam: of gradients between a site's ranks until then"},
               &inner.onebit.warmup_codec, kWarmupCodecs);
  fields.Any({"micro_batches", kFixed, "parts of a rank's sequences of a step, whose gradients add up"},
             &inner.micro_batches, "1 or more");
  const bool onebit_adam = inner.optimizer == core::InnerOptimizerKind::kOnebitAdam;
  fields.OptionalSection("partition", &inner.partition,
                         [&](core::PartitionConfig& partition) { PartitionFields(partition, onebit_adam, fields); });
  fields.Any({"batch_by_site", kByStep, "sequences in a step of named sites; the others have batch_size", kNotYet},
             &inner.batch_by_site, "integers by site");
  FieldCheck* const check = fields.check();
  if (check == nullptr) return;
  if (inner.micro_batches == 0) inner.micro_batches = 1;
  inner.micro_batches = check->Integer(fields.Path("micro_batches"), inner.micro_batches, 1, kMaxWidth);
  CheckBatchBySite(inner, fields, *check);
  CheckOnebitAdam(inner, fields, *check);
}

void RunFields(core::RunConfig& config, Fields& fields) {
  fields.Any({"run_id", kFixed, "names the run in every message and file"}, &config.run_id, "a name");
  fields.Any({"seed", kFixed, "of everything random"}, &config.seed, "0 to 2^64 - 1");
  FieldCheck* const check = fields.check();
  if (check != nullptr) {
    check->Expect(core::IsValidName(config.run_id), "run_id", "a name of 1 to 64 characters A-Z a-z 0-9 . _ -",
                  config.run_id.empty() ? "none" : config.run_id);
  }
  if (fields.Wants(false)) {  // it has been replaced by what it stands for
    std::string preset;
    fields.Any({"preset", kFixed, "stands for codec, feedback, outer and sync_every; keys beside it overrule"}, &preset,
               kPresetNames);
  }
  fields.Section("run", [&] {
    fields.Integer({"steps", kByStep, "inner steps that each site takes; 0: until stopped"}, &config.steps, 0,
                   kMaxSteps);
    fields.Integer(
        {"tokens", kByStep, "quorum mode: of all sites, after which the run ends; the schedule is over them; 0: off"},
        &config.tokens, 0, core::kMostRunTokens);
  });
  fields.Section("model", [&] {
    fields.OneOf({"kind", kFixed, "synthetic is a load generator; external: the sites bring the model"},
                 &config.model_kind, kModelKinds);
    ModelFields(config, fields);
  });
  if (config.model_kind != core::ModelKind::kExternal) {
    fields.Section("inner", [&] { InnerFields(config.inner, fields); });
  }
  fields.Section("sync", [&] { SyncFields(config.sync, fields); });
  fields.Section("outer", [&] { OuterFields(config.outer, config.codec_gain, fields); });
  fields.Section("codec", [&] { CodecFields(config.codec, config.sync.mode, fields); });
  fields.Section("membership", [&] { MembershipFields(config.membership, config.sync.mode, fields); });
  fields.Section("eval", [&] { EvalFields(config.eval, fields); });
  fields.Section("checkpoint", [&] { CheckpointFields(config.checkpoint, fields); });
  fields.Section("offload", [&] { OffloadFields(config.offload, fields); });
  fields.Section("data", [&] { DataFields(config.data, fields); });
  fields.Section("values", [&] { ValuesFields(config.values, fields); });
  fields.Section("durability", [&] {
    fields.OneOf({"journal", kByStart, "when a contribution is acknowledged: on the disk, or written"},
                 &config.durability.journal, kJournalModes);
  });
  fields.OneOf({"placement", kFixed, "where the shards run; sites: one in each site's datacenter"}, &config.placement,
               kPlacements);
  if (check == nullptr) return;
  if (config.codec.sparse_down()) {
    config.codec.down = core::SparseDown(config.codec.up, config.membership.min_sites);
  }
  check->Expect(config.tokens == 0 || config.sync.mode == SyncMode::kQuorum, "run.tokens",
                "sync.mode: quorum with it, since sites in step are at the same learning rate",
                absl::StrCat(config.tokens, " in synchronous mode"));
  check->Expect(config.sync.parts == 1 || config.membership.merge == core::MergeRule::kAverage, "membership.merge",
                "average with sync.parts, since radial_directional needs all of a tensor", "radial_directional");
}

}  // namespace causeway::formats
