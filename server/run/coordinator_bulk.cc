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
  const Member* const member = run_.members.Find(site);
  // A caller that never joined is answered, not counted.
  return member == nullptr ? std::make_shared<SiteMeters>() : member->meters;
}

absl::StatusOr<Upload> Coordinator::BeginUpload(const v1::UploadHeader& header) {
  RETURN_IF_ERROR(CheckContext(header.context()));
  RETURN_IF_ERROR(CheckOwned(header.fragment()));
  core::MutexLock lock(mutex_);
  RETURN_IF_ERROR(run_.model.fact().CheckGeneration(GenerationOf(header)));
  if (header.initial()) return BeginSeed(header);
  RunParts parts = run_.Parts();
  return run_.uploads.Begin(header, parts);
}

absl::StatusOr<Upload> Coordinator::BeginSeed(const v1::UploadHeader& header) {
  const core::SiteId& site = header.context().site();
  const Member* const member = run_.members.Find(site);
  if (run_.model.fact().stays()) return Upload{};  // a repeat
  if (run_.follower() != nullptr && site != run_.model.fact().seeder()) {
    return absl::UnavailableError("shard 0 has not told this shard that it asked this site");
  }
  if (member == nullptr || member->session != header.context().session() || site != run_.model.fact().seeder() ||
      !run_.seeding.expects(header.fragment())) {
    return absl::FailedPreconditionError("the coordinator did not ask this site for that fragment");
  }
  return Upload{.contribution = run_.seeding.Part(run_.model.fact().map().fragment(header.fragment())),
                .meters = member->meters};
}

void Coordinator::CompleteUpload(const v1::UploadHeader& header, Upload upload, OnVerdict verdict) {
  if (header.initial()) {
    upload.contribution.reset();  // seeding_ owns it, and releases it as soon as it is decoded
    return CompleteSeed(header, verdict);
  }
  core::MutexLock lock(mutex_);
  RunParts parts = run_.Parts();
  run_.uploads.Complete(header, upload, verdict, parts,
                        [this](const Actions& actions)
                            ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { run_.Perform(actions); });
  run_.Publish();
}

// The verdict only says that the fragment has arrived. It becomes durable with the others: a coordinator restarted
// before that asks again.
void Coordinator::CompleteSeed(const v1::UploadHeader& header, const OnVerdict& verdict) {
  std::vector<std::shared_ptr<Contribution>> seeds;
  core::FragmentMap map;
  absl::Status current;
  {
    core::MutexLock lock(mutex_);
    current = run_.model.fact().CheckGeneration(GenerationOf(header));
    if (current.ok() && !run_.model.fact().stays() && run_.seeding.IsWhole(run_.model.fact().map(), options_.shard)) {
      run_.model.fact().Save();
      map = run_.model.fact().map();
      seeds = run_.seeding.Take();
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
    parameters = run_.model.parameters();
    run_.model.fact().Seeded();
    run_.Perform(run_.rounds->Seeded());
    run_.outbox.StateChanged();
    const int64_t values = core::NumParameters(map.manifest());
    run_.outbox.Note("seed", run_.model.fact().seeder(), -1, absl::StrCat(values, " initial parameters"));
    run_.Publish();
    spdlog::info("the initial parameters are here: {} values", values);
    if (run_.follower() != nullptr) {
      if (const auto update = run_.follower()->TakeLate()) Take(*update);
    }
  }
  parameters->Set(std::move(fragments));  // wakes downloads, which call us: not under the lock
  verdict(AdmittedVerdict());
}

absl::StatusOr<RunModel::Download> Coordinator::BeginDownload(const v1::DownloadRequest& request, Waiter waiter) {
  RETURN_IF_ERROR(CheckContext(request.context()));
  RETURN_IF_ERROR(CheckOwned(request.fragment()));
  core::MutexLock lock(mutex_);
  return run_.model.BeginDownload(request, std::move(waiter));
}

}  // namespace causeway::server
