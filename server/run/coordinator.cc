#include "server/run/coordinator.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/limits.h"
#include "core/random.h"
#include "core/text.h"
#include "transport/messages.h"

namespace causeway::server {
namespace {

// A site's text, clipped to be kept.
std::string OfSite(const std::string& text) { return core::Clipped(text, core::kMaxSiteTextBytes); }

SiteBeat BeatOf(const v1::Progress& message) {
  return {.step = message.step(),
          .completing = message.completing(),
          .unheard_ms = message.unheard_ms(),
          .standing_still = message.ranks().standing_still()};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Coordinator>> Coordinator::Create(CoordinatorOptions options, Journal* journal,
                                                                 StoredRun stored) {
  std::unique_ptr<Coordinator> coordinator(new Coordinator(std::move(options), journal));
  RETURN_IF_ERROR(coordinator->Begin(stored));
  coordinator->PublishStatus();
  return coordinator;
}

Coordinator::Coordinator(CoordinatorOptions options, Journal* journal)
    : options_(std::move(options)),
      journal_(journal),
      started_ms_(options_.clock->NowMs()),
      stalls_(started_ms_, options_.config.membership.lease_ms),
      figures_(options_.clock),
      run_(options_, *journal, figures_, report_,
           {.merged = [this](const MergedRound& merged) { OnMerged(merged); },
            .failed = [this](const absl::Status& status) { Fail(status); }}) {}

Coordinator::~Coordinator() {
  journal_->Flush();  // its remaining callbacks use us and the parameters
  run_.model.End();
  journal_->Flush();
}

v1::RunDescription Coordinator::Describe() const {
  core::MutexLock lock(mutex_);
  v1::RunDescription description;
  description.set_protocol(transport::kProtocol);
  description.set_run_id(options_.config.run_id);
  description.set_epoch(journal_->epoch());
  description.set_lineage(journal_->lineage());
  description.set_run_config(options_.run_config);
  description.set_shard(options_.shard.index);
  description.set_num_shards(options_.shard.count);
  run_.model.Describe(description);
  return description;
}

void Coordinator::Join(const std::shared_ptr<SitePeer>& peer, const v1::Join& join) {
  const absl::StatusOr<core::Manifest> manifest = run_.admission.ReadManifest(join);
  core::MutexLock lock(mutex_);
  const core::SiteId& site = join.context().site();
  const std::optional<DoubtFound> doubt = run_.admission.FindDoubt(join, *run_.rounds);
  const auto map = run_.admission.CheckModel(join, manifest, run_.codecs.all(), run_.model.fact(), *run_.rounds);
  const absl::StatusOr<core::SiteData> data = map.ok() ? run_.admission.CheckData(join, *run_.rounds) : map.status();
  const bool continues = !doubt && run_.admission.Continues(join, *run_.rounds);
  const int64_t now_ms = options_.clock->NowMs();
  const JoinDecision decision = doubt ? run_.admission.Refuse(site, *doubt, now_ms, *run_.rounds, run_.outbox)
                                      : run_.admission.Decide(join, data.status(), continues, now_ms, *run_.rounds);
  // Actions on an earlier stay's remains go first, with its stream; messages to the site wait for the new stream.
  const auto is_told = [](const Action& action) {
    return std::holds_alternative<RequestSeed>(action) || std::holds_alternative<Enter>(action);
  };
  Actions before, told;
  for (const Action& action : decision.actions) (is_told(action) ? told : before).push_back(action);
  run_.Perform(before);
  v1::CoordinatorMessage answer;
  if (!decision.accepted) {
    spdlog::warn("site {}: {}: {}", site, decision.retry_after_ms > 0 ? "has to wait" : "refused", decision.reason);
    answer.mutable_refused()->set_reason(decision.reason);
    answer.mutable_refused()->set_retry_after_ms(decision.retry_after_ms);
    run_.outbox.Then([peer, answer] {
      peer->Send(answer);
      peer->Close();
    });
    run_.Publish();
    return;
  }
  if (*map && run_.model.Declare(**map, site, run_.outbox)) {
    run_.model.Store(run_.outbox);
    run_.BeginModel();
    run_.rounds->BeginAnotherModel();
  }
  run_.admission.DeclareData(site, *data, *run_.rounds, run_.outbox);
  run_.members.Join(site, join.context().session(), peer, decision.resumed, now_ms);
  spdlog::info("site {}: {}", site, decision.resumed ? "is back" : "joins");
  if (join.from_checkpoint()) run_.uploads.Forget(site, run_.rounds->state());  // another process made those chunks
  run_.outbox.StateChanged();
  if (!decision.resumed) run_.outbox.Note("join", site, -1, absl::StrCat("version ", OfSite(join.software_version())));
  *answer.mutable_welcome() = run_.admission.Welcome(join, decision, continues, run_.model.welcome(), *run_.rounds);
  run_.members.Send(site, answer, run_.outbox);
  const bool drains = run_.rounds->state().sites.at(site).state == core::SiteState::kDraining;
  if (drains) run_.members.Send(site, DrainMessage(), run_.outbox);  // it may not know
  run_.Perform(told);
  const std::string reason = run_.rounds->Reason();
  if (!reason.empty())
    run_.members.Send(site, transport::NoticeOf(reason), run_.outbox);  // a newcomer wants to know why it waits
  run_.Publish();
}

bool Coordinator::AwaitsJournal(std::function<void()> read_on) {
  if (!journal_->full()) return false;
  journal_->Commit({.durable = std::move(read_on)});
  return true;
}

void Coordinator::Ready(const SitePeer* peer) {
  core::MutexLock lock(mutex_);
  const core::SiteId site = run_.members.SiteOf(peer);
  if (site.empty()) return;
  run_.Perform(run_.rounds->Ready(site, run_.members[site].session));
  run_.Publish();
}

void Coordinator::Progress(const SitePeer* peer, const v1::Progress& message) {
  core::MutexLock lock(mutex_);
  const core::SiteId site = run_.members.SiteOf(peer);
  if (site.empty()) return;
  Member& member = run_.members[site];
  run_.Perform(run_.rounds->Heard(site, member.session, BeatOf(message), options_.clock->NowMs()));
  core::Progress progress = transport::FromProto(message);
  run_.codecs.Heard(site, progress);
  if (std::isnan(progress.loss)) progress.loss = member.progress->loss;  // nothing new
  run_.evaluations.Heard(site, progress, run_.admission.data(), run_.outbox);
  member.progress = std::make_shared<const core::Progress>(std::move(progress));
  run_.Publish();
}

void Coordinator::Leave(const SitePeer* peer, const v1::Leave& leave) {
  core::MutexLock lock(mutex_);
  const core::SiteId site = run_.members.SiteOf(peer);
  if (site.empty()) return;
  if (run_.follower() != nullptr) {  // shard 0 will announce its meaning
    run_.members.Close(site, run_.outbox);
    return run_.Publish();
  }
  run_.Perform(run_.rounds->Leave(site, run_.members[site].session, leave.finished(), OfSite(leave.reason()),
                                  options_.clock->NowMs()));
  run_.Publish();
}

void Coordinator::Disconnected(const SitePeer* peer) {
  core::MutexLock lock(mutex_);
  const core::SiteId site = run_.members.SiteOf(peer);
  if (site.empty()) return;  // it left, or has another stream by now
  const int64_t now_ms = options_.clock->NowMs();
  run_.members.Silent(site, now_ms);
  run_.rounds->Disconnected(site, run_.members[site].session, now_ms);
  spdlog::warn("site {}: its control stream broke; its name is kept for {} ms", site,
               options_.config.membership.lease_ms);
}

}  // namespace causeway::server
