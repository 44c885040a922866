// The configuration of a run: the content of run.yaml as plain values. Every default is the documented one (docs of
// deploy/run.yaml); formats/run_yaml.h reads it from a file and checks it, so that everywhere else a RunConfig is known
// to be valid.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/codec_config.h"
#include "core/ids.h"
#include "core/llama_config.h"
#include "core/offload_config.h"
#include "core/outer_step.h"
#include "core/round_config.h"
#include "core/sync_config.h"

namespace causeway::core {

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
// Whether it keeps two moments of each parameter, beside it.
constexpr bool HasMoments(InnerOptimizerKind kind) { return kind != InnerOptimizerKind::kSgd; }
inline constexpr int64_t kAutoFreeze = -1;  // inner.freeze_at: auto
enum class InnerSchedule { kCosine, kConstant };

// Names of link levels of a site: "rank" means that each rank has everything, "site" means divided over all its ranks.
struct PartitionConfig {
  std::string weights = "rank", gradients = "rank", optimizer = "rank";

  friend bool operator==(const PartitionConfig&, const PartitionConfig&) = default;
};

struct InnerConfig {
  InnerOptimizerKind optimizer = InnerOptimizerKind::kAdamW;
  double lr = 3e-3;
  int64_t warmup_steps = 50;
  InnerSchedule schedule = InnerSchedule::kCosine;  // to a tenth of lr at the run's end; constant where that is open
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0.1;
  int64_t freeze_at = kAutoFreeze;           // onebit_adam: the last step that changes the variance
  double clip = 1.0;                         // largest gradient norm; 0 = off
  int64_t batch_size = 8;                    // rows of a site's step
  std::map<SiteId, int64_t> batch_by_site;   // rows of sites with a different number
  int64_t batch_per_rank = 0;                // rows per rank instead, for any number of ranks; 0 = batch_size
  int64_t micro_batches = 1;                 // into which a rank's rows of a step are divided; gradients add up
  int64_t sequence_length = 0;               // tokens of a training row; 0 = max_position_embeddings
  std::optional<PartitionConfig> partition;  // none: every rank has everything

  friend bool operator==(const InnerConfig&, const InnerConfig&) = default;
};

// Own: each site trains on all of its data. Shared: all sites bring the same data, and each trains on a part of it. A
// run stored without the key is shared.
enum class DataMode { kShared, kOwn };

// Those of a new run whose run.yaml does not set data.mode, outer.codec_gain, values.clip.
inline constexpr DataMode kDataModeOfNewRuns = DataMode::kOwn;
inline constexpr bool kCodecGainOfNewRuns = true;
inline constexpr bool kClipOfNewRuns = true;

struct DataConfig {
  DataMode mode = DataMode::kShared;
  int64_t token_bytes = 2;   // of a token in shards that do not state it themselves
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

// Strict: on the disk before a contribution is admitted or an effect leaves. Relaxed: written before that, and on the
// disk within kRelaxedSyncMs: enough for `kill -9`, but a power loss may undo that much.
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
  int64_t tokens = 0;  // run.tokens: of all sites together, quorum mode; 0 = no bound
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
  // The bound for a site; 0: unknown.
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
