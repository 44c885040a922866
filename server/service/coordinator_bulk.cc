// The part of Coordinator that bulk streams call.
#include <spdlog/spdlog.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "server/service/coordinator.h"

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

// A repeat of what was admitted is answered like the first; anything else that fails is a refusal.
v1::Verdict VerdictOf(const absl::Status& status) {
  return absl::IsAlreadyExists(status) ? Admitted() : Refused(status.message());
}

}  // namespace

std::shared_ptr<SiteMeters> Coordinator::Meters(const core::SiteId& site) {
  core::MutexLock lock(mutex_);
  const auto member = members_.find(site);
  // A caller that never joined is answered, not counted.
  return member == members_.end() ? std::make_shared<SiteMeters>() : member->second.meters;
}

absl::StatusOr<Coordinator::Upload> Coordinator::BeginUpload(const v1::UploadHeader& header) {
  RETURN_IF_ERROR(CheckContext(header.context()));
  core::MutexLock lock(mutex_);
  if (header.initial()) return BeginSeed(header);
  const core::SiteId& site = header.context().site();
  const absl::Status status =
      rounds_->CheckContribution(site, header.context().session(), header.fragment(), header.base_version());
  if (!status.ok()) return Upload{.verdict = VerdictOf(status)};
  std::shared_ptr<Contribution>& contribution = open_[header.fragment()][site];
  if (contribution == nullptr) {
    contribution = std::make_shared<Contribution>(
        codecs::PlanChunks(map_->fragment(header.fragment()), codecs::UpLeg(options_.config)));
  }
  return Upload{.contribution = contribution, .meters = members_[site].meters};
}

absl::StatusOr<Coordinator::Upload> Coordinator::BeginSeed(const v1::UploadHeader& header) {
  const core::SiteId& site = header.context().site();
  const auto member = members_.find(site);
  if (rounds_->state().seeded) return Upload{.verdict = Admitted()};  // a repeat
  if (member == members_.end() || member->second.session != header.context().session() || site != seeder_ ||
      seeds_.empty() || header.fragment() < 0 || header.fragment() >= static_cast<int>(seeds_.size())) {
    return Upload{.verdict = Refused("the coordinator did not ask this site for that fragment")};
  }
  std::shared_ptr<Contribution>& seed = seeds_[header.fragment()];
  if (seed == nullptr) {
    seed = std::make_shared<Contribution>(codecs::PlanChunks(map_->fragment(header.fragment()), codecs::Unencoded()));
  }
  return Upload{.contribution = seed, .meters = member->second.meters};
}

v1::Verdict Coordinator::CompleteUpload(const v1::UploadHeader& header,
                                        const std::shared_ptr<Contribution>& contribution) {
  if (header.initial()) return CompleteSeed();
  core::MutexLock lock(mutex_);
  const core::SiteId& site = header.context().site();
  const absl::Status status =
      rounds_->CheckContribution(site, header.context().session(), header.fragment(), header.base_version());
  if (!status.ok()) return VerdictOf(status);
  if (open_[header.fragment()][site] != contribution) return Refused("the site has begun this contribution anew");
  Perform(rounds_->Admit(site, header.fragment(), header.base_version()));
  return Admitted();
}

v1::Verdict Coordinator::CompleteSeed() {
  std::vector<SavedFragment> fragments;
  {
    core::MutexLock lock(mutex_);
    const bool whole = !rounds_->state().seeded && std::all_of(seeds_.begin(), seeds_.end(), [](const auto& seed) {
      return seed != nullptr && seed->complete();
    });
    if (!whole) return Admitted();
    for (int p = 0; p < map_->num_fragments(); ++p) {
      auto state = std::make_shared<core::FragmentState>();
      const int64_t padded = map_->fragment(p).padded_values();
      state->anchor.resize(padded);
      state->momentum.resize(padded);
      if (options_.config.codec.feedback_down > 0) state->residual.resize(padded);
      for (const codecs::ChunkView& view : seeds_[p]->Views()) {
        view.Decode(view.span().first_unit,
                    std::span(state->anchor).subspan(view.span().first_value(), view.span().values));
      }
      fragments.push_back({.state = std::move(state)});
    }
    seeds_.clear();
    Perform(rounds_->Seeded());
    spdlog::info("the initial parameters are here: {} values", core::NumParameters(map_->manifest()));
  }
  parameters_->Set(std::move(fragments));  // wakes downloads, which ask us: not under the lock
  return Admitted();
}

absl::StatusOr<std::shared_ptr<ChunkSource>> Coordinator::BeginDownload(const v1::DownloadRequest& request,
                                                                        std::function<void()> wake) {
  RETURN_IF_ERROR(CheckContext(request.context()));
  core::MutexLock lock(mutex_);
  if (!map_ || request.fragment() < 0 || request.fragment() >= map_->num_fragments()) {
    return absl::InvalidArgumentError(absl::StrCat("expected a fragment of the run, got ", request.fragment()));
  }
  if (request.source_case() == v1::DownloadRequest::kUpdateBase) {
    return parameters_->UpdateSource(request.fragment(), request.update_base());
  }
  return parameters_->AnchorSource(request.fragment(), request.anchor_version(), request.held_digest(),
                                   std::move(wake));
}

}  // namespace causeway::server
