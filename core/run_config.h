// The configuration of a run: the content of run.yaml as plain values. Every default is the documented one (docs of
// deploy/run.yaml); formats/run_yaml.h reads it from a file and checks it, so that everywhere else a RunConfig is known
// to be valid.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/codec_id.h"
#include "core/dtype.h"
#include "core/ids.h"
#include "core/manifest.h"
#include "core/outer_step.h"
#include "core/schedule.h"

namespace causeway::core {

// The schedule of fragments: `sync` of run.yaml.
enum class FragmentAssignment { kStrided, kSequential, kBalanced };

// Synchronous: a round takes all active sites, and each site waits for it where the schedule applies its update.
// Quorum: a round takes min_quorum sites and any others that come within the grace; no site waits.
enum class SyncMode { kSynchronous, kQuorum };

inline constexpr int64_t kAutoDelay = -1;  // fragment_sync_delay: auto

// The anchors and residuals kept on a device that encodes contributions, in addition to the host's: all of them where
// there is room, or those of the fragment being encoded.
enum class SyncMemory { kAuto, kFragment };

struct SyncConfig {
  SyncMode mode = SyncMode::kSynchronous;
  int64_t sync_every = 20;  // H
  int num_fragments = 4;    // P
  int parts = 1;            // parts into which each fragment is divided, all of its offset, for as many shards
  FragmentAssignment fragment_assignment = FragmentAssignment::kStrided;
  int64_t fragment_sync_delay = 1;     // τ; kAutoDelay: each site chooses its own at each send
  float fragment_update_alpha = 0.5f;  // α
  std::vector<Step> fragment_offsets;  // t_p of each fragment; empty: spread evenly over H
  FirstSend first_send = FirstSend::kFull;
  SyncMemory device_memory = SyncMemory::kAuto;
  // Name prefixes of each fragment's tensors; the longest match decides. Empty: fragment_assignment.
  std::vector<std::vector<std::string>> fragments;

  bool auto_delay() const { return fragment_sync_delay == kAutoDelay; }
  int map_fragments() const { return num_fragments * parts; }  // number of fragments in the fragment map
  FragmentSchedule Schedule() const {
    const int64_t delay = auto_delay() ? 0 : fragment_sync_delay;
    const FragmentSchedule whole(sync_every, num_fragments, delay, fragment_offsets, first_send);
    if (parts == 1) return whole;
    std::vector<Step> offsets;
    for (FragmentId f = 0; f < map_fragments(); ++f) offsets.push_back(whole.Offset(f / parts));
    return FragmentSchedule(sync_every, map_fragments(), delay, std::move(offsets), first_send);
  }
  friend bool operator==(const SyncConfig&, const SyncConfig&) = default;
};

// The contributions that a round takes, and their weights: `membership` and `values` of run.yaml.

// The weight of a contribution in its round, from the tokens and steps since the site's last merged one.
enum class WeightRule { kUniform, kTokens, kTokensSquaredPerStep };

// The rule by which a round's contributions become one outer gradient (arXiv 2604.21428, appendix on merging).
enum class MergeRule { kAverage, kRadialDirectional };

struct MembershipConfig {
  int min_sites = 1;          // how many sites the start waits for
  int min_quorum = 1;         // with fewer active sites the run pauses; quorum mode: the minimum number for a round
  int64_t grace_ms = 0;       // quorum mode: longest wait for further sites once there is a quorum
  int64_t lease_ms = 10000;   // how long a site keeps its name after it was last heard from
  int64_t max_staleness = 1;  // quorum mode: how many versions a contribution's base may be behind
  WeightRule weights = WeightRule::kUniform;
  MergeRule merge = MergeRule::kAverage;
  int64_t max_tokens_per_step = 0;  // bound for one site; 0: from `inner` for a Llama, else no bound

