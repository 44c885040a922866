// The part of Coordinator that serves bulk streams.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "server/run/coordinator.h"

namespace causeway::server {
namespace {

v1::Verdict Admitted() {
  v1::Verdict verdict;
  verdict.set_admitted(true);
  return verdict;
}

v1::Verdict Refused(absl::string_view reason) {
  v1::Verdict verdict;
  verdict.set_reason(std::string(reason));
  return verdict;
}

core::Admitted AdmittedOf(const v1::UploadHeader& header) {
  return {.base = header.base_version(), .tokens = header.tokens(), .steps = header.steps()};
}

// A repeat of an admitted contribution is answered like the first; any other failure is a refusal.
v1::Verdict VerdictOf(const absl::Status& status) {
  return absl::IsAlreadyExists(status) ? Admitted() : Refused(status.message());
}

}  // namespace

std::shared_ptr<SiteMeters> Coordinator::Meters(const core::SiteId& site) {
  core::MutexLock lock(mutex_);
  const Member* const member = members_.Find(site);
  // A caller that never joined is answered, not counted.
  return member == nullptr ? std::make_shared<SiteMeters>() : member->meters;
}

// Chunks of an earlier stay were made with another residual: they must not be mixed with new ones of the same base.
absl::Status Coordinator::CheckStay(const core::SiteId& site, int64_t stay) const {
  const auto record = rounds_->state().sites.find(site);
  if (stay == 0 || record == rounds_->state().sites.end() || record->second.stay == stay) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("expected stay ", record->second.stay, " of the site, got ", stay, "; retry"));
}

absl::StatusOr<Coordinator::Upload> Coordinator::BeginUpload(const v1::UploadHeader& header) {
  RETURN_IF_ERROR(CheckContext(header.context()));
  RETURN_IF_ERROR(CheckOwned(header.fragment()));
  core::MutexLock lock(mutex_);
  RETURN_IF_ERROR(model_.fact().CheckGeneration(GenerationOf(header)));
  if (header.initial()) return BeginSeed(header);
  const core::SiteId& site = header.context().site();
  RETURN_IF_ERROR(CheckStay(site, header.context().stay()));
  const absl::Status status =
      rounds_->CheckContribution(site, header.context().session(), header.fragment(), AdmittedOf(header));
  if (!status.ok()) return Upload{};
  const OpenUploads::Arriving* arriving = open_.Find(header.fragment(), site);
  if (arriving == nullptr || arriving->base != header.base_version()) {
    open_.Put(header.fragment(), site,
              {std::make_shared<Contribution>(codecs::PlanChunks(model_.fact().map().fragment(header.fragment()),
                                                                 codecs_.UpLeg(header.fragment()))),
               header.base_version(), options_.clock->NowMs()});
    arriving = open_.Find(header.fragment(), site);
    figures_.Begun(header.fragment(), NextVersion(header.fragment()), site);
  }
  return Upload{.contribution = arriving->contribution, .meters = members_[site].meters};
}

absl::StatusOr<Coordinator::Upload> Coordinator::BeginSeed(const v1::UploadHeader& header) {
  const core::SiteId& site = header.context().site();
  const Member* const member = members_.Find(site);
  if (model_.fact().stays()) return Upload{};  // a repeat
  if (follower_ && site != model_.fact().seeder()) {
    return absl::UnavailableError("shard 0 has not told this shard that it asked this site");
  }
  if (member == nullptr || member->session != header.context().session() || site != model_.fact().seeder() ||
      !seeding_.expects(header.fragment())) {
    return absl::FailedPreconditionError("the coordinator did not ask this site for that fragment");
  }
  return Upload{.contribution = seeding_.Part(model_.fact().map().fragment(header.fragment())),
                .meters = member->meters};
}

