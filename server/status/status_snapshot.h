// The coordinator's status: plain values.
//
//   RunExchange (under its lock, every 250 ms) ─► StatusSnapshot ─► StatusBoard: adds rates, series and alarms
//      ─► JSON, metrics, events: rendered once, shared by all readers
//
// Fields marked "board" are filled by the board (status_board.h, alarms.h), all others by the coordinator. Times are
// Unix milliseconds unless the name says otherwise. Thread-safe while no thread writes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/data_fingerprint.h"
#include "core/ids.h"
#include "core/membership.h"
#include "core/progress.h"
#include "core/run_config.h"
#include "core/run_settings.h"
#include "server/status/outer_gradients.h"
#include "server/status/round_log.h"

namespace causeway::server {

// Durations in seconds, counted in buckets, for a Prometheus histogram. Plain values; one owner at a time.
struct TimeHistogram {
  // They reach from a merge of a small fragment to a transfer of a large one over a slow link; powers of about 2.5.
  static constexpr std::array<double, 15> kUpperBounds = {0.001, 0.0025, 0.01, 0.025, 0.1, 0.25, 0.5, 1,
                                                          2.5,   5,      10,   30,    60,  120,  300};

  std::array<uint64_t, kUpperBounds.size() + 1> counts{};  // per bucket, not cumulative; the last is beyond all bounds
  double sum = 0;

  void Add(double seconds) {
    size_t bucket = 0;
    while (bucket < kUpperBounds.size() && seconds > kUpperBounds[bucket]) ++bucket;
    ++counts[bucket];
    sum += seconds;
  }
};

// The durations that a coordinator measures.
struct RunTimes {
  TimeHistogram rounds;  // from the first chunk of a contribution until the round was decided
  TimeHistogram merges;
  TimeHistogram up;    // one fragment's payload, from the first chunk until admitted
  TimeHistogram down;  // from the first byte until the site's last stream finished
};

struct LossPoint {
  int64_t unix_ms = 0;
  double loss = 0;
};

struct EvalPoint {
  int64_t unix_ms = 0;
  core::Version version = 0;  // reached by all fragments
  double loss = 0;
};

// Bytes a second of one direction; board.
struct RateFigures {
  double mean = 0;  // since the site joined, in this life of the coordinator
  double peak = 0;  // the highest of any second
};

// The trend of a site's error feedback over rounds of all fragments; board. Absent before there are enough rounds.
struct ResidualTrend {
  double now = 0;
  double before = 0;       // ten rounds ago
  double largest_ago = 0;  // the largest of all rounds until then
};

// The loss of the global parameters on one site's held-out data.
struct EvalOfSite {
  double loss = 0;
  std::vector<core::Version> versions;
};

// The work that a site has done, as far as this life of the coordinator has heard. Never falls, though the site's own
// figures do when it goes on from an earlier step, or in another process; board.
struct SiteCounts {
  double steps = 0, tokens = 0, stall_s = 0, compute_s = 0, sent = 0, merged = 0;
};

struct SiteStatus {
  struct Merged {
    core::FragmentId fragment = 0;
    core::Version version = 0;  // made by the round
    int64_t unix_ms = 0;
  };
  // The length of the site's newest complete contribution.
  struct Norm {
    core::FragmentId fragment = 0;
    core::Version base = 0;
    double norm = 0;      // ‖d‖; 0: none in this life of the coordinator
    std::string refused;  // the reason; empty: it was accepted
    std::string doubted;  // says that it counts far more than is believed of the site; empty: it does not
  };
  struct Cosine {
    core::FragmentId fragment = 0;
    core::Version version = 0;  // made by the round
    double value = 0;           // NaN: the contribution or the mean was zero
  };
  struct Missed {
    core::FragmentId fragment = 0;
    core::Version version = 0;
    std::string reason;
  };

  core::SiteId name;
  core::SiteState state = core::SiteState::kGone;
  std::string reason;
  bool lost = false;      // its lease ended, and no operator has asked it to leave
  bool finished = false;  // it has left with all steps of the run done
  std::shared_ptr<const core::Progress> progress = std::make_shared<core::Progress>();  // never null
  double joined_s = 0;  // time since it joined, in this life of the coordinator
  int64_t up_bytes = 0;
  int64_t down_bytes = 0;
  double up_bytes_per_s = 0;
  double down_bytes_per_s = 0;
  double merged_weight = 0;   // mean of its share of a round's weight, over the rounds since the coordinator's start
  bool contributing = false;  // the open rounds expect it
  std::string contributing_reason;
  std::optional<Cosine> cosine;       // between its last merged contribution and the round's mean
  std::optional<Merged> last_merged;  // in this life of the coordinator, like the next
  std::optional<Missed> missed;       // the newest round decided without it while it was active
  core::Version staleness = 0;        // how many rounds its last merged contribution was behind
  Norm norm;
  double sent_norm = 0;  // ‖d‖ of its last merged contributions, of all fragments together; 0: unknown
  int refusals = 0;      // consecutive contributions refused for their length
  bool quarantined = false;
  std::string noisy;                   // the limit that it exceeds; empty: none in the last minute
  std::string rival;                   // says that another process has its session; empty: none in the last minute
  std::optional<double> lease_s_left;  // set while its control stream is broken
  core::SiteData data;                 // the data it declared, for training and evaluation
  std::optional<EvalOfSite> eval;      // on its own data

