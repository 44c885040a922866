#include "server/run/uploads.h"

#include <malloc.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <span>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "server/rounds/heard.h"
#include "server/run/run_parts.h"

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

absl::Status CheckContribution(const RunParts& run, const v1::UploadHeader& header) {
  return run.rules->CheckContribution(header.context().site(), header.context().session(), header.fragment(),
                                      AdmittedOf(header));
}

// Whether a transfer is meant for this coordinator; another one's site is noted.
absl::Status CheckTransfer(RunParts& run, const v1::Context& context, core::FragmentId fragment, int64_t now_ms) {
  if (absl::Status status = run.admission.CheckContext(context); !status.ok()) {
    run.admission.NoteElsewhere(context, now_ms, run.ready);
    return status;
  }
  const core::Shard& shard = run.options.shard;
  if (fragment < 0 || shard.Owns(fragment)) return absl::OkStatus();  // the run's fragments are checked elsewhere
  return absl::InvalidArgumentError(
      absl::StrCat("fragment ", fragment, " is of shard ", shard.OwnerOf(fragment), ", this is ", shard.Text()));
}

absl::StatusOr<Upload> BeginSeed(RunParts& run, const v1::UploadHeader& header) {
  const core::SiteId& site = header.context().site();
  const Member* const member = run.members.Find(site);
  const ModelFact& model = run.model.fact();
  if (model.stays()) return Upload{};  // a repeat
  if (run.follower() != nullptr && site != model.seeder()) {
    return absl::UnavailableError("shard 0 has not told this shard that it asked this site");
  }
  if (member == nullptr || member->session != header.context().session() || site != model.seeder() ||
      !run.uploads.seeding.expects(header.fragment())) {
    return absl::FailedPreconditionError("the coordinator did not ask this site for that fragment");
  }
  return Upload{.contribution = run.uploads.seeding.Part(model.map().fragment(header.fragment())),
                .meters = member->meters};
}

// The verdict only says that the fragment has arrived. It becomes durable with the others: a coordinator restarted
// before that asks again.
absl::Status CompleteSeed(RunParts& run, const v1::UploadHeader& header) {
  ModelFact& model = run.model.fact();
  RETURN_IF_ERROR(model.CheckGeneration(GenerationOf(header)));
  if (model.stays() || !run.uploads.seeding.IsWhole(model.map(), run.options.shard)) return absl::OkStatus();
  model.Save();
  run.ready.seed = {model.map(), run.uploads.seeding.Take()};
  return absl::OkStatus();
}

// Forgets a refused contribution: its site may send another one of the same base.
void Forget(RunParts& run, const v1::UploadHeader& header, const Upload& upload) {
  const core::SiteId& site = header.context().site();
  const OpenUploads::Arriving* const arriving = run.uploads.Find(header.fragment(), site);
  const bool admitted = run.rules->state().contributions[header.fragment()].contains(site);
  if (admitted || arriving == nullptr || arriving->contribution != upload.contribution) return;
  run.uploads.Erase(header.fragment(), site);
  run.figures.Forget(header.fragment(), site);
}

void Refuse(RunParts& run, const v1::UploadHeader& header, ContributionRefused refused, int64_t now_ms) {
  const core::SiteId& site = refused.site = header.context().site();
  refused.fragment = header.fragment();
  run.members[site].norm = {.fragment = refused.fragment,
                            .base = refused.contribution.base,
                            .norm = refused.contribution.norm,
                            .refused = refused.why};
  run.ready.state_changed = true;
  const bool was_quarantined = run.rules->state().sites.at(site).quarantined;  // it is known for what it sends
  if (!was_quarantined) {
    spdlog::warn("site {}: its contribution to fragment {} is refused: {}", site, refused.fragment, refused.why);
    run.ready.Note("refuse", site, refused.fragment, refused.why);
  }
  Apply(run, refused, now_ms);
  const core::SiteRecord& record = run.rules->state().sites.at(site);
  if (!record.quarantined || was_quarantined) return;
  spdlog::error("site {}: {}", site, record.reason);
  run.ready.Note("quarantine", site, -1, record.reason);
}

