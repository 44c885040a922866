// The objects of a run, under the lock of the exchange, and how a decision of the rules reaches them.
//
//   event ─► rules ─ Actions ─► Perform ─► uploads, members, model, … ─► ready ─ Publish ─► journal
//
// One owner at a time, but for `model.parameters()`.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "core/membership.h"
#include "core/progress.h"
#include "core/run_settings.h"
#include "server/rounds/data_fact.h"
#include "server/rounds/run_rules.h"
#include "server/run/admission.h"
#include "server/run/decisions.h"
#include "server/run/follower_shard.h"
#include "server/run/lead_shard.h"
#include "server/run/members.h"
#include "server/run/open_uploads.h"
#include "server/run/ready.h"
#include "server/run/run_codecs.h"
#include "server/run/run_figures.h"
#include "server/run/run_model.h"
#include "server/run/run_options.h"
#include "server/run/run_parts.h"
#include "server/run/seeding.h"
#include "server/store/journal.h"
#include "server/store/records.h"

namespace causeway::server {

// The held-out losses that sites report: the run's, where all evaluate on the same text, or each site's own. One owner
// at a time.
class Evaluations {
 public:
  void Restore(EvalLoss loss) { loss_ = std::move(loss); }
  void Heard(const core::SiteId& site, const core::Progress& progress, const DataFact& data, Ready& ready) {
    if (!progress.eval_loss) return;
    if (data.EvaluatesForAll(site)) {
      loss_.latest = progress.eval_loss;
      loss_.versions = progress.eval_versions;
      if (!loss_.start) loss_.start = loss_.latest;
    } else {
      loss_.by_site[site] = {.loss = *progress.eval_loss, .versions = progress.eval_versions};
    }
    ready.entry.eval_loss = loss_;
  }
  const EvalLoss& loss() const { return loss_; }

 private:
  EvalLoss loss_;
};

// Messages to all sites about the run as a whole: whether they hold before their next step, and why the run does not
// train. One owner at a time.
class Notices {
 public:
  // Tells the sites, the log and the history what is news.
  void Note(RunParts& run);

 private:
  bool held_ = false;
  std::string reason_;
};

class Run {
 public:
  // The arguments outlive this object.
  Run(const RunOptions& options, Journal& journal, RunFigures& figures, DurableFacts& durable,
      RunModel::Listeners listeners);

  // Restore: begins as an earlier life has left the run, or as a new run. RestoreFragments: then, if there are
  // parameters, restores the fragments. DATA_LOSS if the stored state is inconsistent.
  void Restore(const StoredRun& stored, int64_t now_ms);
  absl::Status RestoreFragments(const std::vector<StoredFragment>& stored, int64_t now_ms);
  void BeginModel();  // the model is model.fact() from now on

  // A shard beyond the first takes shard 0's word, and publishes. An error is final.
  absl::Status Follow(const v1::MembershipUpdate& update, int64_t now_ms);

  void Apply(const RunEvent& event, int64_t now_ms);  // passes the event to the rules, and performs what they decide
  void Perform(const Actions& actions);               // collects their effects in the ready
  void Publish();                                     // commits the ready, with what sites and shards have to hear
  RunParts Parts() { return {*rules, members, ready}; }

  // One of the two is null: this is shard 0, or another.
  LeadShard* lead() { return std::get_if<LeadShard>(&shard_); }
  FollowerShard* follower() { return std::get_if<FollowerShard>(&shard_); }

  // Operators: the settings change, from a round and a step on; sites hear of it once it is durable.
  // Returns the change, and after it those that were to come later, on top of it.
  absl::StatusOr<std::vector<core::SettingsRevision>> ChangeSettings(const v1::ChangeSettingsRequest& request);
  // The revisions after `number` that sites may hear of. For any thread.
  std::vector<core::SettingsRevision> SettingsAfter(int64_t number) const;
  // Called before Restore: restores the changes that earlier lives have stored.
  absl::Status RestoreSettings(const core::SettingsChain& stored);

  core::RunSettings settings;
  Admission admission;
  std::unique_ptr<RunRules> rules;
  Members members;
  Seeding seeding;
  RunCodecs codecs;
  Evaluations evaluations;
  Ready ready;
  OpenUploads uploads;
  Decisions decisions;

 private:
  void TellRules(const core::SettingsRevision& revision, bool goes_on, int64_t now_ms);
  absl::StatusOr<SettingsForms::Changed> Changed(const v1::ChangeSettingsRequest& request,
                                                 const ChangePlace& place) const;
  absl::Status CheckRoomForRevisions(size_t more) const;

  void Do(const RequestSeed& action);
  void Do(const Enter& action);
  void Do(const CloseRound& action);
  void Do(const Forgotten& action);
  void Do(const Dropped& action);

  const RunOptions& options_;
  Journal& journal_;
  DurableFacts& durable_;
  Notices notices_;
  std::variant<LeadShard, FollowerShard> shard_;

 public:
  RunModel model;  // last: its merge thread calls the listeners
};

}  // namespace causeway::server
