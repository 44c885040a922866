// What a run is: the content of run.yaml as plain values. Every default is the documented one (docs of
// deploy/run.yaml); formats/run_yaml.h reads it from a file and checks it, so that everywhere else a RunConfig is known
// to be sound.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/codec_config.h"
#include "core/ids.h"
#include "core/llama_config.h"
#include "core/offload_config.h"
#include "core/outer_step.h"
#include "core/schedule.h"

namespace causeway::core {

// External: the sites bring the model; the first one that joins says which tensors it has.
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

enum class InnerOptimizerKind { kAdamW, kSgd };
enum class InnerSchedule { kCosine, kConstant };

struct InnerConfig {
  InnerOptimizerKind optimizer = InnerOptimizerKind::kAdamW;
  double lr = 3e-3;
  int64_t warmup_steps = 50;
  InnerSchedule schedule = InnerSchedule::kCosine;  // to a tenth of lr at run.steps; constant where steps is 0
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0.1;
  double clip = 1.0;  // largest gradient norm; 0 = off
  int64_t batch_size = 8;
  int64_t sequence_length = 0;  // tokens of a training row; 0 = max_position_embeddings

  friend bool operator==(const InnerConfig&, const InnerConfig&) = default;
};

// Own: each site trains on all of its data. Shared: all sites bring the same data, and each trains on a part of it. A
// run that was stored without the key is shared.
enum class DataMode { kShared, kOwn };

// What a run.yaml that leaves data.mode open means for a run that begins.
inline constexpr DataMode kDataModeOfNewRuns = DataMode::kOwn;

struct DataConfig {
  DataMode mode = DataMode::kShared;
  int64_t token_bytes = 2;   // of a token in shards that do not say it themselves
  bool allow_equal = false;  // own: sites may bring equal data

  friend bool operator==(const DataConfig&, const DataConfig&) = default;
};

enum class FragmentAssignment { kStrided, kSequential, kBalanced };

// Synchronous: a round takes all active sites, and each site waits for it where the schedule applies its update.
// Quorum: a round takes min_quorum sites and whoever comes within the grace; nobody waits.
enum class SyncMode { kSynchronous, kQuorum };

inline constexpr int64_t kAutoDelay = -1;  // fragment_sync_delay: auto

struct SyncConfig {
  SyncMode mode = SyncMode::kSynchronous;
  int64_t sync_every = 20;  // H
  int num_fragments = 4;    // P
  FragmentAssignment fragment_assignment = FragmentAssignment::kStrided;
  int64_t fragment_sync_delay = 1;     // τ; kAutoDelay: each site chooses its own, at each send
  float fragment_update_alpha = 0.5f;  // α
  std::vector<Step> fragment_offsets;  // t_p of each fragment; empty: spread evenly over H
  FirstSend first_send = FirstSend::kFull;
  // Prefixes of the names of each fragment's tensors; the longest that matches decides. Empty: fragment_assignment.
  std::vector<std::vector<std::string>> fragments;

  bool auto_delay() const { return fragment_sync_delay == kAutoDelay; }
  FragmentSchedule Schedule() const {
    return FragmentSchedule(sync_every, num_fragments, auto_delay() ? 0 : fragment_sync_delay, fragment_offsets,
                            first_send);
  }
  friend bool operator==(const SyncConfig&, const SyncConfig&) = default;
};

// What a contribution weighs in its round, from the tokens and steps since the site's last merged one.
enum class WeightRule { kUniform, kTokens, kTokensSquaredPerStep };

// How a round's contributions become one outer gradient (arXiv 2604.21428, appendix on merging).
enum class MergeRule { kAverage, kRadialDirectional };

struct MembershipConfig {
  int min_sites = 1;          // the start waits for so many
  int min_quorum = 1;         // with fewer active sites the run pauses; quorum mode: a round takes so many at least
  int64_t grace_ms = 0;       // quorum mode: longest wait for further sites once there is a quorum
  int64_t lease_ms = 10000;   // how long a site keeps its name after it was last heard of
  int64_t max_staleness = 1;  // quorum mode: how many versions a contribution's base may be behind
  WeightRule weights = WeightRule::kUniform;
  MergeRule merge = MergeRule::kAverage;
  int64_t max_tokens_per_step = 0;  // of a site; 0: as `inner` says of a Llama, else no bound

  friend bool operator==(const MembershipConfig&, const MembershipConfig&) = default;
};

// Which contributions are taken, by their values (server/rounds/value_gate.h).
struct ValuesConfig {
  double gate = 8;        // most that ‖d‖ of a contribution may be, in medians of late ones; 0 = off
  bool clip = false;      // one beyond the gate is scaled down to it instead of refused
  double weight_cap = 0;  // largest share of a site in a round; 0 = off

  friend bool operator==(const ValuesConfig&, const ValuesConfig&) = default;
};

struct EvalConfig {
  int64_t every_rounds = 1;  // one site evaluates the anchors after so many rounds of all fragments; 0 = never
  double held_out = 0.05;    // share of the text, at its end, that no site trains on
  int64_t batches = 8;

  friend bool operator==(const EvalConfig&, const EvalConfig&) = default;
};

// Between two snapshots the journal holds what a restart needs, so they may be rare.
struct CheckpointConfig {
  int64_t every_rounds = 10;  // coordinator: a snapshot of a fragment; site: a checkpoint; 0 = at the end
  int64_t keep = 3;           // how many of them stay
  int64_t max_update_log_bytes = int64_t{4} << 30;  // encoded updates kept for sites that come back
  int64_t min_free_bytes = int64_t{1} << 30;        // the coordinator ends before its disk has less

  friend bool operator==(const CheckpointConfig&, const CheckpointConfig&) = default;
};

struct RunConfig {
  RunId run_id;
  uint64_t seed = 1;
  Step steps = 0;  // run.steps: inner steps per site; 0 = until stopped
  ModelKind model_kind = ModelKind::kLlama;
  LlamaConfig llama;          // when model_kind is kLlama
  SyntheticConfig synthetic;  // when model_kind is kSynthetic
  InnerConfig inner;
  DataConfig data;
  SyncConfig sync;
  OuterParameters outer;  // optimizer sgd has momentum 0
  CodecConfig codec;
  MembershipConfig membership;
  ValuesConfig values;
  EvalConfig eval;
  CheckpointConfig checkpoint;
  OffloadConfig offload;

  // A site's; 0: not known.
  int64_t max_tokens_per_step() const {
    if (membership.max_tokens_per_step > 0 || model_kind != ModelKind::kLlama) return membership.max_tokens_per_step;
    return inner.batch_size * sequence_length();
  }
  // Of a Llama: how many tokens a training row has.
  int64_t sequence_length() const {
    return inner.sequence_length > 0 ? inner.sequence_length : llama.max_position_embeddings;
  }
  friend bool operator==(const RunConfig&, const RunConfig&) = default;
};

}  // namespace causeway::core
