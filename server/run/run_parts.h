// The nouns of a run, and what each input does to them. server/run alone changes them: others read RunExchange::View.
//
//   input ─► Handle ─► rules ─ Actions ─► Perform ─► uploads, members, model, … ─► ready
//
// One owner at a time, but for `model.parameters()`.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "core/clock.h"
#include "core/run_config.h"
#include "core/run_settings.h"
#include "server/rounds/run_rules.h"
#include "server/run/admission.h"
#include "server/run/members.h"
#include "server/run/ready.h"
#include "server/run/run_figures.h"
#include "server/run/run_model.h"
#include "server/run/shards.h"
#include "server/run/uploads.h"
#include "server/status/status_board.h"
#include "server/store/journal.h"
#include "server/store/records.h"

namespace causeway::server {

// The options of a coordinator. Constant.
struct RunOptions {
  core::RunConfig config;
  std::string run_config;   // `config`, serialized, for sites
  std::string config_json;  // `config` as JSON, for /status
  std::string grpc, http;   // HOST:PORT where it listens, for the page and for sites
  const core::Clock* clock = &core::SystemClock();
  StatusBoard* board = nullptr;  // updated by Tick; outlives the coordinator; nullptr: no status
  // This coordinator's place among several; a shard beyond the first follows the one at `lead`.
  core::Shard shard;
  std::string lead;  // HOST:PORT, for error messages
  ModelBounds bounds;
  bool new_run = false;  // sites of an unknown lineage are refused permanently, and do not hold up the seed
  std::optional<std::string> completed;  // how the state's lost end was restored; empty: not; nullopt: not yet tried
  bool asks_again = false;               // where it was not restored: as soon as two sites hold more, which may agree
};

struct RunParts {
  // The arguments outlive this object.
  RunParts(const RunOptions& options, Journal& journal, RunFigures& figures, DurableFacts& durable,
           RunModel::Listeners listeners);

  // The news that sites, the log and the history have heard last, and the process itself.
  struct Said {
    bool held = false;
    std::string reason;
    std::map<core::FragmentId, std::string> reasons_of_rounds;  // without their numbers
    int64_t rounds = 0;                                         // decided in this life
    bool ticked = false;    // the first tick is never late: a start may take minutes
    int64_t ticked_ms = 0;  // of the monotonic clock
  };

  // One of the two is null: this is shard 0, or another.
  LeadShard* lead() { return std::get_if<LeadShard>(&shard); }
  FollowerShard* follower() { return std::get_if<FollowerShard>(&shard); }

  const RunOptions& options;
  Journal& journal;
  RunFigures& figures;
  DurableFacts& durable;
  core::RunSettings settings;
  Admission admission;
  std::unique_ptr<RunRules> rules;
  Members members;
  RunCodecs codecs;
  EvalLoss eval_loss;  // the held-out losses that sites report
  OpenUploads uploads;
  std::variant<LeadShard, FollowerShard> shard;
  Said said;
  Ready ready;
  RunModel model;  // last: its merge thread calls the listeners
};

// The run's settings as the rules take them.
RoundSettings RulesOf(const core::RunConfig& config, const core::Shard& shard);

void Apply(RunParts& run, const RunEvent& event, int64_t now_ms);  // passes it to the rules, performs what they decide
void Perform(RunParts& run, const Actions& actions);
void BeginModel(RunParts& run);  // the model is model.fact() from now on
void TellRules(RunParts& run, const core::SettingsRevision& revision, bool goes_on, int64_t now_ms);
v1::CoordinatorMessage DrainMessage();  // to a site that an operator wants to leave

// The status without the figures of rounds, of the journal and of the scrubber. `started_ms`: of the monotonic clock.
StatusSnapshot SnapshotOf(const RunParts& run, int64_t started_ms);

// The run's config as stored, with what each start takes from `own`.
absl::StatusOr<core::RunConfig> ReadSettings(const core::RunConfig& own, const std::string& run_config);

absl::Status Handle(RunParts& run, const input::Join& join, int64_t now_ms);
absl::Status Handle(RunParts& run, const input::SiteReady& ready, int64_t now_ms);
absl::Status Handle(RunParts& run, const input::Progress& progress, int64_t now_ms);
absl::Status Handle(RunParts& run, const input::Leave& leave, int64_t now_ms);
absl::Status Handle(RunParts& run, const input::Disconnected& gone, int64_t now_ms);
absl::Status Handle(RunParts& run, const input::Flooded& flooded, int64_t now_ms);
absl::Status Handle(RunParts& run, const input::BeginUpload& begun, int64_t now_ms);
absl::Status Handle(RunParts& run, const input::BeginDownload& begun, int64_t now_ms);
absl::Status Handle(RunParts& run, const input::CompleteUpload& whole, int64_t now_ms);
absl::Status Handle(RunParts& run, const input::RefuseUpload& refused, int64_t now_ms);
absl::Status Handle(RunParts& run, const input::SeedSaved& saved, int64_t now_ms);
absl::Status Handle(RunParts& run, const input::BeginFollow& begun, int64_t now_ms);
absl::Status Handle(RunParts& run, const input::EndFollow& ended, int64_t now_ms);
absl::Status Handle(RunParts& run, const input::Report& heard, int64_t now_ms);
absl::Status Handle(RunParts& run, const input::Membership& word, int64_t now_ms);
absl::Status Handle(RunParts& run, const input::Drain& drain, int64_t now_ms);
absl::Status Handle(RunParts& run, const input::ChangeRun& change, int64_t now_ms);
absl::Status Handle(RunParts& run, const input::Release& release, int64_t now_ms);
absl::Status Handle(RunParts& run, const input::RollBack& back, int64_t now_ms);
absl::Status Handle(RunParts& run, const input::ChangeSettings& change, int64_t now_ms);
absl::Status Handle(RunParts& run, const input::Command& command, int64_t now_ms);
absl::Status Handle(RunParts& run, const input::Tick& tick, int64_t now_ms);

}  // namespace causeway::server