  friend bool operator==(const MembershipConfig&, const MembershipConfig&) = default;
};

// The contributions that are accepted, by their values (server/rounds/value_rules.h).
struct ValuesConfig {
  double gate = 8;        // how many times the usual length a contribution may have; 0 = off
  bool clip = false;      // a longer contribution is scaled down to the gate instead of refused
  double weight_cap = 0;  // largest share of a site in a round; 0 = off

  friend bool operator==(const ValuesConfig&, const ValuesConfig&) = default;
};

// Offloading of the inner optimizer's state: `offload` of run.yaml.

inline constexpr int64_t kAutoInterleave = -1;  // offload.k: auto
inline constexpr int64_t kAllOnCpu = 0;         // offload.k: cpu
inline constexpr int64_t kResident = -2;        // offload.k: resident

// "auto", "cpu", "resident", "2".
inline std::string InterleaveName(int64_t k) {
  if (k == kAutoInterleave) return "auto";
  if (k == kResident) return "resident";
  return k == kAllOnCpu ? "cpu" : std::to_string(k);
}

inline constexpr double kAutoShare = -1;  // offload.resident_share: auto

// "auto", "0.25".
inline std::string ShareName(double share) { return share == kAutoShare ? "auto" : absl::StrCat(share); }

// The place where workers that have a device update the inner optimizer's state. Changes no bit of the result.
struct OffloadConfig {
  int64_t k = kAutoInterleave;         // every k-th subgroup on the device; kAutoInterleave: by measured bandwidths
  double resident_share = kAutoShare;  // share of subgroups that stay on the device; auto: if k is auto, all that fit
  int64_t subgroup = 100'000'000;      // values moved at a time; the device holds two times 12 bytes of each

  friend bool operator==(const OffloadConfig&, const OffloadConfig&) = default;
};

// The shape of a Llama: `model` of run.yaml, where its kind is llama.

// Llama 3's extension of RoPE to longer texts (rope_type: llama3): long waves turn `factor` times slower, short ones as
// before, those in between by a mean of both. Names as in Hugging Face.
struct RopeScaling {
  double factor = 0;
  double low_freq_factor = 0;   // waves longer than original / low_freq_factor tokens are long
  double high_freq_factor = 0;  // waves shorter than original / high_freq_factor tokens are short
  int64_t original_max_position_embeddings = 0;

  friend bool operator==(const RopeScaling&, const RopeScaling&) = default;
};

// Names as in Hugging Face's config.json.
struct LlamaConfig {
  int64_t hidden_size = 128;
  int64_t intermediate_size = 344;
  int64_t num_hidden_layers = 4;
  int64_t num_attention_heads = 4;
  int64_t num_key_value_heads = 4;
  int64_t vocab_size = 256;
  int64_t max_position_embeddings = 128;  // the maximum number of tokens of a training row
  double rms_norm_eps = 1e-5;
  double rope_theta = 10000;
  std::optional<RopeScaling> rope_scaling;
  bool tie_word_embeddings = true;
  std::string init_from;  // directory of safetensors to start from; empty: initialized from the seed

  friend bool operator==(const LlamaConfig&, const LlamaConfig&) = default;
};

// The encoding of both legs: `codec` of run.yaml.
struct CodecConfig {
  CodecId up = CodecId::kInt4;
  CodecId down = CodecId::kInt4;
  float feedback_up = 1.0f;  // β of the error feedback; 0 = off
  float feedback_down = 1.0f;
  std::vector<TensorKind> exempt;  // tensors of these kinds are bfloat16 on both legs
  bool zstd = false;               // chunks are compressed where it pays
  // `auto`: the coordinator chooses from these, listed best first and all of one domain, according to each round's
  // links; `up` and `down` are then the last, cheapest one, with which a run begins. Empty: no choice.
  std::vector<CodecId> allow_up;
  std::vector<CodecId> allow_down;

