// What coordinator and sites tell each other about taking part in a run, as plain values.
#pragma once

#include <cmath>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/ids.h"

namespace causeway::core {

// A site's place in the schedule, decided when it is ready. It goes on from `step`, holds at least `versions`, and its
// first contribution to fragment p is to base version first_versions[p]; updates to earlier ones only move it.
struct Entry {
  Step step = 0;
  std::vector<Version> versions;
  std::vector<Version> first_versions;
  std::vector<SiteId> sites;  // that share the data
  int64_t stay = 0;           // of the site, as SiteRecord counts them

  friend bool operator==(const Entry&, const Entry&) = default;
};

struct AnchorDigest {
  Version version = 0;
  uint64_t digest = 0;
};

// The last round of a fragment at a site.
struct FragmentProgress {
  double slack_s = 0;      // between the update's arrival and its need; negative: it was waited for
  Step delay = 0;          // τ of the last contribution
  std::string reason;      // of that delay, where it was chosen by measurement
  std::string encoded_on;  // host or device, of the last contribution; empty: none, or it does not say

  friend bool operator==(const FragmentProgress&, const FragmentProgress&) = default;
};

// What a site has measured of its link to the coordinator; 0 = nothing yet.
struct LinkProgress {
  double up_bytes_per_s = 0;  // of transfers, while they went on
  double down_bytes_per_s = 0;
  double round_trip_s = 0;
  int channels = 0;  // TCP connections that a transfer is spread over
  // What transfers reached that are too short to tell the rate: their latency counts, so the link has more.
  double up_least_bytes_per_s = 0;
  double down_least_bytes_per_s = 0;

  friend bool operator==(const LinkProgress&, const LinkProgress&) = default;
};

// How a site updates its inner optimizer's state (offload/subgroup_plan.h).
struct OffloadProgress {
  int64_t k = 0;  // every k-th subgroup on the device; kAllOnCpu, kResident
  int64_t subgroup = 0;
  std::string reason;      // of k
  double predicted_s = 0;  // of one update; 0: unknown
  double measured_s = 0;   // the mean of late ones
  double waited_s = 0;     // of all updates, for copies of fragments
  // On a device: parameters whose state lies there, and what the last update did with the others.
  int64_t resident = 0;
  int64_t device_subgroups = 0, cpu_subgroups = 0;
  int64_t to_device_bytes = 0, to_host_bytes = 0;
  int64_t early_gradient_bytes = 0;  // of these, gradients that were sent while backward went on

  friend bool operator==(const OffloadProgress&, const OffloadProgress&) = default;
};

// 1-bit Adam of a site (worker/train/onebit_adam.h).
struct OnebitProgress {
  int64_t frozen_at = 0;   // the last step that changed the variance; 0: warm-up
  double ratio = 0;        // of the variance's norm to an earlier one; 0: not known yet
  double compression = 0;  // a float32 all-reduce's bytes over those that are sent; 0: none are

  friend bool operator==(const OnebitProgress&, const OnebitProgress&) = default;
};

// Bytes that a rank received at a link level of its site in its last step, and those that were predicted.
struct LevelTraffic {
  std::string name;
  double predicted = 0, measured = 0;

  friend bool operator==(const LevelTraffic&, const LevelTraffic&) = default;
};

// The processes of a site, of which one reports.
struct RankProgress {
  int64_t ranks = 1;
  int64_t hosts = 1;
  std::string slowest;         // the last one to end its steps lately
  double slowest_step_s = 0;   // its time for a step
  std::string standing_still;  // why training stands still; "": it does not
  double step_bytes = 0;       // that one rank sent to the others in its last step
  std::optional<OnebitProgress> onebit_adam;
  std::vector<LevelTraffic> levels;  // of a partition; innermost first

