// The contributions that a round takes, and their weights: `membership` and `values` of run.yaml (core/run_config.h).
#pragma once

#include <cstdint>

namespace causeway::core {

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
  int64_t max_tokens_per_step = 0;  // of a site; 0: from `inner` for a Llama, else no bound

  friend bool operator==(const MembershipConfig&, const MembershipConfig&) = default;
};

// The contributions that are accepted, by their values (server/rounds/value_rules.h).
struct ValuesConfig {
  double gate = 8;        // how many times the usual length a contribution may have; 0 = off
  bool clip = false;      // a longer one is scaled down to that instead of refused
  double weight_cap = 0;  // largest share of a site in a round; 0 = off

  friend bool operator==(const ValuesConfig&, const ValuesConfig&) = default;
};

}  // namespace causeway::core