  // `down: sparse`: each round has the codec of topk's family with room for all of its contributions' entries
  // (SparseDown). `down` is then the codec for min_sites contributions, and allow_down the family.
  bool sparse_down() const { return !allow_down.empty() && TopkEntries(allow_down.front()) > 0; }
  bool chooses_down() const { return !allow_down.empty() && !sparse_down(); }  // whether codec.down is `auto`
  friend bool operator==(const CodecConfig&, const CodecConfig&) = default;
};

// External: the sites bring the model; the first one that joins declares its tensors.
enum class ModelKind { kLlama, kSynthetic, kExternal };

struct SyntheticTensor {
  std::string name;
  std::vector<int64_t> shape;
  float init = 0;  // used when the model's init is not seeded

  friend bool operator==(const SyntheticTensor&, const SyntheticTensor&) = default;
};

enum class SyntheticGradient { kConstant, kNoise };
enum class SyntheticApply { kEveryStep, kOnSend };

// A load generator. Tensor i counts as layer i.
struct SyntheticConfig {
  int64_t step_ms = 0;  // how long a step takes
  bool seeded_init = false;
  std::vector<SyntheticTensor> tensors;
  SyntheticGradient gradient = SyntheticGradient::kConstant;
  std::map<SiteId, float> gradient_by_site;  // constant gradient of each site, or the amplitude of its noise
  SyntheticApply apply = SyntheticApply::kEveryStep;

  friend bool operator==(const SyntheticConfig&, const SyntheticConfig&) = default;
};

enum class InnerOptimizerKind { kAdamW, kSgd, kOnebitAdam };
// Whether the optimizer keeps two moments beside each parameter.
constexpr bool HasMoments(InnerOptimizerKind kind) { return kind != InnerOptimizerKind::kSgd; }
inline constexpr int64_t kAutoFreeze = -1;  // inner.freeze_at: auto
enum class InnerSchedule { kCosine, kConstant };

// Names of link levels of a site: "rank" means that each rank has everything, "site" means divided over all its ranks.
struct PartitionConfig {
  std::string weights = "rank", gradients = "rank", optimizer = "rank";

  friend bool operator==(const PartitionConfig&, const PartitionConfig&) = default;
};

struct OnebitAdamConfig {
  int64_t freeze_at = kAutoFreeze;       // the last step that changes the variance
  DType warmup_codec = DType::kFloat32;  // of gradients between the ranks until then; or bfloat16

  friend bool operator==(const OnebitAdamConfig&, const OnebitAdamConfig&) = default;
};

struct InnerConfig {
  InnerOptimizerKind optimizer = InnerOptimizerKind::kAdamW;
  double lr = 3e-3;
  int64_t warmup_steps = 50;
  InnerSchedule schedule = InnerSchedule::kCosine;  // falls to lr / 10 at the run's end; constant if that is open
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0.1;
  OnebitAdamConfig onebit;
  double clip = 1.0;                         // largest gradient norm; 0 = off
  int64_t batch_size = 8;                    // rows of a site's step
  std::map<SiteId, int64_t> batch_by_site;   // rows of sites with a different number
  int64_t batch_per_rank = 0;                // rows per rank instead, for any number of ranks; 0 = batch_size
  int64_t micro_batches = 1;                 // parts into which a rank's rows of a step are divided; gradients add up
  int64_t sequence_length = 0;               // tokens of a training row; 0 = max_position_embeddings
  std::optional<PartitionConfig> partition;  // absent: every rank has everything

  friend bool operator==(const InnerConfig&, const InnerConfig&) = default;
};

// Own: each site trains on all of its data. Shared: all sites bring the same data, and each trains on a part of it. A
// run stored without the key is shared.
enum class DataMode { kShared, kOwn };

// The values of data.mode, outer.codec_gain and values.clip in a new run whose run.yaml does not set them.
inline constexpr DataMode kDataModeOfNewRuns = DataMode::kOwn;
inline constexpr bool kCodecGainOfNewRuns = true;
inline constexpr bool kClipOfNewRuns = true;

struct DataConfig {
  DataMode mode = DataMode::kShared;
  int64_t token_bytes = 2;   // bytes of a token in shards that do not state it themselves
  bool allow_equal = false;  // own: sites may bring equal data

