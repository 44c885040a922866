// The part of Coordinator that serves bulk streams.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "server/run/coordinator.h"

namespace causeway::server {

std::shared_ptr<SiteMeters> Coordinator::Meters(const core::SiteId& site) {
  core::MutexLock lock(mutex_);
  const Member* const member = members_.Find(site);
  // A caller that never joined is answered, not counted.
  return member == nullptr ? std::make_shared<SiteMeters>() : member->meters;
}

absl::StatusOr<Upload> Coordinator::BeginUpload(const v1::UploadHeader& header) {
  RETURN_IF_ERROR(CheckContext(header.context()));
  RETURN_IF_ERROR(CheckOwned(header.fragment()));
  core::MutexLock lock(mutex_);
  RETURN_IF_ERROR(model_.fact().CheckGeneration(GenerationOf(header)));
  if (header.initial()) return BeginSeed(header);
  RunParts parts = Parts();
  return open_.Begin(header, parts);
}

absl::StatusOr<Upload> Coordinator::BeginSeed(const v1::UploadHeader& header) {
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
  RunParts parts = Parts();
  open_.Complete(header, upload, verdict, parts,
                 [this](const Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { Perform(actions); });
  Publish();
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
  if (seeds.empty()) return verdict(AdmittedVerdict());
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
  verdict(AdmittedVerdict());
}

absl::StatusOr<RunModel::Download> Coordinator::BeginDownload(const v1::DownloadRequest& request, Waiter waiter) {
  RETURN_IF_ERROR(CheckContext(request.context()));
  RETURN_IF_ERROR(CheckOwned(request.fragment()));
  core::MutexLock lock(mutex_);
  return model_.BeginDownload(request, std::move(waiter));
}

}  // namespace causeway::server
