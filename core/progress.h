// A site's report about itself, and the list of the report's figures, from which follow its form as a message, the
// limits of a received one, and all that is shown (transport/progress_message.h, server/status/status_json.cc,
// worker/loop/training_log.cc).
//
//   Figures(progress, visitor) ─► visitor("step", Figure::kCount, progress.step), …
//
// A new figure is a member and a row here, and a field of that name in proto/causeway/v1/coordinator.proto.
#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "core/ids.h"
#include "core/limits.h"
#include "core/link_levels.h"

namespace causeway::core {

struct AnchorDigest {
  Version version = 0;
  uint64_t digest = 0;
};

// The last round of a fragment at a site.
struct FragmentProgress {
  double slack_s = 0;      // time from the update's arrival to its need; negative: the site waited for it
  Step delay = 0;          // τ of the last contribution
  std::string reason;      // why that delay, if it was chosen by measurement
  std::string encoded_on;  // host or device: where the last contribution was encoded; empty: none, or not reported

  friend bool operator==(const FragmentProgress&, const FragmentProgress&) = default;
};

// A site's measurements of its link to the coordinator; 0 = nothing yet.
struct LinkProgress {
  double up_bytes_per_s = 0;  // rate of transfers, while they are in progress
  double down_bytes_per_s = 0;
  double round_trip_s = 0;
  int channels = 0;  // TCP connections over which a transfer is spread
  // The rate reached by transfers too short to tell the link's rate: it includes their latency, so the link has more.
  double up_least_bytes_per_s = 0;
  double down_least_bytes_per_s = 0;
  int64_t redials = 0;           // replacements of connections that died without a word
  double silent_s = 0;           // the longest time for which a connection with work carries nothing, now
  std::string failing;           // the error of transfers that fail again and again; empty: none does
  std::string two_coordinators;  // lineages of coordinators that answer at one address in turn; empty: one does

  friend bool operator==(const LinkProgress&, const LinkProgress&) = default;
};

// The progress of a site's offloaded inner optimizer (offload/subgroup_plan.h).
struct OffloadProgress {
  int64_t k = 0;  // every k-th subgroup on the device; kAllOnCpu, kResident
  int64_t subgroup = 0;
  std::string reason;      // why this k
  double predicted_s = 0;  // time of one update; 0: unknown
  double measured_s = 0;   // mean time of recent updates
  double waited_s = 0;     // time that all updates waited for copies of fragments
  // With a device: number of parameters whose state stays there, and how the last update handled the others.
  int64_t resident = 0;
  int64_t device_subgroups = 0, cpu_subgroups = 0;
  int64_t to_device_bytes = 0, to_host_bytes = 0;
  int64_t early_gradient_bytes = 0;  // gradients among to_host_bytes sent during the backward pass

  friend bool operator==(const OffloadProgress&, const OffloadProgress&) = default;
};

// The progress of a site's 1-bit Adam (worker/optimizer/onebit_adam.h).
struct OnebitProgress {
  int64_t frozen_at = 0;   // the last step that changed the variance; 0: warm-up
  double ratio = 0;        // ratio of the variance's norm to an earlier one; 0: not known yet
  double compression = 0;  // bytes of a float32 all-reduce over the bytes sent; 0: none sent

  friend bool operator==(const OnebitProgress&, const OnebitProgress&) = default;
};

// Bytes that a rank received at a link level of its site in its last step, and the prediction.
struct LevelTraffic {
  std::string name;
  double predicted = 0, measured = 0;

  friend bool operator==(const LevelTraffic&, const LevelTraffic&) = default;
};

// The processes of a site; one reports for all.
struct RankProgress {
  int64_t ranks = 1;
  int64_t hosts = 1;
  std::string slowest;         // the rank that was the last to finish in recent steps
  double slowest_step_s = 0;   // that rank's time for a step
  std::string standing_still;  // why training stands still; "": it does not
  double step_bytes = 0;       // bytes that one rank sent to the others in its last step
  std::optional<OnebitProgress> onebit_adam;
  std::vector<LevelTraffic> levels;  // traffic of a partition; innermost level first

