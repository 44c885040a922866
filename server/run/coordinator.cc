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

constexpr core::Version kAnyVersion = std::numeric_limits<core::Version>::max();
constexpr int64_t kNotToldMs = 200;  // until shard 0's update arrives, or the sites are asked for what they hold

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
      claims_(journal->identity(), core::DeviceRandom(), options_.shard),
      data_(options_.config.data, {}),
      codecs_(options_.config),
      figures_(options_.clock) {}

Coordinator::~Coordinator() {
  journal_->Flush();  // its remaining callbacks use us and the parameters
  parameters_.reset();
  journal_->Flush();
}

// The joiner's model replaces one that no site in the run has any more.
void Coordinator::DeclareModel(const core::FragmentMap& map, const core::SiteId& site) {
  const uint64_t withdrawn = model_.generation();
  if (!model_.Declare(map)) return;
  if (withdrawn > 0) {
    outbox_.Note(
        "withdrawn", site, -1,
        absl::StrCat("generation ", withdrawn, " of the model: no site is left of it, and another one is brought"));
  }
  outbox_.Note("model", site, -1,
               absl::StrCat("generation ", model_.generation(), ": ", core::NumParameters(map.manifest()),
                            " parameters in ", map.num_fragments(), " fragments"));
  NoteModel();
  BeginModel();
  rounds_->BeginAnotherModel();
}

void Coordinator::DeclareData(const core::SiteId& site, const core::SiteData& data) {
  // To be called before the joiner counts as in the run: data of a run without sites gives way, as a model does.
  if (data_.Declare(site, data, rounds_->state())) outbox_.Store(data_.known());
}

void Coordinator::NoteModel() {
  const core::FragmentMap& map = model_.map();
  outbox_.Store(ModelRecord{.generation = model_.generation(), .run = RunRecordOf(map), .seeder = model_.seeder()});
}

void Coordinator::BeginModel() {
  const core::FragmentMap& map = model_.map();
  open_.Begin(map.num_fragments());
  seeds_.clear();
  codecs_.SetMap(map);
  welcome_.Clear();
  welcome_.set_generation(model_.generation());
  transport::ToProto(map.manifest(), welcome_.mutable_manifest());
  transport::ToProto(map, welcome_.mutable_fragments());
  const core::RunConfig& config = options_.config;
  const MergeSettings merge{.outer = config.outer,
                            .down = codecs::DownLeg(config),
                            .feedback_down = config.codec.feedback_down,
                            .zstd = config.codec.zstd,
                            .rule = config.membership.merge};
  parameters_ =
      std::make_shared<Parameters>(ParametersOptions{.map = map,
                                                     .generation = model_.generation(),
                                                     .waiters = waiters_,
                                                     .merge = merge,
                                                     .snapshot_every = config.checkpoint.every_rounds,
                                                     .journal = journal_,
                                                     .merged = [this](const MergedRound& merged) { OnMerged(merged); },
                                                     .failed = [this](const absl::Status& status) { Fail(status); }});
  outbox_.Then([waiters = waiters_, generation = model_.generation()] { waiters->BeginGeneration(generation); });
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
  if (!model_.known()) return description;
  const core::FragmentMap& map = model_.map();
  transport::ToProto(map.manifest(), description.mutable_manifest());
  transport::ToProto(map, description.mutable_fragments());
  if (!parameters_->is_set()) return description;
  for (int p = 0; p < map.num_fragments(); ++p) description.add_versions(parameters_->Committed(p).version);
  return description;
}

absl::Status Coordinator::CheckProtocol(const v1::Context& context) const {
  if (context.protocol() != transport::kProtocol) {
    return absl::FailedPreconditionError(absl::StrCat("expected protocol ", transport::kProtocol, ", got ",
                                                      context.protocol(), "; this coordinator is Causeway ",
                                                      transport::kVersion, ", use programs of that version"));
  }
  if (!context.run_id().empty() && context.run_id() != options_.config.run_id) {
    return absl::FailedPreconditionError(
        absl::StrCat("expected run ", options_.config.run_id, ", got ", context.run_id()));
  }
  // A caller that only reads does not name the shard that it expects.
  if (const core::Shard expected{context.shard(), context.num_shards()};
      expected.count > 0 && expected != options_.shard) {
    return absl::FailedPreconditionError(absl::StrCat("expected ", expected.Text(), ", this is ", options_.shard.Text(),
                                                      ": --coordinator names all shards of the run, in their order"));
  }
  return absl::OkStatus();
}

absl::Status Coordinator::CheckContext(const v1::Context& context) const {
  RETURN_IF_ERROR(CheckProtocol(context));
  return claims_.Check(context);
}

