// The part of Coordinator for readers: the snapshot for the status board, and the log of rounds.
#include <spdlog/spdlog.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/digest.h"
#include "server/run/coordinator.h"
#include "transport/messages.h"

namespace causeway::server {
using core::SiteId;

void Coordinator::OnMerged(const MergedRound& merged) {
  spdlog::info("fragment {}: version {}, digest {}", merged.round.fragment, merged.committed.version,
               core::DigestText(merged.committed.digest));
  figures_.Merged(merged);
}

void Coordinator::Taken(const v1::DownloadRequest& request, int64_t begun_ms) {
  if (request.source_case() != v1::DownloadRequest::kUpdateBase) return;  // an anchor belongs to no round
  {
    core::MutexLock lock(mutex_);
    if (run_.members.Find(request.context().site()) == nullptr) return;
  }
  figures_.Taken(request, begun_ms);
}

void Coordinator::Flooded(const SiteId& site, const std::string& why) {
  core::MutexLock lock(mutex_);
  if (!run_.members.Flooded(site, why, options_.clock->NowMs())) return;
  run_.outbox.Note("noisy", site, -1, why);
  run_.Publish();
}

StatusSnapshot Coordinator::Status() const {
  StatusSnapshot snapshot;
  {
    core::MutexLock lock(mutex_);
    snapshot = SnapshotOf({.options = options_,
                           .rounds = *run_.rounds,
                           .model = run_.model.fact(),
                           .parameters = run_.model.parameters().get(),
                           .members = run_.members,
                           .seeding = run_.seeding,
                           .admission = run_.admission,
                           .codecs = run_.codecs,
                           .eval_loss = run_.evaluations.loss(),
                           .shown_shards = shown_shards_,
                           .epoch = journal_->epoch(),
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

void Coordinator::PublishStatus() {
  if (options_.board == nullptr) return;
  StatusSnapshot snapshot = Status();
  report_.Show(snapshot);
  options_.board->Publish(std::move(snapshot));
}

}  // namespace causeway::server
