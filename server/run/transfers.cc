#include "server/run/transfers.h"

#include <spdlog/spdlog.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "server/run/run_exchange.h"

namespace causeway::server {

absl::Status Transfers::Check(const v1::Context& context, core::FragmentId fragment) {
  if (absl::Status status = exchange_.CheckContext(context); !status.ok()) {
    const int64_t now_ms = options_.clock->NowMs();
    exchange_.With([&](Run& run) { run.admission.NoteElsewhere(context, now_ms, run.ready); });
    return status;
  }
  const core::Shard& shard = options_.shard;
  if (fragment < 0 || shard.Owns(fragment)) return absl::OkStatus();  // the run's fragments are checked elsewhere
  return absl::InvalidArgumentError(
      absl::StrCat("fragment ", fragment, " is of shard ", shard.OwnerOf(fragment), ", this is ", shard.Text()));
}

std::shared_ptr<SiteMeters> Transfers::Meters(const core::SiteId& site) {
  return exchange_.With([&](Run& run) {
    const Member* const member = run.members.Find(site);
    // A caller that never joined is answered, not counted.
    return member == nullptr ? std::make_shared<SiteMeters>() : member->meters;
  });
}

absl::StatusOr<Upload> Transfers::BeginUpload(const v1::UploadHeader& header) {
  RETURN_IF_ERROR(Check(header.context(), header.fragment()));
  return exchange_.With([&](Run& run) -> absl::StatusOr<Upload> {
    RETURN_IF_ERROR(run.model.fact().CheckGeneration(GenerationOf(header)));
    if (header.initial()) return BeginSeed(header, run);
    RunParts parts = run.Parts();
    return run.uploads.Begin(header, parts);
  });
}

absl::StatusOr<Upload> Transfers::BeginSeed(const v1::UploadHeader& header, Run& run) {
  const core::SiteId& site = header.context().site();
  const Member* const member = run.members.Find(site);
  if (run.model.fact().stays()) return Upload{};  // a repeat
  if (run.follower() != nullptr && site != run.model.fact().seeder()) {
    return absl::UnavailableError("shard 0 has not told this shard that it asked this site");
  }
  if (member == nullptr || member->session != header.context().session() || site != run.model.fact().seeder() ||
      !run.seeding.expects(header.fragment())) {
    return absl::FailedPreconditionError("the coordinator did not ask this site for that fragment");
  }
  return Upload{.contribution = run.seeding.Part(run.model.fact().map().fragment(header.fragment())),
                .meters = member->meters};
}

void Transfers::CompleteUpload(const v1::UploadHeader& header, Upload upload, const std::shared_ptr<UploadPeer>& peer) {
  if (header.initial()) {
    upload.contribution.reset();  // the seeding owns it, and releases it as soon as it is decoded
    return CompleteSeed(header, peer);
  }
  exchange_.With([&](Run& run) {
    RunParts parts = run.Parts();
    run.uploads.Complete(header, upload, peer, parts, [&run](const Actions& actions) { run.Perform(actions); });
    run.Publish();
  });
}

void Transfers::RefuseUpload(const v1::UploadHeader& header, const Upload& upload, const std::string& why,
                             const std::shared_ptr<UploadPeer>& peer) {
  exchange_.With([&](Run& run) {
    RunParts parts = run.Parts();
    run.uploads.Refuse(header, upload, why, peer, parts, [&run](const Actions& actions) { run.Perform(actions); });
    run.Publish();
  });
}

// The verdict only says that the fragment has arrived. It becomes durable with the others: a coordinator restarted
// before that asks again.
void Transfers::CompleteSeed(const v1::UploadHeader& header, const std::shared_ptr<UploadPeer>& peer) {
  std::vector<std::shared_ptr<Contribution>> parts;
  core::FragmentMap map;
  const absl::Status current = exchange_.With([&](Run& run) {
    ModelFact& model = run.model.fact();
    absl::Status status = model.CheckGeneration(GenerationOf(header));
    if (status.ok() && !model.stays() && run.seeding.IsWhole(model.map(), options_.shard)) {
      model.Save();
      map = model.map();
      parts = run.seeding.Take();
    }
    return status;
  });
  if (!current.ok()) return peer->Answer(current);
  if (parts.empty()) return peer->Answer(AdmittedVerdict());
  std::vector<StartingFragment> fragments = DecodeSeed(map, std::move(parts), options_.config.codec.feedback_down > 0);
  const absl::Status saved = SaveSeed(map, options_.shard, fragments, journal_);
  if (!saved.ok()) return exchange_.Fail(saved);
  std::shared_ptr<Parameters> parameters;
  const absl::Status followed = exchange_.With([&](Run& run) {
    parameters = run.model.parameters();
    run.model.fact().Seeded();
    run.Apply(SeedComplete{}, options_.clock->NowMs());
    run.ready.state_changed = true;
    const int64_t values = core::NumParameters(map.manifest());
    run.ready.Note("seed", run.model.fact().seeder(), -1, absl::StrCat(values, " initial parameters"));
    run.Publish();
    spdlog::info("the initial parameters are here: {} values", values);
    const auto late = run.follower() == nullptr ? std::nullopt : run.follower()->TakeLate();
    return late ? run.Follow(*late, options_.clock->NowMs()) : absl::OkStatus();
  });
  if (!followed.ok()) exchange_.Fail(followed);
  parameters->Set(std::move(fragments));  // wakes downloads, which call us: not under the lock
  peer->Answer(AdmittedVerdict());
}

absl::StatusOr<Transfers::Download> Transfers::BeginDownload(const v1::DownloadRequest& request, Waiter waiter) {
  RETURN_IF_ERROR(Check(request.context(), request.fragment()));
  return exchange_.With([&](Run& run) { return run.model.BeginDownload(request, std::move(waiter)); });
}

void Transfers::Taken(const v1::DownloadRequest& request, int64_t begun_ms) {
  if (request.source_case() != v1::DownloadRequest::kUpdateBase) return;  // an anchor belongs to no round
  const auto is_known = [&](Run& run) { return run.members.Find(request.context().site()) != nullptr; };
  if (exchange_.With(is_known)) figures_.Taken(request, begun_ms);
}

}  // namespace causeway::server
