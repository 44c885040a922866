#include "server/run/admission.h"

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/check.h"
#include "core/digest.h"
#include "core/limits.h"
#include "core/model_manifest.h"
#include "core/text.h"
#include "transport/messages.h"

namespace causeway::server {
namespace {

constexpr core::Version kAnyVersion = std::numeric_limits<core::Version>::max();
constexpr int64_t kNotToldMs = 200;  // until shard 0's update arrives, or the sites are asked for what they hold

}  // namespace

Admission::Admission(const core::RunConfig& config, const core::Shard& shard, ModelBounds bounds, bool new_run,
                     bool may_lose_its_end, Claims claims)
    : config_(config),
      shard_(shard),
      bounds_(std::move(bounds)),
      new_run_(new_run),
      may_lose_its_end_(may_lose_its_end),
      claims_(std::move(claims)),
      data_(config.data, {}) {}

absl::Status Admission::CheckProtocol(const v1::Context& context) const {
  // A caller that only reads names no run.
  RETURN_IF_ERROR(transport::CheckCaller(context, context.run_id().empty() ? "" : config_.run_id));
  // A caller that only reads does not name the shard that it expects.
  if (const core::Shard expected{context.shard(), context.num_shards()}; expected.count > 0 && expected != shard_) {
    return absl::FailedPreconditionError(absl::StrCat("expected ", expected.Text(), ", this is ", shard_.Text(),
                                                      ": --coordinator names all shards of the run, in their order"));
  }
  return absl::OkStatus();
}

absl::Status Admission::CheckContext(const v1::Context& context) const {
  RETURN_IF_ERROR(CheckProtocol(context));
  return claims_.Check(context);
}

absl::StatusOr<core::Manifest> Admission::ReadManifest(const v1::Join& join) const {
  ASSIGN_OR_RETURN(core::Manifest manifest, transport::FromProto(join.manifest()));
  RETURN_IF_ERROR(bounds_.Check(manifest));
  return manifest;
}

std::optional<DoubtFound> Admission::FindDoubt(const v1::Join& join, const RunRules& rules) const {
  const v1::Context& context = join.context();
  if (!CheckProtocol(context).ok() || !core::IsValidName(context.site())) return std::nullopt;
  std::vector<core::Version> admitted = rules.LastAdmitted(context.site());
  // It will hear that its name was given up, whatever it claims.
  if (rules.MayHaveForgotten(context.site())) admitted.assign(rules.state().versions.size(), kAnyVersion);
  return claims_.Check(join, {rules.state().versions, admitted}, !new_run_ && rules.AnySiteIn());
}

bool Admission::Continues(const v1::Join& join, const RunRules& rules) const {
  const bool of_it = claims_.IsOfAnother(join.context()) && join.context().lineage() == claims_.own().continues;
  if (!of_it || !rules.state().sites.contains(join.context().site())) return false;
  // If it has not contributed since, its last contribution is the one before the rebuilt version.
  const std::vector<core::Version> admitted = rules.LastAdmitted(join.context().site());
  for (int p = 0; p < join.versions_size() && p < std::ssize(admitted); ++p) {
    if (shard_.Owns(p) && join.versions(p) > admitted[p] + 1) return false;
  }
  return true;
}

JoinDecision Admission::Refuse(const core::SiteId& site, const DoubtFound& found, int64_t now_ms, RunRules& rules,
                               Ready& ready) {
  const bool is_final = new_run_ && found.doubt == Doubt::kUnknownLineage;
  const bool completes = found.doubt == Doubt::kHistoryLost && may_lose_its_end_;
  JoinDecision decision{.reason = found.text, .retry_after_ms = completes ? kNotToldMs : Strangers::kAskAgainMs};
  if (is_final) return {.reason = found.text, .retry_after_ms = 0};
  if (strangers_.Note(site, found, now_ms)) {
    ready.Note(std::string(DoubtName(found.doubt)), site, -1, found.text);
    if (found.doubt == Doubt::kHistoryLost) {
      rules.Handle(HoldRun{Hold::kDoubt,
                           absl::StrCat("site ", site, ": ", found.text, "; causewayctl resume goes on without that")},
                   now_ms);
    }
  }
  return decision;
}

void Admission::NoteElsewhere(const v1::Context& context, int64_t now_ms, Ready& ready) {
  const std::string& own = claims_.own().lineage;
  if (!CheckProtocol(context).ok() || !core::IsValidName(context.site())) return;
  if (context.lineage().empty() || !claims_.IsOfAnother(context) || context.lineage() == claims_.own().continues)
    return;
  const DoubtFound found{Doubt::kTwoCoordinators,
                         absl::StrCat("its transfers come here, though a coordinator of lineage ", context.lineage(),
                                      " has welcomed it, this one is of lineage ", own,
                                      ": two coordinators answer at one address. Stop one of the two")};
  const std::string& site = context.site();
  if (strangers_.Note(site, found, now_ms)) ready.Note(std::string(DoubtName(found.doubt)), site, -1, found.text);
}

Outcome Admission::Decide(const v1::Join& join, const absl::Status& may_join, bool continues, int64_t now_ms,
                          RunRules& rules) {
  const core::SiteId& site = join.context().site();
  if (!may_join.ok()) {
    return {.join = {.reason = std::string(may_join.message()),
                     .retry_after_ms = absl::IsUnavailable(may_join) ? kNotToldMs : 0}};
  }
  strangers_.Forget(site);
  JoinRequest request{.site = site,
                      .session = join.context().session(),
                      .held = {join.versions().begin(), join.versions().end()},
                      .from_checkpoint = join.from_checkpoint(),
                      .stay = join.stay(),
                      .process = join.process()};
  if ((claims_.IsOfAnother(join.context()) && !continues) || claims_.HoldsLost(join)) request.held.clear();
  return rules.Handle(request, now_ms);
}

absl::StatusOr<std::optional<core::FragmentMap>> Admission::CheckModel(const v1::Join& join,
                                                                       const absl::StatusOr<core::Manifest>& manifest,
                                                                       const std::set<core::CodecId>& codecs,
                                                                       const ModelFact& model,
                                                                       const RunRules& rules) const {
  RETURN_IF_ERROR(CheckProtocol(join.context()));
  if (!core::IsValidName(join.context().site())) {
    return absl::InvalidArgumentError(
        absl::StrCat("site name: expected 1 to 64 letters, digits, '.', '_' or '-', not starting with '.', got ",
                     core::Quoted(join.context().site())));
  }
  if (join.context().session().empty()) return absl::InvalidArgumentError("session: expected a session id, got none");
  for (core::CodecId codec : codecs) {
    if (std::count(join.codecs().begin(), join.codecs().end(), static_cast<uint32_t>(codec)) > 0) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("the run uses codec ", core::CodecName(codec), ", which the site does not know"));
  }
  RETURN_IF_ERROR(manifest.status());
  if (model.known() && core::CompareManifests(model.map().manifest(), *manifest).ok()) return std::nullopt;
  const bool follows = !shard_.leads();
  if (follows && !model.known()) return absl::UnavailableError("shard 0 has not told this shard of the model yet");
  const absl::Status fits = model.CheckManifest(*manifest, follows || rules.AnySiteIn());
  if (!fits.ok() && follows && !model.stays()) {
    return absl::UnavailableError(absl::StrCat("shard 0 has not told this shard of that model yet: ", fits.message()));
  }
  RETURN_IF_ERROR(fits);
  ASSIGN_OR_RETURN(core::FragmentMap map, BuildFragmentMap(*manifest, config_.sync));
  return map;
}

