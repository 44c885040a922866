// What the coordinator shows of itself: plain values.
//
//   Coordinator (under its lock, every 250 ms) ─► StatusSnapshot ─► StatusBoard: what follows from it and from the ones
//   before (rates, series, alarms) ─► JSON, metrics, events: rendered once, shared by all readers
//
// Fields marked "board" are filled by the board (status_history.h, alarms.h), all others by the coordinator. Times are
// Unix milliseconds unless the name says otherwise. Thread-safe as long as nobody writes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/codec_config.h"
#include "core/data_fingerprint.h"
#include "core/membership.h"
#include "core/shard.h"
#include "core/sync_config.h"
#include "server/status/outer_gradients.h"
#include "server/status/round_log.h"
#include "server/status/time_histogram.h"

namespace causeway::server {

struct LossPoint {
  int64_t unix_ms = 0;
  double loss = 0;
};

struct EvalPoint {
  int64_t unix_ms = 0;
  core::Version version = 0;  // that all fragments had reached
  double loss = 0;
};

// Bytes a second of one direction; board.
struct RateFigures {
  double mean = 0;  // since the site came, in this life of the coordinator
  double peak = 0;  // of any second
};

// Of a site's error feedback over rounds of all fragments; board. Absent before there are enough of them.
struct ResidualTrend {
  double now = 0;
  double before = 0;       // ten rounds ago
  double largest_ago = 0;  // of all rounds until then
};

// The loss of the global parameters on what one site holds out.
struct EvalOfSite {
  double loss = 0;
  std::vector<core::Version> versions;
};

struct SiteStatus {
  struct Merged {
    core::FragmentId fragment = 0;
    core::Version version = 0;  // that the round made
    int64_t unix_ms = 0;
  };
  // Its newest contribution that came whole.
  struct Norm {
    core::FragmentId fragment = 0;
    core::Version base = 0;
    double norm = 0;      // ‖d‖; 0: none has come in this life of the coordinator
    std::string refused;  // why; empty: it was taken
  };
  struct Cosine {
    core::FragmentId fragment = 0;
    core::Version version = 0;  // that the round made
    double value = 0;           // not a number: the contribution or the mean was zero
  };
  struct Missed {
    core::FragmentId fragment = 0;
    core::Version version = 0;
    std::string reason;
  };

  core::SiteId name;
  core::SiteState state = core::SiteState::kGone;
  std::string reason;
  bool lost = false;  // its lease ended, and no operator has told it to leave
  std::shared_ptr<const core::Progress> progress = std::make_shared<core::Progress>();  // never null
  double joined_s = 0;  // for how long it has been here, in this life of the coordinator
  int64_t up_bytes = 0;
  int64_t down_bytes = 0;
  double up_bytes_per_s = 0;
  double down_bytes_per_s = 0;
  double merged_weight = 0;   // mean of its share of a round's weight, over the rounds since the coordinator's start
  bool contributing = false;  // the open rounds expect it
  std::string contributing_reason;
  std::optional<Cosine> cosine;       // of its last merged contribution to the round's mean
  std::optional<Merged> last_merged;  // in this life of the coordinator, as the next
  std::optional<Missed> missed;       // the newest decided round that went without it while it was active
  core::Version staleness = 0;        // of its last merged contribution: rounds behind
  Norm norm;
  int refusals = 0;  // of contributions in a row, by their values
  bool quarantined = false;
  std::string noisy;                   // what it asks more of than it may; empty: nothing, in the last minute
  std::optional<double> lease_s_left;  // its control stream is broken
  core::SiteData data;                 // what it trains and evaluates on, as it said
  std::optional<EvalOfSite> eval;      // on data of its own