std::optional<DoubtFound> Coordinator::FindDoubtAt(const v1::Join& join) const {
  const v1::Context& context = join.context();
  if (!CheckProtocol(context).ok() || !core::IsValidName(context.site())) return std::nullopt;
  std::vector<core::Version> admitted = rounds_->LastAdmitted(context.site());
  // It will hear that its name was given up, whatever it claims.
  if (rounds_->MayHaveForgotten(context.site())) admitted.assign(rounds_->state().versions.size(), kAnyVersion);
  return claims_.Check(join, {rounds_->state().versions, admitted});
}

bool Coordinator::Continues(const v1::Join& join) const {
  const bool of_it = claims_.IsOfAnother(join.context()) && join.context().lineage() == claims_.own().continues;
  if (!of_it || !rounds_->state().sites.contains(join.context().site())) return false;
  // If it has not contributed since, its last contribution is the one before the rebuilt version.
  const std::vector<core::Version> admitted = rounds_->LastAdmitted(join.context().site());
  for (int p = 0; p < join.versions_size() && p < std::ssize(admitted); ++p) {
    if (Owns(p) && join.versions(p) > admitted[p] + 1) return false;
  }
  return true;
}

// It waits with its parameters until an operator has decided.
JoinDecision Coordinator::Refuse(const core::SiteId& site, const DoubtFound& found) {
  const bool is_final = options_.new_run && found.doubt == Doubt::kUnknownLineage;
  const bool completes =
      found.doubt == Doubt::kHistoryLost && !options_.completed && journal_->identity().may_have_lost_its_end;
  JoinDecision decision{.reason = found.text, .retry_after_ms = completes ? kNotToldMs : Strangers::kAskAgainMs};
  if (is_final) return {.reason = found.text, .retry_after_ms = 0};
  if (strangers_.Note(site, found, options_.clock->NowMs())) {
    outbox_.Note(std::string(DoubtName(found.doubt)), site, -1, found.text);
    if (found.doubt == Doubt::kHistoryLost) {
      rounds_->Doubt(absl::StrCat("site ", site, ": ", found.text, "; causewayctl resume goes on without that"));
    }
  }
  return decision;
}

JoinDecision Coordinator::Decide(const v1::Join& join, const absl::Status& may_join, bool continues) {
  const core::SiteId& site = join.context().site();
  if (!may_join.ok()) {
    return {.reason = std::string(may_join.message()),
            .retry_after_ms = absl::IsUnavailable(may_join) ? kNotToldMs : 0};
  }
  strangers_.Forget(site);
  JoinRequest request{.site = site,
                      .session = join.context().session(),
                      .held = {join.versions().begin(), join.versions().end()},
                      .from_checkpoint = join.from_checkpoint(),
                      .stay = join.stay()};
  if ((claims_.IsOfAnother(join.context()) && !continues) || claims_.HoldsLost(join)) request.held.clear();
  return rounds_->Join(request, options_.clock->NowMs());
}

absl::StatusOr<core::Manifest> Coordinator::ReadManifest(const v1::Join& join) const {
  ASSIGN_OR_RETURN(core::Manifest manifest, transport::FromProto(join.manifest()));
  RETURN_IF_ERROR(options_.bounds.Check(manifest));
  return manifest;
}

absl::StatusOr<Coordinator::OtherModel> Coordinator::CheckJoin(const v1::Join& join,
                                                               const absl::StatusOr<core::Manifest>& manifest) {
  RETURN_IF_ERROR(CheckProtocol(join.context()));
  if (!core::IsValidName(join.context().site())) {
    return absl::InvalidArgumentError(
        absl::StrCat("site name: expected 1 to 64 letters, digits, '.', '_' or '-', not starting with '.', got ",
                     core::Quoted(join.context().site())));
  }
  if (join.context().session().empty()) return absl::InvalidArgumentError("session: expected one, got none");
  for (core::CodecId codec : codecs_.all()) {
    if (std::count(join.codecs().begin(), join.codecs().end(), static_cast<uint32_t>(codec)) > 0) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("the run uses codec ", core::CodecName(codec), ", which the site does not know"));
  }
  RETURN_IF_ERROR(manifest.status());
  if (model_.known() && core::CompareManifests(model_.map().manifest(), *manifest).ok()) return std::nullopt;
  const bool follows = rounds_->follows();
  if (follows && !model_.known()) return absl::UnavailableError("shard 0 has not told this shard of the model yet");
  const absl::Status fits = model_.CheckManifest(*manifest, follows || rounds_->AnySiteIn());
  if (!fits.ok() && follows && !model_.stays()) {
    return absl::UnavailableError(absl::StrCat("shard 0 has not told this shard of that model yet: ", fits.message()));
  }
  RETURN_IF_ERROR(fits);
  ASSIGN_OR_RETURN(core::FragmentMap map, BuildFragmentMap(*manifest, options_.config.sync));
  return map;
}