absl::StatusOr<core::SiteData> Admission::CheckData(const v1::Join& join, const RunRules& rules) const {
  ASSIGN_OR_RETURN(core::SiteData data, transport::DataFromProto(join));
  if (shard_.leads()) RETURN_IF_ERROR(data_.CheckJoin(join.context().site(), data, rules.state()));
  return data;
}

void Admission::DeclareData(const core::SiteId& site, const core::SiteData& data, const RunRules& rules, Ready& ready) {
  if (data_.Declare(site, data, rules.state())) ready.entry.data = data_.known();
}

void Admission::ForgetData(const core::SiteId& site, Ready& ready) {
  if (data_.Forget(site)) ready.entry.data = data_.known();
}

v1::Welcome Admission::Welcome(const v1::Join& join, const JoinDecision& decision, bool continues,
                               const v1::Welcome& model, const RunRules& rules) const {
  const core::SiteId& site = join.context().site();
  v1::Welcome welcome = model;
  claims_.Introduce(&welcome);
  if (continues) welcome.set_continues(claims_.own().continues);
  welcome.set_resumed(decision.resumed && !continues);  // its contributions to the present versions are gone
  welcome.set_held(rules.held());
  welcome.set_forgotten(decision.forgotten);
  welcome.set_stay(rules.state().sites.at(site).stay);
  welcome.mutable_last_admitted()->Assign(decision.last_admitted.begin(), decision.last_admitted.end());
  for (int p = 0; continues && p < welcome.last_admitted_size() && p < join.versions_size(); ++p) {
    // It has taken all updates up to there: a contribution still pending was too late for them, and was lost with the
    // state.
    if (shard_.Owns(p) && join.versions(p) == welcome.last_admitted(p) + 1) {
      welcome.set_last_admitted(p, welcome.last_admitted(p) - 1);
    }
  }
  claims_.ProveAdmitted(site, &welcome);
  return welcome;
}

// ---- Bounds ----

namespace {

constexpr int64_t kBytesOfParameter = 12;  // anchor, momentum and residual, as float32

}  // namespace

absl::Status ModelBounds::Check(const core::Manifest& brought) const {
  if (manifest) return core::CompareManifests(*manifest, brought);
  const int64_t values = core::NumParameters(brought) / shard.count;
  if (memory_bytes == 0 || values <= memory_bytes / kBytesOfParameter) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "the model's %.3g values need %.3g GB of the coordinator's memory (12 bytes each), and this machine "
      "has %.3g GB",
      static_cast<double>(values), static_cast<double>(values) * kBytesOfParameter * 1e-9,
      static_cast<double>(memory_bytes) * 1e-9));
}

