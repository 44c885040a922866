#include "server/run/open_uploads.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "server/rounds/heard.h"

namespace causeway::server {
namespace {

v1::Verdict Refused(absl::string_view reason) {
  v1::Verdict verdict;
  verdict.set_reason(std::string(reason));
  return verdict;
}

core::Admitted AdmittedOf(const v1::UploadHeader& header) {
  return {.base = header.base_version(), .tokens = header.tokens(), .steps = header.steps()};
}

// Where it says far more than is believed. Less is no lie: reports come late, and a fast site is believed late.
std::string WhyDoubted(const core::Admitted& says, const core::Admitted& believed) {
  const auto far = [](int64_t more, int64_t less) {
    return static_cast<double>(more) > kFasterThanOthers * static_cast<double>(less);
  };
  if (!far(says.steps, believed.steps) && !far(says.tokens, believed.tokens)) return "";
  return absl::StrCat("says ", says.steps, " steps and ", says.tokens, " tokens, counts as ", believed.steps, " and ",
                      believed.tokens, ": as far as its reports go, and time has passed");
}

// A repeat of an admitted contribution is answered like the first; any other failure is a refusal.
v1::Verdict VerdictOf(const absl::Status& status) {
  return absl::IsAlreadyExists(status) ? AdmittedVerdict() : Refused(status.message());
}

// Chunks of an earlier stay were made with another residual: they must not be mixed with new ones of the same base.
absl::Status CheckStay(const core::RoundState& state, const core::SiteId& site, int64_t stay) {
  const auto record = state.sites.find(site);
  if (stay == 0 || record == state.sites.end() || record->second.stay == stay) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("expected stay ", record->second.stay, " of the site, got ", stay, "; retry"));
}

}  // namespace

v1::Verdict AdmittedVerdict() {
  v1::Verdict verdict;
  verdict.set_admitted(true);
  return verdict;
}

absl::StatusOr<Upload> OpenUploads::Begin(const v1::UploadHeader& header, RunParts& run) {
  const core::SiteId& site = header.context().site();
  const core::FragmentId fragment = header.fragment();
  RETURN_IF_ERROR(CheckStay(run.rules.state(), site, header.context().stay()));
  const absl::Status status =
      run.rules.CheckContribution(site, header.context().session(), fragment, AdmittedOf(header));
  if (!status.ok()) return Upload{};
  Arriving& arriving = open_[fragment][site];
  if (arriving.contribution == nullptr || arriving.base != header.base_version()) {
    arriving = {std::make_shared<Contribution>(
                    codecs::PlanChunks(model_.fact().map().fragment(fragment), codecs_.UpLeg(fragment))),
                header.base_version(), clock_.NowMs()};
    figures_.Begun(fragment, run.rules.state().versions[fragment] + 1, site);
  }
  return Upload{.contribution = arriving.contribution, .meters = run.members[site].meters};
}

void OpenUploads::Complete(const v1::UploadHeader& header, const Upload& upload,
                           const std::shared_ptr<UploadPeer>& peer, RunParts& run, Perform perform) {
  const core::SiteId& site = header.context().site();
  const auto answer = [&](v1::Verdict verdict) {
    run.ready.effects.emplace_back(effect::Answer{peer, site, header.fragment(), std::move(verdict)});
  };
  core::Admitted admitted = AdmittedOf(header);
  const absl::Status status =
      run.rules.CheckContribution(site, header.context().session(), header.fragment(), admitted);
  if (!status.ok()) {
    // A repeat of an admitted contribution is also answered only when that is durable: it may still be on its way to
    // the journal.
    if (absl::IsInvalidArgument(status)) {
      Refuse(header, {.contribution = admitted, .why = std::string(status.message()), .too_long = false}, run, perform);
    }
    answer(VerdictOf(status));
    if (upload.contribution != nullptr && !absl::IsAlreadyExists(status))
      Forget(header.fragment(), site, upload, run.rules.state());
    return;
  }
  const OpenUploads::Arriving* const arriving = Find(header.fragment(), site);
  if (upload.contribution == nullptr || arriving == nullptr || arriving->contribution != upload.contribution) {
    answer(Refused("the site has begun this contribution anew"));
    return;
  }
  const core::Admitted says = admitted;
  admitted = run.rules.Believed(site, header.fragment(), says);
  admitted.norm = upload.contribution->Norm();
  const int64_t parameters = model_.fact().map().fragment(header.fragment()).parameters;
  if (const auto why = run.rules.WhyTooLong(site, header.fragment(), admitted, parameters)) {
    Refuse(header, {.contribution = admitted, .why = *why}, run, perform);
    answer(Refused(*why));
    Forget(header.fragment(), site, upload, run.rules.state());
    return;
  }
  ContributionRecord record{.fragment = header.fragment(), .site = site, .admitted = admitted};
  for (const std::string& chunk : upload.contribution->chunks()) {
    record.chunks.push_back(ChunkPtr(upload.contribution, &chunk));  // shares the contribution's life
  }
  run.ready.entry.admitted.push_back(std::move(record));
  const int64_t now_ms = clock_.NowMs();
  const int64_t begun_ms = arriving->begun_ms;
  figures_.Arrived(header.fragment(), run.rules.state().versions[header.fragment()] + 1, site, begun_ms);
  run.members[site].norm = {.fragment = header.fragment(),
                            .base = admitted.base,
                            .norm = admitted.norm,
                            .doubted = WhyDoubted(says, admitted)};
  if (run.rules.state().sites.at(site).quarantined) {
    run.ready.Note("release", site, -1, "its contribution is of the usual length again");
    run.ready.state_changed = true;
  }
  const ContributionAdmitted event{site, header.fragment(), admitted, now_ms - begun_ms, parameters};
  perform(run.rules.Handle(event, now_ms).actions);
  answer(AdmittedVerdict());
}