  friend bool operator==(const DataConfig&, const DataConfig&) = default;
};

struct EvalConfig {
  int64_t every_rounds = 1;  // one site evaluates the anchors after this many rounds of all fragments; 0 = never
  double held_out = 0.05;    // share of the text, at its end, that no site trains on
  int64_t batches = 8;

  friend bool operator==(const EvalConfig&, const EvalConfig&) = default;
};

// Between two snapshots the journal holds everything that a restart needs, so they may be rare.
struct CheckpointConfig {
  int64_t every_rounds = 10;  // coordinator: a snapshot of a fragment; site: a checkpoint; 0 = at the end
  int64_t keep = 3;           // how many of them are kept
  int64_t max_update_log_bytes = int64_t{4} << 30;  // encoded updates kept for sites that come back
  int64_t min_free_bytes = int64_t{1} << 30;        // the coordinator ends before its disk has less

  friend bool operator==(const CheckpointConfig&, const CheckpointConfig&) = default;
};

// Strict: a record is on the disk before a contribution is admitted or an effect leaves. Relaxed: it is written before
// that, and on the disk within kRelaxedSyncMs: enough for `kill -9`, but a power loss may undo that much.
enum class JournalMode { kStrict, kRelaxed };

struct DurabilityConfig {
  JournalMode journal = JournalMode::kStrict;

  friend bool operator==(const DurabilityConfig&, const DurabilityConfig&) = default;
};

// The placement of the run's shards. Hub: wherever they were started, with whole fragments. Sites: one in each site's
// datacenter, with a part of each fragment (sync.parts is then the number of shards).
enum class Placement { kHub, kSites };

struct RunConfig {
  RunId run_id;
  uint64_t seed = 1;
  Step steps = 0;      // run.steps: inner steps per site; 0 = until stopped
  int64_t tokens = 0;  // run.tokens: tokens of all sites together, quorum mode; 0 = no bound
  ModelKind model_kind = ModelKind::kLlama;
  LlamaConfig llama;          // when model_kind is kLlama
  SyntheticConfig synthetic;  // when model_kind is kSynthetic
  InnerConfig inner;
  DataConfig data;
  SyncConfig sync;
  OuterParameters outer;    // optimizer sgd has momentum 0; its gain is 1
  bool codec_gain = false;  // outer.codec_gain; a run stored without the key has none
  CodecConfig codec;
  MembershipConfig membership;
  ValuesConfig values;
  EvalConfig eval;
  CheckpointConfig checkpoint;
  OffloadConfig offload;
  DurabilityConfig durability;
  Placement placement = Placement::kHub;

  // The rows of a step of `site`, which has `ranks` ranks.
  int64_t BatchRows(const SiteId& site, int64_t ranks) const {
    if (inner.batch_per_rank > 0) return inner.batch_per_rank * ranks;
    const auto own = inner.batch_by_site.find(site);
    return own == inner.batch_by_site.end() ? inner.batch_size : own->second;
  }
  // Tokens of a step of all sites that the run waits for, at its usual batch: with `tokens`, what the schedule of the
  // learning rate counts as a step.
  int64_t TokensOfAStep() const {
    const int64_t rows = inner.batch_per_rank > 0 ? inner.batch_per_rank : inner.batch_size;
    return membership.min_sites * rows * (model_kind == ModelKind::kLlama ? sequence_length() : 1);
  }
  // The bound on a site's tokens per step; 0: unknown.
  int64_t MaxTokensPerStep(const SiteId& site) const {
    if (membership.max_tokens_per_step > 0 || model_kind != ModelKind::kLlama || inner.batch_per_rank > 0) {
      return membership.max_tokens_per_step;
    }
    return BatchRows(site, /*ranks=*/1) * sequence_length();
  }
  // The number of tokens in a training row of a Llama.
  int64_t sequence_length() const {
    return inner.sequence_length > 0 ? inner.sequence_length : llama.max_position_embeddings;
  }
  friend bool operator==(const RunConfig&, const RunConfig&) = default;
};

}  // namespace causeway::core