ModelBounds BoundsOf(const core::RunConfig& config, const core::Shard& shard) {
  ModelBounds bounds{.memory_bytes = sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE), .shard = shard};
  if (config.model_kind != core::ModelKind::kExternal) bounds.manifest = core::ModelManifest(config);
  return bounds;
}

// ---- Claims ----

namespace {

constexpr size_t kProofBytes = 16;

Shown ShownBy(const v1::Context& context) {
  return {.lineage = context.lineage(), .epoch = context.epoch(), .life = context.life()};
}

}  // namespace

Claims::Claims(const JournalIdentity& journal, uint64_t life, const core::Shard& shard)
    : own_{.lineage = journal.lineage,
           .former_lineages = journal.former_lineages,
           .continues = journal.continues,
           .epoch = journal.epoch,
           .life = life},
      floors_(journal.floors),
      secret_(journal.secret),
      shard_(shard) {}

bool Claims::IsOfAnother(const v1::Context& context) const {
  return !context.lineage().empty() && context.lineage() != own_.lineage;
}

std::string Claims::Prove(const std::string& text) const {
  return core::KeyedProof(secret_, text).substr(0, kProofBytes);
}

std::string Claims::ProofOfEpoch(uint64_t epoch, uint64_t life) const {
  return Prove(absl::StrCat("epoch ", own_.lineage, " ", epoch, " ", life));
}

std::string Claims::ProofOfVersion(core::FragmentId fragment, core::Version version) const {
  return Prove(absl::StrCat("version ", own_.lineage, " ", fragment, " ", version));
}

std::string Claims::ProofOfAdmission(const core::SiteId& site, core::FragmentId fragment, core::Version base) const {
  return Prove(absl::StrCat("admitted ", own_.lineage, " ", site, " ", fragment, " ", base));
}

void Claims::Introduce(v1::Welcome* welcome) const {
  welcome->set_epoch(own_.epoch);
  welcome->set_lineage(own_.lineage);
  welcome->set_life(own_.life);
  welcome->set_proof(ProofOfEpoch(own_.epoch, own_.life));
  welcome->set_beat_ms(core::kBeatMs);
}

void Claims::ProveAdmitted(const core::SiteId& site, v1::Welcome* welcome) const {
  for (int p = 0; p < welcome->last_admitted_size(); ++p) {
    const bool told = shard_.Owns(p) && welcome->last_admitted(p) >= 0;
    welcome->add_admission_proofs(told ? ProofOfAdmission(site, p, welcome->last_admitted(p)) : "");
  }
}

absl::Status Claims::Check(const v1::Context& context) const {
  const auto of_lineage = [](const Claim& claim) { return claim.kind == Claim::Kind::kLineage; };
  const std::optional<DoubtFound> doubt = FindDoubt(own_, ShownBy(context), of_lineage);
  return doubt ? absl::FailedPreconditionError(doubt->text) : absl::OkStatus();
}

bool Claims::HoldsLost(const v1::Join& join) const {
  if (IsOfAnother(join.context())) return false;
  return std::ranges::any_of(floors_, [&](const JournalIdentity::Floor& floor) {
    return join.context().epoch() < floor.epoch && std::ranges::any_of(floor.versions, [&](const auto& one) {
             return one.first < join.versions_size() && join.versions(one.first) > one.second;
           });
  });
}

std::optional<DoubtFound> Claims::Check(const v1::Join& join, const History& known, bool trains) const {
  const v1::Context& context = join.context();
  const auto proven = [&](const Claim& claim) {
    const int p = claim.fragment;
    switch (claim.kind) {
      case Claim::Kind::kLineage: return !trains;
      case Claim::Kind::kEpoch:
        return core::SameSecret(join.epoch_proof(), ProofOfEpoch(context.epoch(), context.life()));
      case Claim::Kind::kVersion:
        return p < join.version_proofs_size() &&
               core::SameSecret(join.version_proofs(p), ProofOfVersion(p, claim.version));
      case Claim::Kind::kAdmission:
        return p < join.admission_proofs_size() &&
               core::SameSecret(join.admission_proofs(p), ProofOfAdmission(context.site(), p, claim.version));
    }
    return false;
  };
  const auto of_epoch = FindDoubt(own_, ShownBy(context), proven);
  if (of_epoch && of_epoch->doubt != Doubt::kUnprovenClaim) return of_epoch;
  if (IsOfAnother(context)) return of_epoch;  // it takes the anchors anew, whatever it holds
  History shown{{join.versions().begin(), join.versions().end()}, {join.admitted().begin(), join.admitted().end()}};
  if (HoldsLost(join)) shown.admitted.clear();  // to versions that were made anew; it takes the anchors anew
  const auto of_history = FindDoubt(known, shown, shard_, proven);
  return of_history && of_history->doubt != Doubt::kUnprovenClaim ? of_history : of_epoch ? of_epoch : of_history;
}

}  // namespace causeway::server