// Shard 0 decides which sites are in; the others receive the same data.
absl::StatusOr<core::SiteData> Coordinator::CheckData(const v1::Join& join) {
  ASSIGN_OR_RETURN(core::SiteData data, transport::DataFromProto(join));
  if (!rounds_->follows()) RETURN_IF_ERROR(data_.CheckJoin(join.context().site(), data, rounds_->state()));
  return data;
}

void Coordinator::Join(const std::shared_ptr<SitePeer>& peer, const v1::Join& join) {
  const absl::StatusOr<core::Manifest> manifest = ReadManifest(join);
  core::MutexLock lock(mutex_);
  const core::SiteId& site = join.context().site();
  const std::optional<DoubtFound> doubt =
      FindDoubtAt(join);  // takes precedence over a difference from another state's model
  const absl::StatusOr<OtherModel> map = CheckJoin(join, manifest);
  const absl::StatusOr<core::SiteData> data = map.ok() ? CheckData(join) : map.status();
  const bool continues = !doubt && Continues(join);
  const JoinDecision decision = doubt ? Refuse(site, *doubt) : Decide(join, data.status(), continues);
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
  if (*map) DeclareModel(**map, site);
  DeclareData(site, *data);
  members_.Attach(site, peer);
  Member& member = members_[site];
  member.session = join.context().session();
  if (!member.joined_ms) member.joined_ms = options_.clock->NowMs();
  if (!decision.resumed) member.joining_ms = options_.clock->NowMs();
  member.silent_ms.reset();
  spdlog::info("site {}: {}", site, decision.resumed ? "is back" : "joins");
  if (join.from_checkpoint()) ForgetArriving(site);  // another process made those chunks
  outbox_.StateChanged();
  if (!decision.resumed) outbox_.Note("join", site, -1, absl::StrCat("version ", OfSite(join.software_version())));
  v1::Welcome* welcome = answer.mutable_welcome();
  *welcome = welcome_;
  claims_.Introduce(welcome);
  if (continues) welcome->set_continues(claims_.own().continues);
  welcome->set_resumed(decision.resumed && !continues);  // its contributions to the present versions are gone
  welcome->set_held(rounds_->held());
  welcome->set_forgotten(decision.forgotten);
  welcome->set_stay(rounds_->state().sites.at(site).stay);
  welcome->mutable_last_admitted()->Assign(decision.last_admitted.begin(), decision.last_admitted.end());
  for (int p = 0; continues && p < welcome->last_admitted_size() && p < join.versions_size(); ++p) {
    // It has taken all updates up to there: a contribution still pending was too late for them, and was lost with the
    // state.
    if (Owns(p) && join.versions(p) == welcome->last_admitted(p) + 1) {
      welcome->set_last_admitted(p, welcome->last_admitted(p) - 1);
    }
  }
  claims_.ProveAdmitted(site, welcome);
  members_.Send(site, answer, outbox_);
  if (rounds_->state().sites.at(site).state == core::SiteState::kDraining) SendDrain(site);  // it may not know
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
  if (progress.eval_loss) NoteEvaluation(site, progress);
  member.progress = std::make_shared<const core::Progress>(std::move(progress));
  Publish();
}

void Coordinator::NoteEvaluation(const core::SiteId& site, const core::Progress& progress) {
  if (data_.EvaluatesForAll(site)) {
    eval_loss_.latest = progress.eval_loss;
    eval_loss_.versions = progress.eval_versions;
    if (!eval_loss_.start) eval_loss_.start = eval_loss_.latest;
  } else {
    eval_loss_.by_site[site] = {.loss = *progress.eval_loss, .versions = progress.eval_versions};
  }
  outbox_.Store(eval_loss_);
}

void Coordinator::Leave(const SitePeer* peer, const v1::Leave& leave) {
  core::MutexLock lock(mutex_);
  const core::SiteId site = members_.SiteOf(peer);
  if (site.empty()) return;
  if (rounds_->follows()) {  // shard 0 will announce its meaning
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
  Member& member = members_[site];
  members_.Detach(site);
  member.silent_ms = options_.clock->NowMs();
  rounds_->Disconnected(site, member.session, options_.clock->NowMs());
  spdlog::warn("site {}: its control stream broke; its name is kept for {} ms", site,
               options_.config.membership.lease_ms);
}

}  // namespace causeway::server