  SiteCounts counts;                          // board
  RateFigures up_rate, down_rate;             // board
  std::vector<LossPoint> loss_history;        // board
  std::optional<double> loss_of_others;       // board: their median, while this site's is apart from theirs
  std::optional<ResidualTrend> residual;      // board
  std::optional<int64_t> redialled_unix_ms;   // board: when its last connection that died without a word was replaced
  std::vector<core::FragmentId> mismatches;   // board: those whose digest of a version differs from the coordinator's
  std::optional<int64_t> mismatched_unix_ms;  // board: when the latest was seen
};

struct FragmentStatus {
  core::FragmentId id = 0;
  int64_t parameters = 0;
  core::AnchorDigest committed;
  std::string state;  // idle | open | grace | merging
  std::string reason;
  std::vector<core::SiteId> contributors;        // the sites that have contributed to the open round
  std::optional<OuterGradientFigures> gradient;  // the last merged round's, in this life of the coordinator
};

// The machine's figures; board.
struct HostStatus {
  std::optional<int64_t> disk_free_bytes;  // on the disk of the state directory
  int64_t disk_reserved_bytes = 0;         // the coordinator exits when less is free; 0: not checked
  std::optional<int64_t> certificate_expires_unix_s;
  core::LogFigures log;
  std::string missing_dir;                 // the state directory, where it is gone; empty: it is there
  std::vector<std::string> file_faults;    // files of credentials that have changed and cannot be taken, by flag
  std::optional<int64_t> disk_free_files;  // how many more that disk can have (inodes); none: no such limit
};

// How long the state directory's disk takes to make a commit durable.
struct SyncTimes {
  uint64_t count = 0;    // in this life of the coordinator
  double seconds = 0;    // sum over all of them
  double slowest_s = 0;  // over about the last minute, including a commit in progress
};

// The passes that reread the state directory.
struct ScrubStatus {
  int64_t passes = 0;                // completed in this life of the coordinator
  int64_t bytes = 0;                 // read by the last of them
  int64_t ended_unix_ms = 0;         // 0: none has ended
  std::vector<std::string> damages;  // a sentence for each, with file, place and cure
};

// A site that waits because it has seen more of the run than the coordinator's state holds.
struct WaitingStranger {
  core::SiteId site;
  std::string alarm;  // "unknown_lineage", "history_lost" or "two_coordinators"
  std::string text;
};

// A shard that shard 0 does not hear.
struct AwayShard {
  int shard = 0;
  double away_s = 0;  // since it was heard last, or since this shard was started
};

// A standby of this coordinator, which mirrors its state.
struct StandbyStatus {
  std::string address;       // HOST:PORT by which sites reach it
  bool connected = false;    // the following count if it is
  bool whole = false;        // its first copy is
  std::string unfit;         // why it could not lead; empty: it could, once its copy is whole
  int64_t bytes_behind = 0;  // not yet sent to it
  uint64_t records_behind = 0;
  double seconds_behind = 0;
};

// Copies of the state directory elsewhere (store/copies.h).
struct CopyStatus {
  std::string directory;  // empty: none are made, and the rest counts for nothing
  std::string set;        // the newest; empty: none in this life of the coordinator
  int64_t unix_ms = 0;    // when it was begun
  int64_t bytes = 0;
  int64_t new_bytes = 0;
  double seconds = 0;
  std::string hook_ended;  // "with 0" …; empty: it has not, or there is none
  double hook_s = 0;
  std::string sent;    // the newest set whose hook ended with 0
  std::string failed;  // why the last one is not where it should be; empty: it is
};

// The run's coordinators besides this one, and copies of its state.
struct OtherCoordinators {
  std::vector<AwayShard> away;          // the other shards that shard 0 does not hear
  std::vector<StandbyStatus> standbys;  // by place
  std::string standby_of;               // the leader's HOST:PORT; empty: this one leads
  CopyStatus copies;
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
  core::CodecConfig codec;                         // the codecs now used up and down
  std::string codec_reason_up, codec_reason_down;  // why those, where the coordinator chooses them
  std::string grpc;                                // HOST:PORT where it listens
  std::string config_json;
  std::vector<core::SettingsRevision> settings;  // the changes of the config since the run began, oldest first
  std::optional<double> eval_loss_start;
  std::optional<double> eval_loss_latest;
  std::vector<core::Version> eval_loss_versions;
  std::string eval_loss_reason;  // why there is no loss of the run; empty: there is, or will be
  std::vector<SiteStatus> sites;
  std::vector<FragmentStatus> fragments;  // the shard's own fragments
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
  std::string completed;  // how the end of the state, lost with the machine's power, was made good; empty: it was not
  std::vector<core::Outlier> outliers;
  OtherCoordinators others;
  std::string failure;  // why the coordinator cannot continue; empty: it can

  std::string version;                  // board: the program's version
  HostStatus host;                      // board
  std::vector<EvalPoint> eval_history;  // board
  std::vector<Alarm> alarms;            // board, worst first

  int ContributingSites() const;
  // The bytes that averaging float32 gradients in every step would have sent: in both directions, for all sites' steps.
  int64_t Float32EveryStepBytes() const;
};

enum class Details {
  kAuto,  // reduced where sites × fragments exceeds kFullDetails
  kFull,
};

// Beyond this, sites' digests and fragments would make the status larger than 200 kB.
inline constexpr size_t kFullDetails = 1024;

// The JSON of GET /status (docs/operating.md has the fields); numbers that are not finite are null. Thread-safe.
std::string StatusJson(const StatusSnapshot& snapshot, Details details = Details::kAuto);

// The JSON of GET /timeline: the newest rounds that fit into `max_bytes`, newest last. Thread-safe.
inline constexpr size_t kMaxTimelineBytes = 200'000;
std::string TimelineJson(const StatusSnapshot& snapshot, size_t max_bytes = kMaxTimelineBytes);

}  // namespace causeway::server