  friend bool operator==(const RankProgress&, const RankProgress&) = default;
};

// What a site reports of itself, about once a second.
struct Progress {
  Step step = 0;
  int64_t tokens = 0;
  double loss = std::nan("");  // nats per token; NaN: none
  double tokens_per_s = 0;
  double compute_s = 0;
  double stall_s = 0;
  double wall_s = 0;
  double slack_s = 0;
  int64_t contributions_sent = 0;
  int64_t contributions_merged = 0;
  int64_t contributions_skipped = 0;  // due while an earlier one was unresolved
  bool completing = false;            // all steps are done; waits for its open rounds
  double residual_norm = 0;
  std::map<FragmentId, AnchorDigest> digests;
  std::vector<std::string> in_flight;
  std::optional<double> eval_loss;
  std::vector<Version> eval_versions;
  std::map<FragmentId, FragmentProgress> fragments;
  LinkProgress link;
  std::optional<OffloadProgress> offload;
  RankProgress ranks;
};

enum class SiteState { kJoining, kTraining, kDraining, kGone };

const char* SiteStateName(SiteState state);  // "joining", …

// It has its place in the schedule: it shares the data, and rounds may expect it.
constexpr bool IsActive(SiteState state) { return state == SiteState::kTraining || state == SiteState::kDraining; }

// One site as the rules see it.
struct SiteRecord {
  SessionId session;
  SiteState state = SiteState::kGone;
  std::string reason;                   // why it is in that state
  std::vector<Version> first_versions;  // see Entry; empty before the site has entered
  std::vector<Version> last_merged;     // base version of its last merged contribution, −1 = none
  int64_t stay = 0;                     // how often the name has joined anew: with the session it names a stay
  // By the values of its contributions (server/rounds/value_gate.h).
  int refusals = 0;          // in a row
  bool quarantined = false;  // after too many: it follows the updates, and counts for no round
  bool starts_anew = false;  // what it holds is void: when it joins, it starts from the anchor
  int64_t releases = 0;      // how often an operator has let it out

  friend bool operator==(const SiteRecord&, const SiteRecord&) = default;
};

// A contribution that was admitted to a round: it will be merged, or has been.
struct Admitted {
  Version base = 0;    // of the anchor that it is an outer gradient against
  int64_t tokens = 0;  // that its site trained on since its last merged contribution to the fragment
  int64_t steps = 0;
  double norm = 0;  // ‖d‖ of what its chunks decode to; 0: not known

  friend bool operator==(const Admitted&, const Admitted&) = default;
};

// ‖d‖ of the contributions merged in a round.
struct RoundNorms {
  Version version = 0;  // that it made
  std::vector<double> norms;

  friend bool operator==(const RoundNorms&, const RoundNorms&) = default;
};
inline constexpr int kNormRounds = 16;
using NormsOfRounds = std::deque<RoundNorms>;  // of the last rounds of a fragment, oldest first

// Everything the rules of server/rounds remember: what a restart of the coordinator must find again.
struct RoundState {
  bool seeded = false;                                    // the initial parameters are there
  bool started = false;                                   // min_sites were ready once
  bool finished = false;                                  // a site has done all its steps
  bool paused = false;                                    // by an operator
  bool stopped = false;                                   // by an operator: sites leave, none joins
  std::vector<Version> versions;                          // decided rounds of each fragment
  std::vector<std::map<SiteId, Admitted>> contributions;  // admitted to the open round of each fragment
  std::map<SiteId, SiteRecord> sites;                     // every site that ever joined
  std::vector<NormsOfRounds> norms;                       // of each fragment

  friend bool operator==(const RoundState&, const RoundState&) = default;
};

// What the other shards of a run follow: who is in, and what shard 0 and its operators have decided for all.
struct Member {
  SessionId session;
  int64_t stay = 0;
  SiteState state = SiteState::kGone;
  std::string reason;
  std::vector<Version> first_versions;  // by the schedule alone for fragments of other shards, which know better
  int64_t releases = 0;                 // as SiteRecord counts them

  friend bool operator==(const Member&, const Member&) = default;
};
struct Membership {
  bool started = false;
  bool finished = false;
  bool paused = false;
  bool stopped = false;
  SiteId seeder;  // was asked for the initial parameters; empty once all shards have them
  std::map<SiteId, Member> sites;

  friend bool operator==(const Membership&, const Membership&) = default;
};

}  // namespace causeway::core
