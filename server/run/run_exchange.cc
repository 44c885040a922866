#include "server/run/run_exchange.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/digest.h"
#include "transport/messages.h"

namespace causeway::server {

absl::Status ShardCalls::BeginFollow(const v1::Context& context, const std::shared_ptr<ShardPeer>& peer) {
  RETURN_IF_ERROR(CheckFollower(context, options_));
  exchange_.With([&](Run& run) {
    spdlog::info("shard {} follows", context.shard());
    run.lead()->Begin(peer, *run.rules, run.model.fact(), run.ready);
    run.Publish();
  });
  return absl::OkStatus();
}

void ShardCalls::HeardOfShard(int shard, const v1::ShardReport& report) {
  shown_.Heard(shard, report, options_.clock->NowMs());
  exchange_.With([&](Run& run) {
    // A report of an earlier generation may still be in flight.
    const bool of_this_model = !report.has_generation() || report.generation() >= run.model.fact().generation();
    const ShardReport heard{.seeded = report.seeded() && of_this_model,
                            .versions = {report.versions().begin(), report.versions().end()},
                            .stranded = report.stranded(),
                            .stranded_stay = report.stranded_stay()};
    run.Apply(ShardReported{shard, heard}, options_.clock->NowMs());
    run.Publish();
  });
}

void ShardCalls::EndFollow(const ShardPeer* peer) {
  exchange_.With([&](Run& run) { run.lead()->End(peer); });
}

void ShardCalls::Follow(const v1::MembershipUpdate& update) {
  const absl::Status followed = exchange_.With([&](Run& run) { return run.Follow(update, options_.clock->NowMs()); });
  if (!followed.ok()) exchange_.Fail(followed);
}

void StallWatch::Tick(int64_t now_ms, RunParts& run) {
  const bool first = !std::exchange(ticked_, true);
  const int64_t from_ms = std::exchange(ticked_ms_, now_ms);
  if (now_ms - from_ms <= lease_ms_ / 4) return;
  run.rules.Handle(StoodStill{from_ms}, now_ms);
  if (first) return;
  const std::string text = absl::StrCat("this process stood still for ", now_ms - from_ms,
                                        " ms; the sites' leases go on from where they were");
  spdlog::warn("{}", text);
  run.ready.Note("stall", text);
}

absl::StatusOr<std::unique_ptr<RunExchange>> RunExchange::Create(RunOptions options, Journal* journal,
                                                                 StoredRun stored) {
  std::unique_ptr<RunExchange> exchange(new RunExchange(std::move(options), journal));
  RETURN_IF_ERROR(exchange->Begin(stored));
  exchange->PublishStatus();
  return exchange;
}

RunExchange::RunExchange(RunOptions options, Journal* journal)
    : options_(std::move(options)),
      journal_(journal),
      started_ms_(options_.clock->NowMs()),
      stalls_(started_ms_, options_.config.membership.lease_ms),
      figures_(options_.clock),
      run_(options_, *journal, figures_, durable_,
           {.merged = [this](const MergedRound& merged) { OnMerged(merged); },
            .failed = [this](const absl::Status& status) { Fail(status); }}) {}

RunExchange::~RunExchange() {
  journal_->Flush();  // its remaining callbacks use us and the parameters
  run_.model.End();
  journal_->Flush();
}

v1::RunDescription RunExchange::Describe() const {
  core::MutexLock lock(mutex_);
  v1::RunDescription description;
  description.set_protocol(transport::kProtocol);
  description.set_run_id(options_.config.run_id);
  description.set_epoch(journal_->identity().epoch);
  description.set_lineage(journal_->identity().lineage);
  description.set_run_config(options_.run_config);
  description.set_http(options_.http);
  description.set_shard(options_.shard.index);
  description.set_num_shards(options_.shard.count);
  run_.model.Describe(description);
  return description;
}

absl::Status RunExchange::Begin(const StoredRun& stored) {
  core::MutexLock lock(mutex_);
  RETURN_IF_ERROR(run_.RestoreSettings(stored.settings));
  run_.Restore(stored, started_ms_);
  durable_.report.MakeNotedDurable();
  return stored.rounds.seeded ? run_.RestoreFragments(stored.fragments, started_ms_) : absl::OkStatus();
}

void RunExchange::Fail(const absl::Status& status) {
  core::MutexLock lock(mutex_);
  if (status_.ok()) status_ = status;
}

absl::Status RunExchange::status() const {
  if (absl::Status status = journal_->status(); !status.ok()) return status;
  core::MutexLock lock(mutex_);
  return status_;
}

void RunExchange::Tick() {
  constexpr int64_t kSampleMs = 250;
  {
    core::MutexLock lock(mutex_);
    const int64_t now_ms = options_.clock->NowMs();
    RunParts parts = run_.Parts();
    stalls_.Tick(now_ms, parts);
    run_.Apply(server::Tick{}, now_ms);
    run_.Publish();
    if (now_ms < sampled_ms_ + kSampleMs) return;
    sampled_ms_ = now_ms;
    run_.members.Sample(now_ms);
  }
  PublishStatus();
}

absl::Status RunExchange::Finish() {
  journal_->Flush();  // rounds decided last are merged now
  if (run_.model.parameters() != nullptr) RETURN_IF_ERROR(run_.model.parameters()->Finish());
  journal_->Flush();
  return status();
}

bool RunExchange::lacks_its_end() const {
  core::MutexLock lock(mutex_);
  return run_.admission.LacksItsEnd();
}

bool RunExchange::done() const {
  {
    core::MutexLock lock(mutex_);
    if (run_.rules->run_state() != RunState::kDone) return false;
  }
  journal_->Flush();  // the others are notified once it is durable
  return true;
}

absl::StatusOr<std::vector<Event>> RunExchange::History(int64_t after_id, int64_t limit,
                                                        const std::string& kind) const {
  return journal_->History(after_id, limit, kind);
}

absl::Status RunExchange::Ask(const std::function<absl::Status(RunParts&, Actions&)>& event) {
  {
    core::MutexLock lock(mutex_);
    RunParts parts = run_.Parts();
    Actions actions;
    RETURN_IF_ERROR(event(parts, actions));
    run_.Perform(actions);
    run_.Publish();
  }
  journal_->Flush();
  return status();
}

void RunExchange::OnMerged(const MergedRound& merged) {
  spdlog::info("fragment {}: version {}, digest {}", merged.round.fragment, merged.committed.version,
               core::DigestText(merged.committed.digest));
  figures_.Merged(merged);
}

StatusSnapshot RunExchange::Status() const {
  StatusSnapshot snapshot;
  {
    core::MutexLock lock(mutex_);
    snapshot = SnapshotOf({.options = options_,
                           .rules = *run_.rules,
                           .model = run_.model.fact(),
                           .parameters = run_.model.parameters().get(),
                           .members = run_.members,
                           .seeding = run_.seeding,
                           .admission = run_.admission,
                           .codecs = run_.codecs,
                           .settings = run_.settings,
                           .eval_loss = run_.evaluations.loss(),
                           .shown_shards = shown_shards_,
                           .epoch = journal_->identity().epoch,
                           .started_ms = started_ms_,
                           .rounds_closed = run_.decisions.count()});
  }
  if (const absl::Status status = this->status(); !status.ok()) snapshot.failure = std::string(status.message());
  const SyncFigures syncs = journal_->syncs();
  snapshot.syncs = {.count = syncs.count, .seconds = syncs.seconds, .slowest_s = syncs.slowest_s};
  const ScrubFigures scrub = journal_->scrub();
  snapshot.scrub = {.passes = scrub.passes, .bytes = scrub.bytes, .ended_unix_ms = scrub.ended_unix_ms, .damages = {}};
  for (const DiskDamage& damage : scrub.damages) snapshot.scrub.damages.push_back(damage.Text());
  figures_.AddTo(snapshot);
  return snapshot;
}

void RunExchange::PublishStatus() {
  if (options_.board == nullptr) return;
  StatusSnapshot snapshot = Status();
  durable_.report.Show(snapshot);
  options_.board->Publish(std::move(snapshot));
}

}  // namespace causeway::server
