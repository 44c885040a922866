#include "server/run/run_exchange.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "core/check.h"
#include "core/digest.h"
#include "transport/messages.h"

namespace causeway::server {

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
      figures_(options_.clock),
      run_(options_, *journal, figures_, durable_,
           {.merged =
                [this](const MergedRound& merged) {
                  spdlog::info("fragment {}: version {}, digest {}", merged.round.fragment, merged.committed.version,
                               core::DigestText(merged.committed.digest));
                  figures_.Merged(merged);
                },
            .failed = [this](const absl::Status& status) { Fail(status); }}) {}

RunExchange::~RunExchange() {
  journal_->Flush();  // its remaining callbacks use us and the parameters
  run_.EndModel();
  journal_->Flush();
}

absl::Status RunExchange::Begin(const StoredRun& stored) {
  core::MutexLock lock(mutex_);
  ASSIGN_OR_RETURN(Ready ready, run_.Restore(stored, started_ms_));
  Commit(std::move(ready), durable_, *journal_);
  durable_.report.MakeNotedDurable();
  return stored.rounds.seeded ? run_.RestoreFragments(stored.fragments, started_ms_) : absl::OkStatus();
}

Ready RunExchange::Handle(const Input& input) {
  core::MutexLock lock(mutex_);
  return Commit(run_.Handle(input, options_.clock->NowMs()), durable_, *journal_);
}

absl::StatusOr<Ready> RunExchange::Ask(const Input& input) {
  Ready ready = Handle(input);
  RETURN_IF_ERROR(ready.status);
  journal_->Flush();
  RETURN_IF_ERROR(status());
  return ready;
}

void RunExchange::Join(const std::shared_ptr<SitePeer>& peer, const v1::Join& join) {
  Handle(input::Join{peer, join, admission().ReadManifest(join)});  // read without the lock
}

void RunExchange::CompleteUpload(const v1::UploadHeader& header, Upload upload,
                                 const std::shared_ptr<UploadPeer>& peer) {
  const bool initial = header.initial();
  if (initial) upload.contribution.reset();  // the seeding owns it, and releases it as soon as it is decoded
  Ready ready = Handle(input::CompleteUpload{header, upload, peer});
  if (!initial) return;
  if (!ready.status.ok()) return peer->Answer(ready.status);
  if (ready.seed.parts.empty()) return peer->Answer(AdmittedVerdict());
  auto fragments = SaveSeed(std::move(ready.seed), options_.shard, options_.config.codec.feedback_down > 0, *journal_);
  if (!fragments.ok()) return Fail(fragments.status());
  const auto parameters = View([](const RunParts& run) { return run.model.parameters(); });
  if (const absl::Status saved = Handle(input::SeedSaved{}).status; !saved.ok()) Fail(saved);
  parameters->Set(*std::move(fragments));  // wakes downloads, which call us: not under the lock
  peer->Answer(AdmittedVerdict());
}

std::vector<core::SettingsRevision> RunExchange::SettingsAfter(int64_t revision) const {
  std::vector<core::SettingsRevision> later =
      View([revision](const RunParts& run) { return run.settings.After(revision); });
  std::erase_if(later, [this](const core::SettingsRevision& one) { return one.number > durable_.revision; });
  return later;
}

void RunExchange::Taken(const v1::DownloadRequest& request, int64_t begun_ms) {
  if (request.source_case() != v1::DownloadRequest::kUpdateBase) return;  // an anchor belongs to no round
  const core::SiteId& site = request.context().site();
  if (View([&](const RunParts& run) { return run.members.Find(site) != nullptr; })) figures_.Taken(request, begun_ms);
}

absl::StatusOr<std::vector<core::Version>> RunExchange::RollBack(core::Version version) {
  if (!options_.shard.alone()) {
    return absl::FailedPreconditionError(
        "a run of several shards cannot be rolled back while it runs; restore a backup of all their state directories");
  }
  const int num_fragments =
      View([](const RunParts& run) { return run.model.fact().stays() ? run.model.fact().map().num_fragments() : 0; });
  if (num_fragments == 0) return absl::FailedPreconditionError("the run has no parameters yet");
  RETURN_IF_ERROR(journal_->Keep(version, num_fragments));
  std::vector<int64_t> run_tokens;
  for (core::FragmentId p = 0; p < num_fragments; ++p) {  // a damaged one is found before anything is decided
    ASSIGN_OR_RETURN(const core::FragmentState state, journal_->LoadSnapshot(p, version));
    run_tokens.push_back(state.run_tokens);
  }
  RETURN_IF_ERROR(Ask(input::RollBack{version, run_tokens}).status());
  return View([](const RunParts& run) { return run.rules->state().versions; });
}

// ---- The status ----

v1::RunDescription RunExchange::Describe() const {
  v1::RunDescription description;
  description.set_protocol(transport::kProtocol);
  description.set_run_id(options_.config.run_id);
  description.set_epoch(journal_->identity().epoch);
  description.set_lineage(journal_->identity().lineage);
  description.set_run_config(options_.run_config);
  description.set_http(options_.http);
  for (const std::string& standby : journal_->mirrors().known()) description.add_standbys(standby);
  description.set_shard(options_.shard.index);
  description.set_num_shards(options_.shard.count);
  View([&](const RunParts& run) { run.model.Describe(description); });
  return description;
}

StatusSnapshot RunExchange::Status() const {
  StatusSnapshot snapshot = View([this](const RunParts& run) { return SnapshotOf(run, started_ms_); });
  if (const absl::Status status = this->status(); !status.ok()) snapshot.failure = std::string(status.message());
  const auto [syncs, scrub, copies] = journal_->figures();
  snapshot.syncs = {.count = syncs.count, .seconds = syncs.seconds, .slowest_s = syncs.slowest_s};
  snapshot.scrub = {.passes = scrub.passes, .bytes = scrub.bytes, .ended_unix_ms = scrub.ended_unix_ms, .damages = {}};
  for (const DiskDamage& damage : scrub.damages) snapshot.scrub.damages.push_back(damage.Text());
  snapshot.others.copies = {copies.directory, copies.set,        copies.unix_ms, copies.bytes, copies.new_bytes,
                            copies.seconds,   copies.hook_ended, copies.hook_s,  copies.sent,  copies.failed};
  for (const std::string& address : journal_->mirrors().known())
    snapshot.others.standbys.push_back({.address = address});
  for (const auto& feed : journal_->mirrors().all()) {
    const MirrorFigures behind = feed->figures();
    for (StandbyStatus& standby : snapshot.others.standbys) {
      if (standby.address != behind.address) continue;
      standby.connected = true;
      standby.whole = behind.sequence > 0;
      standby.unfit = behind.unfit;
      standby.records_behind = behind.records_behind;
      standby.bytes_behind = behind.bytes_behind;
      standby.seconds_behind = behind.seconds_behind;
    }
  }
  figures_.AddTo(snapshot);
  return snapshot;
}

void RunExchange::PublishStatus() {
  if (options_.board == nullptr) return;
  StatusSnapshot snapshot = Status();
  durable_.report.Show(snapshot);
  options_.board->Publish(std::move(snapshot));
}

// ---- The owner of the process ----

void RunExchange::Tick() {
  constexpr int64_t kSampleMs = 250;
  {
    core::MutexLock lock(mutex_);
    const int64_t now_ms = options_.clock->NowMs();
    Commit(run_.Handle(input::Tick{}, now_ms), durable_, *journal_);
    if (now_ms < sampled_ms_ + kSampleMs) return;
    sampled_ms_ = now_ms;
    run_.View().members.Sample(now_ms);
  }
  PublishStatus();
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

absl::Status RunExchange::Finish() {
  journal_->Flush();  // rounds decided last are merged now
  const auto parameters = run_.View().model.parameters();
  if (parameters != nullptr) RETURN_IF_ERROR(parameters->Finish());
  journal_->Flush();
  return status();
}

bool RunExchange::done() const {
  if (!View([](const RunParts& run) { return run.rules->run_state() == RunState::kDone; })) return false;
  journal_->Flush();  // the others are notified once it is durable
  return true;
}

}  // namespace causeway::server