  RateFigures up_rate, down_rate;             // board
  std::vector<LossPoint> loss_history;        // board
  std::optional<ResidualTrend> residual;      // board
  std::vector<core::FragmentId> mismatches;   // board: its digest of a version is not the coordinator's
  std::optional<int64_t> mismatched_unix_ms;  // board: when the latest was seen
};

struct FragmentStatus {
  core::FragmentId id = 0;
  int64_t parameters = 0;
  core::AnchorDigest committed;
  std::string state;  // idle | open | grace | merging
  std::string reason;
  std::vector<core::SiteId> contributors;        // to the open round
  std::optional<OuterGradientFigures> gradient;  // of the last merged round, in this life of the coordinator
};

// What the machine says; board.
struct HostStatus {
  std::optional<int64_t> disk_free_bytes;  // of the state directory
  int64_t disk_reserved_bytes = 0;         // the coordinator ends before less is free; 0: it does not look
  std::optional<int64_t> certificate_expires_unix_s;
};

// How long the state directory's disk takes to make a commit durable.
struct SyncTimes {
  uint64_t count = 0;    // in this life of the coordinator
  double seconds = 0;    // of all of them
  double slowest_s = 0;  // of about the last minute, one that is under way included
};

// The passes over the state directory that read it again.
struct ScrubStatus {
  int64_t passes = 0;                // that ended, in this life of the coordinator
  int64_t bytes = 0;                 // of the last of them
  int64_t ended_unix_ms = 0;         // 0: none has
  std::vector<std::string> damages;  // a sentence for each, with file, place and cure
};

// A site that waits because what it has seen of the run is not in the coordinator's state.
struct WaitingStranger {
  core::SiteId site;
  std::string alarm;  // "unknown_lineage", "history_lost" or "two_coordinators"
  std::string text;
};

// A contribution that was merged though it is far longer than those of late rounds.
struct OutlierStatus {
  core::SiteId site;
  core::FragmentId fragment = 0;
  core::Version version = 0;  // that its round made, or will make
  std::string text;
};

enum class Severity { kWarning, kCritical };

struct Alarm {
  std::string name;  // one of kAlarmNames (alarms.h)
  Severity severity = Severity::kWarning;
  std::optional<core::SiteId> site;
  std::optional<core::FragmentId> fragment;
  std::string text;
  int64_t since_unix_ms = 0;
};

struct StatusSnapshot {
  core::RunId run_id;
  uint32_t protocol = 0;
  uint64_t epoch = 0;
  core::Shard shard;
  std::string state;
  std::string reason;
  double uptime_s = 0;
  int64_t parameters = 0;
  core::CodecConfig codec;                         // up and down as they are now
  std::string codec_reason_up, codec_reason_down;  // of those, where they are chosen
  std::string config_json;
  std::optional<double> eval_loss_start;
  std::optional<double> eval_loss_latest;
  std::vector<core::Version> eval_loss_versions;
  std::string eval_loss_reason;  // why there is no loss of the run; empty: there is, or will be
  std::vector<SiteStatus> sites;
  std::vector<FragmentStatus> fragments;  // of the shard
  int64_t unix_ms = 0;
  core::SyncMode mode = core::SyncMode::kSynchronous;
  int min_sites = 1;
  int min_quorum = 1;
  bool paused = false;         // by an operator
  bool stopped = false;        // by an operator
  bool finished = false;       // a site has done all its steps
  int64_t rounds_decided = 0;  // in this life of the coordinator
  LoggedRounds rounds;
  RunTimes times;
  SyncTimes syncs;
  ScrubStatus scrub;
  std::vector<WaitingStranger> strangers;  // in bytewise order of site
  std::vector<OutlierStatus> outliers;
  std::string failure;  // why the coordinator cannot go on; empty: it can

  std::string version;                  // board: of the program
  HostStatus host;                      // board
  std::vector<EvalPoint> eval_history;  // board
  std::vector<Alarm> alarms;            // board, worst first

  int ContributingSites() const;
  // What averaging float32 gradients in every step would have sent: both ways, for all sites' steps.
  int64_t Float32EveryStepBytes() const;
};

enum class Details {
  kAuto,  // reduced where sites × fragments is beyond kFullDetails
  kFull,
};

// Beyond it a site's digests and fragments would make a status of more than 200 kB.
inline constexpr size_t kFullDetails = 1024;

// The JSON of GET /status (docs/operating.md has the fields); numbers that are not finite are null. Thread-safe.
std::string StatusJson(const StatusSnapshot& snapshot, Details details = Details::kAuto);

// The JSON of GET /timeline: the newest rounds that fit into `max_bytes`, newest last. Thread-safe.
inline constexpr size_t kMaxTimelineBytes = 200'000;
std::string TimelineJson(const StatusSnapshot& snapshot, size_t max_bytes = kMaxTimelineBytes);

}  // namespace causeway::server
