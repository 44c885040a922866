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
  RETURN_IF_ERROR(coordinator->Restore(std::move(stored)));
  coordinator->PublishStatus();
  return coordinator;
}

Coordinator::Coordinator(CoordinatorOptions options, Journal* journal)
    : options_(std::move(options)),
      journal_(journal),
      started_ms_(options_.clock->NowMs()),
      admission_(options_.config, options_.shard, options_.bounds, options_.new_run,
                 !options_.completed && journal->identity().may_have_lost_its_end,
                 Claims(journal->identity(), core::DeviceRandom(), options_.shard)),
      codecs_(options_.config),
      stalls_(started_ms_, options_.config.membership.lease_ms),
      lead_(options_.shard.leads() ? std::optional<LeadShard>(options_) : std::nullopt),
      follower_(options_.shard.leads() ? std::nullopt
                                       : std::optional<FollowerShard>(std::in_place, options_, &report_)),
      figures_(options_.clock),
      open_(model_, codecs_, figures_, *options_.clock),
      decisions_(options_.config, *options_.clock, model_, codecs_, open_, figures_),
      model_(options_.config, journal,
             {.merged = [this](const MergedRound& merged) { OnMerged(merged); },
              .failed = [this](const absl::Status& status) { Fail(status); }}) {}

Coordinator::~Coordinator() {
  journal_->Flush();  // its remaining callbacks use us and the parameters
  model_.End();
  journal_->Flush();
}

void Coordinator::BeginModel() {
  open_.Reset(model_.fact().map().num_fragments());
  seeding_.Void();
  codecs_.SetMap(model_.fact().map());
  model_.Begin(outbox_);
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
  model_.Describe(description);
  return description;
}

void Coordinator::Join(const std::shared_ptr<SitePeer>& peer, const v1::Join& join) {
  const absl::StatusOr<core::Manifest> manifest = admission_.ReadManifest(join);
  core::MutexLock lock(mutex_);
  const core::SiteId& site = join.context().site();
  const std::optional<DoubtFound> doubt = admission_.FindDoubt(join, *rounds_);
  const auto map = admission_.CheckModel(join, manifest, codecs_.all(), model_.fact(), *rounds_);
  const absl::StatusOr<core::SiteData> data = map.ok() ? admission_.CheckData(join, *rounds_) : map.status();
  const bool continues = !doubt && admission_.Continues(join, *rounds_);
  const int64_t now_ms = options_.clock->NowMs();
  const JoinDecision decision = doubt ? admission_.Refuse(site, *doubt, now_ms, *rounds_, outbox_)
                                      : admission_.Decide(join, data.status(), continues, now_ms, *rounds_);
  // Actions on an earlier stay's remains go first, with its stream; messages to the site wait for the new stream.
  const auto is_told = [](const Action& action) {
    return std::holds_alternative<RequestSeed>(action) || std::holds_alternative<Enter>(action);
  };
  Actions before, told;
  for (const Action& action : decision.actions) (is_told(action) ? told : before).push_back(action);
  Perform(before);
  v1::CoordinatorMessage answer;
  if (!decision.accepted) {
    spdlog::warn("site {}: {}: {}", site, decision.retry_after_ms > 0 ? "has to wait" : "refused", decision.reason);
    answer.mutable_refused()->set_reason(decision.reason);
    answer.mutable_refused()->set_retry_after_ms(decision.retry_after_ms);
    outbox_.Then([peer, answer] {
      peer->Send(answer);
      peer->Close();
    });
    Publish();
    return;
  }
  if (*map && model_.Declare(**map, site, outbox_)) {
    model_.Store(outbox_);
    BeginModel();
    rounds_->BeginAnotherModel();
  }
  admission_.DeclareData(site, *data, *rounds_, outbox_);
  members_.Join(site, join.context().session(), peer, decision.resumed, now_ms);
  spdlog::info("site {}: {}", site, decision.resumed ? "is back" : "joins");
  if (join.from_checkpoint()) open_.Forget(site, rounds_->state());  // another process made those chunks
  outbox_.StateChanged();
  if (!decision.resumed) outbox_.Note("join", site, -1, absl::StrCat("version ", OfSite(join.software_version())));
  *answer.mutable_welcome() = admission_.Welcome(join, decision, continues, model_.welcome(), *rounds_);
  members_.Send(site, answer, outbox_);
  const bool drains = rounds_->state().sites.at(site).state == core::SiteState::kDraining;
  if (drains) members_.Send(site, DrainMessage(), outbox_);  // it may not know
  Perform(told);
  const std::string reason = rounds_->Reason();
  if (!reason.empty())
    members_.Send(site, transport::NoticeOf(reason), outbox_);  // a newcomer wants to know why it waits
  Publish();
}

bool Coordinator::AwaitsJournal(std::function<void()> read_on) {
  if (!journal_->full()) return false;
  journal_->Commit({.durable = std::move(read_on)});
  return true;
}

void Coordinator::Ready(const SitePeer* peer) {
  core::MutexLock lock(mutex_);
  const core::SiteId site = members_.SiteOf(peer);
  if (site.empty()) return;
  Perform(rounds_->Ready(site, members_[site].session));
  Publish();
}

void Coordinator::Progress(const SitePeer* peer, const v1::Progress& message) {
  core::MutexLock lock(mutex_);
  const core::SiteId site = members_.SiteOf(peer);
  if (site.empty()) return;
  Member& member = members_[site];
  Perform(rounds_->Heard(site, member.session, BeatOf(message), options_.clock->NowMs()));
  core::Progress progress = transport::FromProto(message);
  codecs_.Heard(site, progress);
  if (std::isnan(progress.loss)) progress.loss = member.progress->loss;  // nothing new
  evaluations_.Heard(site, progress, admission_.data(), outbox_);
  member.progress = std::make_shared<const core::Progress>(std::move(progress));
  Publish();
}

void Coordinator::Leave(const SitePeer* peer, const v1::Leave& leave) {
  core::MutexLock lock(mutex_);
  const core::SiteId site = members_.SiteOf(peer);
  if (site.empty()) return;
  if (follower_) {  // shard 0 will announce its meaning
    members_.Close(site, outbox_);
    return Publish();
  }
  Perform(
      rounds_->Leave(site, members_[site].session, leave.finished(), OfSite(leave.reason()), options_.clock->NowMs()));
  Publish();
}

void Coordinator::Disconnected(const SitePeer* peer) {
  core::MutexLock lock(mutex_);
  const core::SiteId site = members_.SiteOf(peer);
  if (site.empty()) return;  // it left, or has another stream by now
  const int64_t now_ms = options_.clock->NowMs();
  members_.Silent(site, now_ms);
  rounds_->Disconnected(site, members_[site].session, now_ms);
  spdlog::warn("site {}: its control stream broke; its name is kept for {} ms", site,
               options_.config.membership.lease_ms);
}

}  // namespace causeway::server