void Coordinator::CompleteUpload(const v1::UploadHeader& header, Upload upload, OnVerdict verdict) {
  if (header.initial()) {
    upload.contribution.reset();  // seeding_ owns it, and releases it as soon as it is decoded
    return CompleteSeed(header, verdict);
  }
  core::MutexLock lock(mutex_);
  const core::SiteId& site = header.context().site();
  core::Admitted admitted = AdmittedOf(header);
  const absl::Status status = rounds_->CheckContribution(site, header.context().session(), header.fragment(), admitted);
  if (!status.ok()) {
    // A repeat of an admitted contribution is also answered only when that is durable: it may still be on its way to
    // the journal.
    if (absl::IsInvalidArgument(status)) RefuseValues(header, admitted, std::string(status.message()));
    outbox_.Then([verdict, answer = VerdictOf(status)] { verdict(answer); });
    if (upload.contribution != nullptr && !absl::IsAlreadyExists(status)) Forget(header.fragment(), site, upload);
    return Publish();
  }
  const OpenUploads::Arriving* const arriving = open_.Find(header.fragment(), site);
  if (upload.contribution == nullptr || arriving == nullptr || arriving->contribution != upload.contribution) {
    outbox_.Then([verdict] { verdict(Refused("the site has begun this contribution anew")); });
    return Publish();
  }
  admitted.norm = upload.contribution->Norm();
  const int64_t parameters = model_.fact().map().fragment(header.fragment()).parameters;
  if (const auto why = rounds_->WhyTooLong(site, header.fragment(), admitted, parameters)) {
    RefuseValues(header, admitted, *why);
    outbox_.Then([verdict, why = *why] { verdict(Refused(why)); });
    Forget(header.fragment(), site, upload);
    return Publish();
  }
  ContributionRecord record{.fragment = header.fragment(), .site = site, .admitted = admitted};
  for (const std::string& chunk : upload.contribution->chunks()) {
    record.chunks.push_back(ChunkPtr(upload.contribution, &chunk));  // shares the contribution's life
  }
  outbox_.Store(std::move(record));
  const int64_t now_ms = options_.clock->NowMs();
  const int64_t begun_ms = arriving->begun_ms;
  figures_.Arrived(header.fragment(), NextVersion(header.fragment()), site, begun_ms);
  members_[site].norm = {.fragment = header.fragment(), .base = admitted.base, .norm = admitted.norm};
  Perform(rounds_->Admit(site, header.fragment(), admitted, now_ms - begun_ms, now_ms, parameters));
  outbox_.Then([verdict] { verdict(Admitted()); });
  Publish();
}

void Coordinator::RefuseValues(const v1::UploadHeader& header, const core::Admitted& admitted, const std::string& why) {
  const core::SiteId& site = header.context().site();
  members_[site].norm = {.fragment = header.fragment(), .base = admitted.base, .norm = admitted.norm, .refused = why};
  outbox_.StateChanged();
  spdlog::warn("site {}: its contribution to fragment {} is refused: {}", site, header.fragment(), why);
  outbox_.Note("refuse", site, header.fragment(), why);
  Perform(rounds_->RefuseValues(site, header.fragment(), admitted, why, options_.clock->NowMs()));
  const core::SiteRecord& record = rounds_->state().sites.at(site);
  if (!record.quarantined) return;
  spdlog::error("site {}: {}", site, record.reason);
  outbox_.Note("quarantine", site, -1, record.reason);
}

// Forgets a refused contribution: its site may send another one of the same base.
void Coordinator::Forget(core::FragmentId fragment, const core::SiteId& site, const Upload& upload) {
  const OpenUploads::Arriving* const arriving = open_.Find(fragment, site);
  const bool admitted = rounds_->state().contributions[fragment].contains(site);
  if (!admitted && arriving != nullptr && arriving->contribution == upload.contribution) {
    open_.Erase(fragment, site);
    figures_.Forget(fragment, site);
  }
}

// The verdict only says that the fragment has arrived. It becomes durable with the others: a coordinator restarted
// before that asks again.
void Coordinator::CompleteSeed(const v1::UploadHeader& header, const OnVerdict& verdict) {
  std::vector<std::shared_ptr<Contribution>> seeds;
  core::FragmentMap map;
  absl::Status current;
  {
    core::MutexLock lock(mutex_);
    current = model_.fact().CheckGeneration(GenerationOf(header));
    if (current.ok() && !model_.fact().stays() && seeding_.IsWhole(model_.fact().map(), options_.shard)) {
      model_.fact().Save();
      map = model_.fact().map();
      seeds = seeding_.Take();
    }
  }
  if (!current.ok()) return verdict(current);
  if (seeds.empty()) return verdict(Admitted());
  std::vector<StartingFragment> fragments = DecodeSeed(map, std::move(seeds), options_.config.codec.feedback_down > 0);
  const absl::Status saved = SaveSeed(map, options_.shard, fragments, *journal_);
  if (!saved.ok()) return Fail(saved);
  std::shared_ptr<Parameters> parameters;
  {
    core::MutexLock lock(mutex_);
    parameters = model_.parameters();
    model_.fact().Seeded();
    Perform(rounds_->Seeded());
    outbox_.StateChanged();
    const int64_t values = core::NumParameters(map.manifest());
    outbox_.Note("seed", model_.fact().seeder(), -1, absl::StrCat(values, " initial parameters"));
    Publish();
    spdlog::info("the initial parameters are here: {} values", values);
    if (follower_) {
      if (const auto update = follower_->TakeLate()) Take(*update);
    }
  }
  parameters->Set(std::move(fragments));  // wakes downloads, which call us: not under the lock
  verdict(Admitted());
}

absl::StatusOr<RunModel::Download> Coordinator::BeginDownload(const v1::DownloadRequest& request, Waiter waiter) {
  RETURN_IF_ERROR(CheckContext(request.context()));
  RETURN_IF_ERROR(CheckOwned(request.fragment()));
  core::MutexLock lock(mutex_);
  return model_.BeginDownload(request, std::move(waiter));
}

}  // namespace causeway::server