  friend bool operator==(const RankProgress&, const RankProgress&) = default;
};

// A site's report about itself, sent about once a second.
struct Progress {
  Step step = 0;
  int64_t tokens = 0;
  double loss = std::nan("");  // nats per token; NaN: none
  std::optional<double> lr;    // learning rate of the last step; none: the site's script owns its optimizer
  double tokens_per_s = 0;
  int64_t run_tokens = 0;  // tokens of all sites, as far as this one knows (worker/site/site_state.h)
  double compute_s = 0;
  double stall_s = 0;
  double wall_s = 0;
  double slack_s = 0;
  int64_t contributions_sent = 0;
  int64_t contributions_merged = 0;
  int64_t contributions_skipped = 0;  // contributions that were due while an earlier one was unresolved
  bool completing = false;            // all steps are done, and the site waits for its open rounds
  double residual_norm = 0;
  std::map<FragmentId, AnchorDigest> digests;
  std::vector<std::string> in_flight;
  std::optional<double> eval_loss;
  std::vector<Version> eval_versions;
  std::map<FragmentId, FragmentProgress> fragments;
  LinkProgress link;
  std::optional<OffloadProgress> offload;
  RankProgress ranks;
  std::string checkpoint_error;  // why the last checkpoint was not saved; empty: it was, or none was due
};

// The kinds of figures; the kind bounds the value.
enum class Figure {
  kCount,    // an integer, 0 or more
  kChoice,   // an integer, 0 or more, or a negative one that stands for a word (core/run_config.h)
  kVersion,  // an integer, −1: none
  kAmount,   // a number, 0 or more
  kSeconds,  // seconds, 0 or more
  kSlack,    // seconds, of either sign
  kRate,     // an amount per second
  kReal,     // any number, NaN: none
  kFlag,     // true or false
  kDigest,   // any 64 bits
  kName,     // text of at most kMaxSiteTextBytes
  kWords,    // text of at most kMaxEventTextBytes
};

template <typename T, typename Of>
concept MaybeConst = std::same_as<std::remove_const_t<T>, Of>;

// A visitor has, for names of fields in the struct's message:
//   visit(name, figure, value)                 a number, text or flag, or a std::optional of one
//   visit.List(name, figure, most, values)     several of a kind
//   visit.Part(name, value)                    a struct with figures, or a std::optional of one
//   visit.Each(name, most, values)             several structs
//   visit.Each(name, key, most, values)        by fragment, which is the field `key` of each

template <MaybeConst<AnchorDigest> T, typename Visitor>
void Figures(T& anchor, Visitor& visit) {
  visit("version", Figure::kVersion, anchor.version);
  visit("digest", Figure::kDigest, anchor.digest);
}

template <MaybeConst<FragmentProgress> T, typename Visitor>
void Figures(T& fragment, Visitor& visit) {
  visit("slack_s", Figure::kSlack, fragment.slack_s);
  visit("delay", Figure::kCount, fragment.delay);
  visit("reason", Figure::kName, fragment.reason);
  visit("encoded_on", Figure::kName, fragment.encoded_on);
}

template <MaybeConst<LinkProgress> T, typename Visitor>
void Figures(T& link, Visitor& visit) {
  visit("up_bytes_per_s", Figure::kRate, link.up_bytes_per_s);
  visit("down_bytes_per_s", Figure::kRate, link.down_bytes_per_s);
  visit("round_trip_s", Figure::kSeconds, link.round_trip_s);
  visit("channels", Figure::kCount, link.channels);
  visit("up_least_bytes_per_s", Figure::kRate, link.up_least_bytes_per_s);
  visit("down_least_bytes_per_s", Figure::kRate, link.down_least_bytes_per_s);
  visit("redials", Figure::kCount, link.redials);
  visit("silent_s", Figure::kSeconds, link.silent_s);
  visit("failing", Figure::kWords, link.failing);
  visit("two_coordinators", Figure::kWords, link.two_coordinators);
}

template <MaybeConst<OffloadProgress> T, typename Visitor>
void Figures(T& offload, Visitor& visit) {
  visit("k", Figure::kChoice, offload.k);
  visit("subgroup", Figure::kCount, offload.subgroup);
  visit("reason", Figure::kWords, offload.reason);
  visit("predicted_s", Figure::kSeconds, offload.predicted_s);
  visit("measured_s", Figure::kSeconds, offload.measured_s);
  visit("waited_s", Figure::kSeconds, offload.waited_s);
  visit("resident", Figure::kCount, offload.resident);
  visit("device_subgroups", Figure::kCount, offload.device_subgroups);
  visit("cpu_subgroups", Figure::kCount, offload.cpu_subgroups);
  visit("to_device_bytes", Figure::kCount, offload.to_device_bytes);
  visit("to_host_bytes", Figure::kCount, offload.to_host_bytes);
  visit("early_gradient_bytes", Figure::kCount, offload.early_gradient_bytes);
}

template <MaybeConst<OnebitProgress> T, typename Visitor>
void Figures(T& onebit, Visitor& visit) {
  visit("frozen_at", Figure::kCount, onebit.frozen_at);
  visit("ratio", Figure::kAmount, onebit.ratio);
  visit("compression", Figure::kAmount, onebit.compression);
}

template <MaybeConst<LevelTraffic> T, typename Visitor>
void Figures(T& level, Visitor& visit) {
  visit("name", Figure::kName, level.name);
  visit("predicted", Figure::kAmount, level.predicted);
  visit("measured", Figure::kAmount, level.measured);
}

template <MaybeConst<RankProgress> T, typename Visitor>
void Figures(T& ranks, Visitor& visit) {
  visit("ranks", Figure::kCount, ranks.ranks);
  visit("hosts", Figure::kCount, ranks.hosts);
  visit("slowest", Figure::kWords, ranks.slowest);
  visit("slowest_step_s", Figure::kSeconds, ranks.slowest_step_s);
  visit("standing_still", Figure::kWords, ranks.standing_still);
  visit("step_bytes", Figure::kAmount, ranks.step_bytes);
  visit.Part("onebit_adam", ranks.onebit_adam);
  visit.Each("levels", kMaxLinkLevels, ranks.levels);
}

template <MaybeConst<Progress> T, typename Visitor>
void Figures(T& progress, Visitor& visit) {
  visit("step", Figure::kCount, progress.step);
  visit("tokens", Figure::kCount, progress.tokens);
  visit("loss", Figure::kReal, progress.loss);
  visit("lr", Figure::kReal, progress.lr);
  visit("tokens_per_s", Figure::kRate, progress.tokens_per_s);
  visit("run_tokens", Figure::kCount, progress.run_tokens);
  visit("compute_s", Figure::kSeconds, progress.compute_s);
  visit("wall_s", Figure::kSeconds, progress.wall_s);
  visit("stall_s", Figure::kSeconds, progress.stall_s);
  visit("slack_s", Figure::kSlack, progress.slack_s);
  visit("contributions_sent", Figure::kCount, progress.contributions_sent);
  visit("contributions_merged", Figure::kCount, progress.contributions_merged);
  visit("contributions_skipped", Figure::kCount, progress.contributions_skipped);
  visit("completing", Figure::kFlag, progress.completing);
  visit("residual_norm", Figure::kReal, progress.residual_norm);
  visit("checkpoint_error", Figure::kWords, progress.checkpoint_error);
  visit("eval_loss", Figure::kReal, progress.eval_loss);
  visit.List("eval_versions", Figure::kVersion, kMaxFragments, progress.eval_versions);
  visit.List("in_flight", Figure::kName, 4 * kMaxFragments, progress.in_flight);
  visit.Each("digests", "fragment", kMaxFragments, progress.digests);
  visit.Each("fragments", "fragment", kMaxFragments, progress.fragments);
  visit.Part("link", progress.link);
  visit.Part("offload", progress.offload);
  visit.Part("ranks", progress.ranks);
}

// The state of a program's log, whose reader may stand still.
struct LogFigures {
  double stuck_s = 0;   // for how long lines have been waiting, without one being taken; 0: none waits
  int64_t waiting = 0;  // lines that wait
  int64_t dropped = 0;  // lines dropped in this life of the program
};

}  // namespace causeway::core