// The verdict on an upload of which every chunk is here.
v1::Verdict Decide(RunParts& run, const v1::UploadHeader& header, const Upload& upload, int64_t now_ms) {
  const core::SiteId& site = header.context().site();
  const core::FragmentId fragment = header.fragment();
  const core::Admitted says = AdmittedOf(header);
  if (const absl::Status status = CheckContribution(run, header); !status.ok()) {
    // A repeat of an admitted contribution is also answered only when that is durable: it may still be on its way to
    // the journal.
    if (absl::IsInvalidArgument(status)) {
      Refuse(run, header, {.contribution = says, .why = std::string(status.message()), .too_long = false}, now_ms);
    }
    if (upload.contribution != nullptr && !absl::IsAlreadyExists(status)) Forget(run, header, upload);
    return VerdictOf(status);
  }
  const OpenUploads::Arriving* const arriving = run.uploads.Find(fragment, site);
  if (upload.contribution == nullptr || arriving == nullptr || arriving->contribution != upload.contribution) {
    return Refused("the site has begun this contribution anew");
  }
  core::Admitted admitted = run.rules->Believed(site, fragment, says);
  admitted.norm = upload.contribution->Norm();
  const int64_t parameters = run.model.fact().map().fragment(fragment).parameters;
  if (const auto why = run.rules->WhyTooLong(site, fragment, admitted, parameters)) {
    Refuse(run, header, {.contribution = admitted, .why = *why}, now_ms);
    Forget(run, header, upload);
    return Refused(*why);
  }
  ContributionRecord record{.fragment = fragment, .site = site, .admitted = admitted};
  for (const std::string& chunk : upload.contribution->chunks()) {
    record.chunks.push_back(ChunkPtr(upload.contribution, &chunk));  // shares the contribution's life
  }
  run.ready.entry.admitted.push_back(std::move(record));
  const int64_t begun_ms = arriving->begun_ms;
  run.figures.Arrived(fragment, run.rules->state().versions[fragment] + 1, site, begun_ms);
  run.members[site].norm = {
      .fragment = fragment, .base = admitted.base, .norm = admitted.norm, .doubted = WhyDoubted(says, admitted)};
  if (run.rules->state().sites.at(site).quarantined) {
    run.ready.Note("release", site, -1, "its contribution is of the usual length again");
    run.ready.state_changed = true;
  }
  Apply(run, ContributionAdmitted{site, fragment, admitted, now_ms - begun_ms, parameters}, now_ms);
  return AdmittedVerdict();
}

}  // namespace

v1::Verdict AdmittedVerdict() {
  v1::Verdict verdict;
  verdict.set_admitted(true);
  return verdict;
}