void OpenUploads::Refuse(const v1::UploadHeader& header, const Upload& upload, const std::string& why,
                         const std::shared_ptr<UploadPeer>& peer, RunParts& run, Perform perform) {
  const core::SiteId& site = header.context().site();
  const core::Admitted admitted = AdmittedOf(header);
  if (run.rules.CheckContribution(site, header.context().session(), header.fragment(), admitted).ok()) {
    Refuse(header, {.contribution = admitted, .why = why, .too_long = false}, run, perform);
  }
  run.ready.effects.emplace_back(effect::Answer{peer, site, header.fragment(), Refused(why)});
  Forget(header.fragment(), site, upload, run.rules.state());
}

void OpenUploads::Refuse(const v1::UploadHeader& header, ContributionRefused refused, RunParts& run, Perform perform) {
  const core::SiteId& site = refused.site = header.context().site();
  refused.fragment = header.fragment();
  run.members[site].norm = {.fragment = refused.fragment,
                            .base = refused.contribution.base,
                            .norm = refused.contribution.norm,
                            .refused = refused.why};
  run.ready.state_changed = true;
  const bool was_quarantined = run.rules.state().sites.at(site).quarantined;  // it is known for what it sends
  if (!was_quarantined) {
    spdlog::warn("site {}: its contribution to fragment {} is refused: {}", site, refused.fragment, refused.why);
    run.ready.Note("refuse", site, refused.fragment, refused.why);
  }
  perform(run.rules.Handle(refused, clock_.NowMs()).actions);
  const core::SiteRecord& record = run.rules.state().sites.at(site);
  if (!record.quarantined || was_quarantined) return;
  spdlog::error("site {}: {}", site, record.reason);
  run.ready.Note("quarantine", site, -1, record.reason);
}

// Forgets a refused contribution: its site may send another one of the same base.
void OpenUploads::Forget(core::FragmentId fragment, const core::SiteId& site, const Upload& upload,
                         const core::RoundState& state) {
  const Arriving* const arriving = Find(fragment, site);
  const bool admitted = state.contributions[fragment].contains(site);
  if (!admitted && arriving != nullptr && arriving->contribution == upload.contribution) {
    open_[fragment].erase(site);
    figures_.Forget(fragment, site);
  }
}

void OpenUploads::Forget(const core::SiteId& site, const core::RoundState& state) {
  for (core::FragmentId p = 0; p < num_fragments(); ++p) {
    if (state.contributions[p].contains(site)) continue;
    open_[p].erase(site);
    figures_.Forget(p, site);
  }
}

const OpenUploads::Arriving* OpenUploads::Find(core::FragmentId fragment, const core::SiteId& site) const {
  const auto found = open_[fragment].find(site);
  return found == open_[fragment].end() ? nullptr : &found->second;
}

absl::Status OpenUploads::Restore(core::FragmentId fragment, const std::vector<StoredContribution>& stored,
                                  const core::RoundState& state, int64_t now_ms) {
  ASSIGN_OR_RETURN(const Contributions open,
                   model_.ReadContributions(model_.fact().map().fragment(fragment), codecs_.UpLeg(fragment), stored));
  for (size_t i = 0; i < open.size(); ++i) {
    open_[fragment][stored[i].site] = {open[i], stored[i].admitted.base, now_ms};
    figures_.Restored(fragment, state.versions[fragment] + 1, stored[i].site);
  }
  return absl::OkStatus();
}

std::shared_ptr<Contribution> OpenUploads::Take(core::FragmentId fragment, const core::SiteId& site) {
  std::shared_ptr<Contribution> contribution = open_[fragment].at(site).contribution;
  open_[fragment].erase(site);
  return contribution;
}

}  // namespace causeway::server
