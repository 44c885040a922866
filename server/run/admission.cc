#include "server/run/admission.h"

#include <spdlog/spdlog.h>
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
#include "core/random.h"
#include "core/text.h"
#include "server/run/run_parts.h"
#include "transport/messages.h"

namespace causeway::server {
namespace {

constexpr core::Version kAnyVersion = std::numeric_limits<core::Version>::max();
constexpr int64_t kNotToldMs = 200;  // until shard 0's update arrives, or the sites are asked for what they hold

}  // namespace

Admission::Admission(const RunOptions& options, const JournalIdentity& journal)
    : data(options.config.data, {}),
      options_(options),
      may_lose_its_end_(!options.completed && journal.may_have_lost_its_end),
      claims_(journal, core::DeviceRandom(), options.shard) {}

bool Admission::LacksItsEnd() const {
  return may_lose_its_end_ ? strangers.MissesAnEnd(1) : options_.asks_again && strangers.MissesAnEnd(2);
}

absl::Status Admission::CheckProtocol(const v1::Context& context) const {
  // A caller that only reads names no run.
  RETURN_IF_ERROR(transport::CheckCaller(context, context.run_id().empty() ? "" : options_.config.run_id));
  // A caller that only reads does not name the shard that it expects.
  if (const core::Shard expected{context.shard(), context.num_shards()};
      expected.count > 0 && expected != options_.shard) {
    return absl::FailedPreconditionError(absl::StrCat("expected ", expected.Text(), ", this is ", options_.shard.Text(),
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
  RETURN_IF_ERROR(options_.bounds.Check(manifest));
  return manifest;
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
  if (strangers.Note(site, found, now_ms)) ready.Note(std::string(DoubtName(found.doubt)), site, -1, found.text);
}

void Admission::ForgetData(const core::SiteId& site, Ready& ready) {
  if (data.Forget(site)) ready.entry.data = data.known();
}

// ---- Joining ----

namespace {

// Something that the joiner has seen and this state lacks; it takes precedence over a difference from another state's
// model.
std::optional<DoubtFound> FindDoubt(const RunParts& run, const v1::Join& join) {
  const RunRules& rules = *run.rules;
  const v1::Context& context = join.context();
  if (!run.admission.CheckProtocol(context).ok() || !core::IsValidName(context.site())) return std::nullopt;
  std::vector<core::Version> admitted = rules.LastAdmitted(context.site());
  // It will hear that its name was given up, whatever it claims.
  if (rules.MayHaveForgotten(context.site())) admitted.assign(rules.state().versions.size(), kAnyVersion);
  return run.admission.claims().Check(join, {rules.state().versions, admitted},
                                      !run.options.new_run && rules.AnySiteIn());
}

// Whether this state contains everything that the site holds of its former lineage.
bool Continues(const RunParts& run, const v1::Join& join) {
  const RunRules& rules = *run.rules;
  const Claims& claims = run.admission.claims();
  const bool of_it = claims.IsOfAnother(join.context()) && join.context().lineage() == claims.own().continues;
  if (!of_it || !rules.state().sites.contains(join.context().site())) return false;
  // If it has not contributed since, its last contribution is the one before the rebuilt version.
  const std::vector<core::Version> admitted = rules.LastAdmitted(join.context().site());
  for (int p = 0; p < join.versions_size() && p < std::ssize(admitted); ++p) {
    if (run.options.shard.Owns(p) && join.versions(p) > admitted[p] + 1) return false;
  }
  return true;
}

// Refuses the joiner, which waits with its parameters until an operator has decided.
JoinDecision Refuse(RunParts& run, const core::SiteId& site, const DoubtFound& found, int64_t now_ms) {
  const bool is_final = run.options.new_run && found.doubt == Doubt::kUnknownLineage;
  const bool completes = found.doubt == Doubt::kHistoryLost && run.admission.may_lose_its_end();
  JoinDecision decision{.reason = found.text, .retry_after_ms = completes ? kNotToldMs : Strangers::kAskAgainMs};
  if (is_final) return {.reason = found.text, .retry_after_ms = 0};
  if (run.admission.strangers.Note(site, found, now_ms)) {
    run.ready.Note(std::string(DoubtName(found.doubt)), site, -1, found.text);
    if (found.doubt == Doubt::kHistoryLost) {
      run.rules->Handle(HoldRun{Hold::kDoubt, absl::StrCat("site ", site, ": ", found.text,
                                                           "; causewayctl resume goes on without that")},
                        now_ms);
    }
  }
  return decision;
}

// The rules' decision, if `may_join` is OK.
Outcome Decide(RunParts& run, const v1::Join& join, const absl::Status& may_join, bool continues, int64_t now_ms) {
  const core::SiteId& site = join.context().site();
  if (!may_join.ok()) {
    return {.join = {.reason = std::string(may_join.message()),
                     .retry_after_ms = absl::IsUnavailable(may_join) ? kNotToldMs : 0}};
  }
  run.admission.strangers.Forget(site);
  const Claims& claims = run.admission.claims();
  JoinRequest request{.site = site,
                      .session = join.context().session(),
                      .held = {join.versions().begin(), join.versions().end()},
                      .from_checkpoint = join.from_checkpoint(),
                      .stay = join.stay(),
                      .process = join.process()};
  if ((claims.IsOfAnother(join.context()) && !continues) || claims.HoldsLost(join)) request.held.clear();
  return run.rules->Handle(request, now_ms);
}

// Returns the joiner's fragment map if it brings another model than the present one. UNAVAILABLE: retry later.
absl::StatusOr<std::optional<core::FragmentMap>> CheckModel(const RunParts& run, const v1::Join& join,
                                                            const absl::StatusOr<core::Manifest>& manifest) {
  const ModelFact& model = run.model.fact();
  RETURN_IF_ERROR(run.admission.CheckProtocol(join.context()));
  if (!core::IsValidName(join.context().site())) {
    return absl::InvalidArgumentError(
        absl::StrCat("site name: expected 1 to 64 letters, digits, '.', '_' or '-', not starting with '.', got ",
                     core::Quoted(join.context().site())));
  }
  if (join.context().session().empty()) return absl::InvalidArgumentError("session: expected a session id, got none");
  for (core::CodecId codec : run.codecs.all()) {
    if (std::count(join.codecs().begin(), join.codecs().end(), static_cast<uint32_t>(codec)) > 0) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("the run uses codec ", core::CodecName(codec), ", which the site does not know"));
  }
  RETURN_IF_ERROR(manifest.status());
  if (model.known() && core::CompareManifests(model.map().manifest(), *manifest).ok()) return std::nullopt;
  const bool follows = !run.options.shard.leads();
  if (follows && !model.known()) return absl::UnavailableError("shard 0 has not told this shard of the model yet");
  const absl::Status fits = model.CheckManifest(*manifest, follows || run.rules->AnySiteIn());
  if (!fits.ok() && follows && !model.stays()) {
    return absl::UnavailableError(absl::StrCat("shard 0 has not told this shard of that model yet: ", fits.message()));
  }
  RETURN_IF_ERROR(fits);
  ASSIGN_OR_RETURN(core::FragmentMap map, BuildFragmentMap(*manifest, run.options.config.sync));
  return map;
}

// Shard 0 decides which sites are in; the others receive the same data.
absl::StatusOr<core::SiteData> CheckData(const RunParts& run, const v1::Join& join) {
  ASSIGN_OR_RETURN(core::SiteData data, transport::DataFromProto(join));
  if (run.options.shard.leads())
    RETURN_IF_ERROR(run.admission.data.CheckJoin(join.context().site(), data, run.rules->state()));
  return data;
}

// `continues`: as Continues said.
v1::Welcome MakeWelcome(const RunParts& run, const v1::Join& join, const JoinDecision& decision, bool continues) {
  const Claims& claims = run.admission.claims();
  const core::SiteId& site = join.context().site();
  v1::Welcome welcome = run.model.welcome();
  claims.Introduce(&welcome);
  for (const std::string& standby : run.journal.mirrors().known()) welcome.add_standbys(standby);
  if (continues) welcome.set_continues(claims.own().continues);
  welcome.set_resumed(decision.resumed && !continues);  // its contributions to the present versions are gone
  welcome.set_held(run.rules->held());
  welcome.set_forgotten(decision.forgotten);
  welcome.set_stay(run.rules->state().sites.at(site).stay);
  welcome.mutable_last_admitted()->Assign(decision.last_admitted.begin(), decision.last_admitted.end());
  for (int p = 0; continues && p < welcome.last_admitted_size() && p < join.versions_size(); ++p) {
    // It has taken all updates up to there: a contribution still pending was too late for them, and was lost with the
    // state.
    if (run.options.shard.Owns(p) && join.versions(p) == welcome.last_admitted(p) + 1) {
      welcome.set_last_admitted(p, welcome.last_admitted(p) - 1);
    }
  }
  claims.ProveAdmitted(site, &welcome);
  return welcome;
}

absl::Status Refuse(RunParts& run, const input::Join& input, const JoinDecision& decision, int64_t now_ms) {
  const core::SiteId& site = input.join.context().site();
  spdlog::warn("site {}: {}: {}", site, decision.retry_after_ms > 0 ? "has to wait" : "refused", decision.reason);
  if (decision.rival && run.members.Complain(site, &Member::rival, decision.reason, now_ms)) {
    run.ready.Note("two_workers", site, -1, decision.reason);
  }
  v1::CoordinatorMessage answer;
  answer.mutable_refused()->set_reason(decision.reason);
  answer.mutable_refused()->set_retry_after_ms(decision.retry_after_ms);
  run.ready.effects.emplace_back(effect::Send{input.peer, site, answer});
  run.ready.effects.emplace_back(effect::Close{input.peer, site});
  return absl::OkStatus();
}

}  // namespace

absl::Status Handle(RunParts& run, const input::Join& input, int64_t now_ms) {
  const v1::Join& join = input.join;
  const core::SiteId& site = join.context().site();
  const std::optional<DoubtFound> doubt = FindDoubt(run, join);
  const auto map = CheckModel(run, join, input.manifest);
  const absl::StatusOr<core::SiteData> data = map.ok() ? CheckData(run, join) : map.status();
  const bool continues = !doubt && Continues(run, join);
  const Outcome outcome =
      doubt ? Outcome{.join = Refuse(run, site, *doubt, now_ms)} : Decide(run, join, data.status(), continues, now_ms);
  // Actions on an earlier stay's remains go first, with its stream; messages to the site wait for the new stream.
  const auto is_told = [](const Action& action) {
    return std::holds_alternative<RequestSeed>(action) || std::holds_alternative<Enter>(action);
  };
  Actions before, told;
  for (const Action& action : outcome.actions) (is_told(action) ? told : before).push_back(action);
  Perform(run, before);
  const JoinDecision& decision = outcome.join;
  if (!decision.accepted) return Refuse(run, input, decision, now_ms);
  if (*map && run.model.Declare(**map, site, run.ready)) {
    run.model.Store(run.ready);
    BeginModel(run);
    Apply(run, ModelReplaced{}, now_ms);
  }
  // Data of a run without sites gives way, as a model does.
  if (run.admission.data.Declare(site, *data, run.rules->state())) run.ready.entry.data = run.admission.data.known();
  run.members.Join(site, join.context().session(), input.peer, decision.resumed, now_ms, run.ready);
  spdlog::info("site {}: {}", site, decision.resumed ? "is back" : "joins");
  if (join.from_checkpoint()) ForgetUploads(run, site);  // another process made those chunks
  run.ready.state_changed = true;
  if (!decision.resumed)
    run.ready.Note("join", site, -1,
                   absl::StrCat("version ", core::Clipped(join.software_version(), core::kMaxSiteTextBytes)));
  v1::CoordinatorMessage answer;
  *answer.mutable_welcome() = MakeWelcome(run, join, decision, continues);
  const core::SettingsChain chain = run.settings.Chain();  // durable before this message leaves
  answer.mutable_welcome()->set_settings_before(chain.before);
  for (const core::SettingsRevision& one : chain.revisions) {
    transport::ToProto(one, answer.mutable_welcome()->add_revisions());
  }
  run.members.Send(site, answer, run.ready);
  const bool drains = run.rules->state().sites.at(site).state == core::SiteState::kDraining;
  if (drains) run.members.Send(site, DrainMessage(), run.ready);  // it may not know
  Perform(run, told);
  const std::string reason = run.rules->Reason();  // a newcomer wants to know why it waits
  if (!reason.empty()) run.members.Send(site, transport::NoticeOf(reason), run.ready);
  return absl::OkStatus();
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