absl::Status Handle(RunParts& run, const input::BeginUpload& input, int64_t now_ms) {
  const v1::UploadHeader& header = input.header;
  const core::SiteId& site = header.context().site();
  const core::FragmentId fragment = header.fragment();
  RETURN_IF_ERROR(CheckTransfer(run, header.context(), fragment, now_ms));
  RETURN_IF_ERROR(run.model.fact().CheckGeneration(GenerationOf(header)));
  if (header.initial()) {
    ASSIGN_OR_RETURN(run.ready.upload, BeginSeed(run, header));
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(CheckStay(run.rules->state(), site, header.context().stay()));
  if (!CheckContribution(run, header).ok()) return absl::OkStatus();  // the verdict needs no chunk
  OpenUploads::Arriving& arriving = run.uploads.At(fragment, site);
  if (arriving.contribution == nullptr || arriving.base != header.base_version()) {
    arriving = {std::make_shared<Contribution>(
                    codecs::PlanChunks(run.model.fact().map().fragment(fragment), run.codecs.UpLeg(fragment))),
                header.base_version(), now_ms};
    run.figures.Begun(fragment, run.rules->state().versions[fragment] + 1, site);
  }
  run.ready.upload = {.contribution = arriving.contribution, .meters = run.members[site].meters};
  return absl::OkStatus();
}

absl::Status Handle(RunParts& run, const input::BeginDownload& input, int64_t now_ms) {
  const v1::Context& context = input.request.context();
  RETURN_IF_ERROR(CheckTransfer(run, context, input.request.fragment(), now_ms));
  const Member* const member = run.members.Find(context.site());
  // A caller that never joined is answered, not counted.
  run.ready.download.meters = member == nullptr ? std::make_shared<SiteMeters>() : member->meters;
  return run.model.BeginDownload(input.request, std::move(input.waiter), run.ready.download);
}

absl::Status Handle(RunParts& run, const input::CompleteUpload& input, int64_t now_ms) {
  const v1::UploadHeader& header = input.header;
  if (header.initial()) return CompleteSeed(run, header);
  v1::Verdict verdict = Decide(run, header, input.upload, now_ms);
  run.ready.effects.emplace_back(
      effect::Answer{input.peer, header.context().site(), header.fragment(), std::move(verdict)});
  return absl::OkStatus();
}

absl::Status Handle(RunParts& run, const input::RefuseUpload& input, int64_t now_ms) {
  const v1::UploadHeader& header = input.header;
  if (CheckContribution(run, header).ok()) {  // the round does not expect it any more
    Refuse(run, header, {.contribution = AdmittedOf(header), .why = input.why, .too_long = false}, now_ms);
  }
  run.ready.effects.emplace_back(
      effect::Answer{input.peer, header.context().site(), header.fragment(), Refused(input.why)});
  Forget(run, header, input.upload);
  return absl::OkStatus();
}

absl::Status Handle(RunParts& run, const input::SeedSaved&, int64_t now_ms) {
  run.model.fact().Seeded();
  Apply(run, SeedComplete{}, now_ms);
  run.ready.state_changed = true;
  const int64_t values = core::NumParameters(run.model.fact().map().manifest());
  run.ready.Note("seed", run.model.fact().seeder(), -1, absl::StrCat(values, " initial parameters"));
  spdlog::info("the initial parameters are here: {} values", values);
  const auto late = run.follower() == nullptr ? std::nullopt : run.follower()->TakeLate();
  return late ? Handle(run, input::Membership{*late}, now_ms) : absl::OkStatus();
}

void ForgetUploads(RunParts& run, const core::SiteId& site) {
  for (core::FragmentId p = 0; p < run.uploads.num_fragments(); ++p) {
    if (run.rules->state().contributions[p].contains(site)) continue;
    run.uploads.Erase(p, site);
    run.figures.Forget(p, site);
  }
}

absl::Status RestoreUploads(RunParts& run, core::FragmentId fragment, const std::vector<StoredContribution>& stored,
                            int64_t now_ms) {
  ASSIGN_OR_RETURN(const Contributions open, run.model.ReadContributions(run.model.fact().map().fragment(fragment),
                                                                         run.codecs.UpLeg(fragment), stored));
  for (size_t i = 0; i < open.size(); ++i) {
    run.uploads.At(fragment, stored[i].site) = {open[i], stored[i].admitted.base, now_ms};
    run.figures.Restored(fragment, run.rules->state().versions[fragment] + 1, stored[i].site);
  }
  return absl::OkStatus();
}

// ---- Bytes ----

void OpenUploads::Reset(int num_fragments) {
  open_.assign(num_fragments, {});
  seeding.Void();
}

const OpenUploads::Arriving* OpenUploads::Find(core::FragmentId fragment, const core::SiteId& site) const {
  const auto found = open_[fragment].find(site);
  return found == open_[fragment].end() ? nullptr : &found->second;
}

std::shared_ptr<Contribution> OpenUploads::Take(core::FragmentId fragment, const core::SiteId& site) {
  std::shared_ptr<Contribution> contribution = open_[fragment].at(site).contribution;
  open_[fragment].erase(site);
  return contribution;
}

std::shared_ptr<Contribution> Seeding::Part(const core::Fragment& fragment) {
  std::shared_ptr<Contribution>& part = parts_[fragment.id];
  if (part == nullptr) part = std::make_shared<Contribution>(codecs::PlanChunks(fragment, codecs::Unencoded()));
  return part;
}

int64_t Seeding::NumArrived() const {
  return std::ranges::count_if(parts_, [](const auto& part) { return part != nullptr && part->complete(); });
}

bool Seeding::IsWhole(const core::FragmentMap& map, const core::Shard& shard) const {
  return expects() && std::ranges::all_of(map.fragments(), [&](const core::Fragment& fragment) {
           const auto& part = parts_[fragment.id];
           return !shard.Owns(fragment.id) || (part != nullptr && part->complete());
         });
}

// All anchors before the rest: the uploads take as much memory as they do, and are freed by then.
absl::StatusOr<std::vector<StartingFragment>> SaveSeed(Seed seed, const core::Shard& shard, bool with_residual,
                                                       Journal& journal) {
  std::vector<StartingFragment> fragments(seed.parts.size());
  for (size_t p = 0; p < seed.parts.size(); ++p) {
    if (seed.parts[p] == nullptr) continue;
    core::AlignedFloats& anchor = fragments[p].state.anchor;
    anchor.resize(seed.map.fragment(static_cast<core::FragmentId>(p)).padded_values());
    for (const codecs::ChunkView& view : seed.parts[p]->Views()) {
      view.Decode(view.span().first_unit, std::span(anchor).subspan(view.span().first_value(), view.span().values));
    }
    seed.parts[p].reset();
  }
#if defined(__GLIBC__)
  malloc_trim(0);  // gRPC's receive buffers: nothing that large comes again
#endif
  for (core::FragmentId p = 0; p < std::ssize(fragments); ++p) {
    core::FragmentState& state = fragments[p].state;
    state.momentum.resize(state.anchor.size());
    if (with_residual) state.residual.resize(state.anchor.size());
    if (!shard.Owns(p)) continue;
    fragments[p].digest = state.Digest();
    RETURN_IF_ERROR(journal.SaveSnapshot(p, state, fragments[p].digest));
  }
  RETURN_IF_ERROR(journal.Begin(RunRecordOf(seed.map)));
  return fragments;
}

}  // namespace causeway::server
