#include "server/service/coordinator.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <iterator>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/check.h"
#include "transport/messages.h"

namespace causeway::server {
namespace {

std::string NewLineage() {
  std::random_device device;
  return absl::StrFormat("%08x%08x", device(), device());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Coordinator>> Coordinator::Create(CoordinatorOptions options, StateStore* store,
                                                                 std::optional<SavedState> saved) {
  std::unique_ptr<Coordinator> coordinator(new Coordinator(std::move(options), store));
  if (saved) RETURN_IF_ERROR(coordinator->Restore(*std::move(saved)));
  return coordinator;
}

Coordinator::Coordinator(CoordinatorOptions options, StateStore* store)
    : options_(std::move(options)), store_(store), started_ms_(options_.now_ms()), lineage_(NewLineage()) {
  const core::RunConfig& config = options_.config;
  rounds_ = std::make_unique<RoundTable>(
      RoundRules{config.sync.Schedule(), config.membership.min_sites, config.membership.lease_ms}, core::RoundState{},
      started_ms_);
}

void Coordinator::SetMap(core::FragmentMap map) {
  map_ = std::move(map);
  open_.resize(map_->num_fragments());
  const core::RunConfig& config = options_.config;
  parameters_ = std::make_unique<Parameters>(
      *map_, MergeSettings{config.outer, codecs::DownLeg(config), config.codec.feedback_down, config.codec.zstd},
      [this](core::FragmentId fragment, core::AnchorDigest committed) { OnMerged(fragment, committed); });
}

v1::RunDescription Coordinator::Describe() const {
  core::MutexLock lock(mutex_);
  v1::RunDescription description;
  description.set_protocol(transport::kProtocol);
  description.set_run_id(options_.config.run_id);
  description.set_epoch(epoch_);
  description.set_lineage(lineage_);
  description.set_run_config(options_.run_config);
  description.set_num_shards(1);
  if (!map_) return description;
  transport::ToProto(map_->manifest(), description.mutable_manifest());
  transport::ToProto(*map_, description.mutable_fragments());
  if (!parameters_->is_set()) return description;
  for (int p = 0; p < map_->num_fragments(); ++p) description.add_versions(parameters_->Committed(p).version);
  return description;
}

absl::Status Coordinator::CheckContext(const v1::Context& context) const {
  if (context.protocol() != transport::kProtocol) {
    return absl::FailedPreconditionError(absl::StrCat("expected protocol ", transport::kProtocol, ", got ",
                                                      context.protocol(), "; use the same version on both ends"));
  }
  if (!context.run_id().empty() && context.run_id() != options_.config.run_id) {
    return absl::FailedPreconditionError(
        absl::StrCat("expected run ", options_.config.run_id, ", got ", context.run_id()));
  }
  if (context.epoch() > epoch_) {
    return absl::FailedPreconditionError(absl::StrCat("the site has seen epoch ", context.epoch(),
                                                      " of this run, this coordinator is at ", epoch_,
                                                      ": it is not the latest one"));
  }
  if (!context.lineage().empty() && context.lineage() != lineage_) {
    return absl::FailedPreconditionError(absl::StrCat("the site holds parameters of lineage ", context.lineage(),
                                                      ", this coordinator's state is of lineage ", lineage_,
                                                      " (a new or another state directory); start the site afresh"));
  }
  return absl::OkStatus();
}

absl::StatusOr<core::FragmentMap> Coordinator::CheckJoin(const v1::Join& join) {
  RETURN_IF_ERROR(CheckContext(join.context()));
  if (!core::IsValidName(join.context().site())) {
    return absl::InvalidArgumentError(
        absl::StrCat("site name: expected 1 to 64 letters, digits, '.', '_' or '-', not starting with '.', got '",
                     join.context().site(), "'"));
  }
  if (join.context().session().empty()) return absl::InvalidArgumentError("session: expected one, got none");
  for (core::CodecId codec : {options_.config.codec.up, options_.config.codec.down}) {
    if (std::count(join.codecs().begin(), join.codecs().end(), static_cast<uint32_t>(codec)) > 0) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("the run uses codec ", core::CodecName(codec), ", which the site does not know"));
  }
  ASSIGN_OR_RETURN(const core::Manifest manifest, transport::FromProto(join.manifest()));
  if (map_) {
    RETURN_IF_ERROR(core::CompareManifests(map_->manifest(), manifest));
    return *map_;
  }
  const core::SyncConfig& sync = options_.config.sync;
  return BuildFragmentMap(manifest, sync.num_fragments, sync.fragment_assignment);
}

void Coordinator::Join(const std::shared_ptr<SitePeer>& peer, const v1::Join& join) {
  core::MutexLock lock(mutex_);
  const core::SiteId& site = join.context().site();
  v1::CoordinatorMessage answer;
  JoinDecision decision;
  absl::StatusOr<core::FragmentMap> map = CheckJoin(join);
  if (!map.ok()) {
    decision.reason = std::string(map.status().message());
  } else {
    decision = rounds_->Join(site, join.context().session(), {join.versions().begin(), join.versions().end()},
                             options_.now_ms());
  }
  // What an earlier stay left behind goes first, with its stream; the seed is asked for when there is the new one.
  Actions before;
  std::copy_if(decision.actions.begin(), decision.actions.end(), std::back_inserter(before),
               [](const Action& action) { return !std::holds_alternative<RequestSeed>(action); });
  Perform(before);
  if (!decision.accepted) {
    spdlog::warn("site {}: refused: {}", site, decision.reason);
    answer.mutable_refused()->set_reason(decision.reason);
    answer.mutable_refused()->set_retry_after_ms(decision.retry_after_ms);
    peer->Send(answer);
    peer->Close();
    return;
  }
  if (!map_) SetMap(*std::move(map));  // the first site of a run says what the model is
  Member& member = members_[site];
  if (member.peer != nullptr) member.peer->Close();
  member.peer = peer;
  member.session = join.context().session();
  spdlog::info("site {}: {}", site, decision.resumed ? "is back" : "joins");
  v1::Welcome* welcome = answer.mutable_welcome();
  welcome->set_epoch(epoch_);
  welcome->set_lineage(lineage_);
  welcome->set_resumed(decision.resumed);
  transport::ToProto(map_->manifest(), welcome->mutable_manifest());
  transport::ToProto(*map_, welcome->mutable_fragments());
  peer->Send(answer);
  if (rounds_->state().sites.at(site).state == core::SiteState::kDraining) SendDrain(site);  // it may not know
  for (const Action& action : decision.actions) {
    if (const auto* seed = std::get_if<RequestSeed>(&action)) Perform(*seed);
  }
  noted_reason_.clear();  // a newcomer wants to know why it waits
  NoteReasons();
}

core::SiteId Coordinator::SiteOf(const SitePeer* peer) const {
  for (const auto& [site, member] : members_) {
    if (member.peer.get() == peer) return site;
  }
  return "";
}

void Coordinator::Ready(const SitePeer* peer) {
  core::MutexLock lock(mutex_);
  const core::SiteId site = SiteOf(peer);
  if (site.empty()) return;
  Perform(rounds_->Ready(site, members_[site].session));
  NoteReasons();
}

void Coordinator::Progress(const SitePeer* peer, const v1::Progress& message) {
  core::MutexLock lock(mutex_);
  const core::SiteId site = SiteOf(peer);
  if (site.empty()) return;
  Member& member = members_[site];
  rounds_->Heard(site, member.session, options_.now_ms());
  const double loss = member.progress.loss;
  member.progress = transport::FromProto(message);
  if (std::isnan(member.progress.loss)) member.progress.loss = loss;  // nothing new to say
  if (!member.progress.eval_loss) return;
  eval_loss_.latest = member.progress.eval_loss;
  eval_loss_.versions = member.progress.eval_versions;
  if (!eval_loss_.start) eval_loss_.start = eval_loss_.latest;
}

void Coordinator::Leave(const SitePeer* peer, const v1::Leave& leave) {
  core::MutexLock lock(mutex_);
  const core::SiteId site = SiteOf(peer);
  if (site.empty()) return;
  Perform(rounds_->Leave(site, members_[site].session, leave.finished(), leave.reason()));
  NoteReasons();
}

void Coordinator::Disconnected(const SitePeer* peer) {
  core::MutexLock lock(mutex_);
  const core::SiteId site = SiteOf(peer);
  if (site.empty()) return;  // it left, or has another stream by now
  Member& member = members_[site];
  member.peer.reset();
  rounds_->Disconnected(site, member.session, options_.now_ms());
  spdlog::warn("site {}: its control stream broke; its name is kept for {} ms", site,
               options_.config.membership.lease_ms);
}

void Coordinator::SendTo(const core::SiteId& site, const v1::CoordinatorMessage& message) {
  if (const auto& peer = members_[site].peer; peer != nullptr) peer->Send(message);
}

void Coordinator::Perform(const Actions& actions) {
  // Rounds first: they take the contributions that sites which are gone leave behind.
  for (const Action& action : actions) {
    if (const auto* close = std::get_if<CloseRound>(&action)) Perform(*close);
  }
  for (const Action& action : actions) {
    if (std::holds_alternative<CloseRound>(action)) continue;
    std::visit([this](const auto& chosen) { Perform(chosen); }, action);
  }
}

void Coordinator::Perform(const RequestSeed& action) {
  const core::SessionId& session = members_[action.site].session;
  if (action.site != seeder_ || session != seeder_session_) seeds_.assign(map_->num_fragments(), nullptr);
  seeder_ = action.site;
  seeder_session_ = session;
  spdlog::info("site {}: is asked for the initial parameters", action.site);
  v1::CoordinatorMessage message;
  message.mutable_seed_request();
  SendTo(action.site, message);
}

void Coordinator::Perform(const Enter& action) {
  spdlog::info("site {}: enters after step {}", action.site, action.entry.step);
  v1::CoordinatorMessage message;
  transport::ToProto(action.entry, message.mutable_entry());
  SendTo(action.site, message);
}

void Coordinator::Perform(const CloseRound& action) {
  MergeJob job{.fragment = action.fragment,
               .base = action.base,
               .contributors = action.contributors,
               .weights = action.weights,
               .sites = action.sites};
  for (const core::SiteId& site : action.contributors) {
    job.contributions.push_back(open_[action.fragment].at(site));
  }
  open_[action.fragment].clear();
  parameters_->Merge(std::move(job));
}

void Coordinator::Perform(const Dropped& action) {
  spdlog::info("site {}: is out of the run: {}", action.site, action.reason);
  for (size_t p = 0; p < open_.size(); ++p) {
    if (!rounds_->state().contributions[p].contains(action.site)) open_[p].erase(action.site);
  }
  Member& member = members_[action.site];
  member.progress.in_flight.clear();
  if (member.peer != nullptr) member.peer->Close();
  member.peer.reset();
}

void Coordinator::NoteReasons() {
  const std::string reason = rounds_->Reason();
  if (reason == noted_reason_) return;
  noted_reason_ = reason;
  if (reason.empty()) return;
  spdlog::info("{}: {}", RunStateName(rounds_->run_state()), reason);
  v1::CoordinatorMessage message;
  message.mutable_notice()->set_reason(reason);
  for (const auto& [site, member] : members_) SendTo(site, message);
}

}  // namespace causeway::server
