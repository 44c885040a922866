// The part of Coordinator for readers: the snapshot for the status board, and the log of rounds.
#include <spdlog/spdlog.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/digest.h"
#include "server/run/coordinator.h"
#include "transport/messages.h"

namespace causeway::server {
namespace {

using core::FragmentId;
using core::SiteId;
using core::SiteRecord;
using core::SiteState;

constexpr int64_t kLongJoinMs = 30'000;    // a joiner that takes longer shows the reason
constexpr int64_t kShownFloodMs = 60'000;  // after the last stream ended for this reason
constexpr int64_t kCompletedShownMs = 600'000;

double Seconds(int64_t ms) { return static_cast<double>(ms) / 1000.0; }

}  // namespace

std::string Coordinator::WhyMissed(const CloseRound& action, const SiteId& site, const SiteRecord& record) const {
  const core::Version first = record.first_versions[action.fragment];
  const Member& member = *members_.Find(site);
  if (first > action.base) return absl::StrCat("takes part from version ", first + 1, " on");
  if (member.silent_ms) return "its control stream was broken";
  if (member.progress->completing) return "it has done all its steps";
  const char* where = open_.Find(action.fragment, site) != nullptr ? "its contribution was on its way"
                                                                   : "it had not begun to send its contribution";
  return absl::StrCat(where, " when the round closed: ", action.reason);
}

void Coordinator::NoteDecided(const CloseRound& action) {
  const int64_t unix_ms = options_.clock->UnixMs();
  const core::Version version = action.base + 1;
  int64_t first_ms = options_.clock->NowMs();
  const int64_t now_ms = first_ms;
  for (const CloseRound::Contributor& contributor : action.contributors) {
    first_ms = std::min(first_ms, open_.Find(action.fragment, contributor.site)->begun_ms);
    Member& member = members_[contributor.site];
    member.last_merged = {action.fragment, version, unix_ms};
    member.staleness = action.base - contributor.base;
  }
  for (const auto& [site, record] : rounds_->state().sites) {
    const bool contributed = std::ranges::count(action.contributors, site, &CloseRound::Contributor::site) > 0;
    Member* const member = members_.Find(site);
    if (contributed || !core::IsActive(record.state) || member == nullptr) continue;
    member->missed = {action.fragment, version, WhyMissed(action, site, record)};
  }
  figures_.Decided(action.fragment, version, action.reason, unix_ms, Seconds(now_ms - first_ms));
}

void Coordinator::OnMerged(const MergedRound& merged) {
  spdlog::info("fragment {}: version {}, digest {}", merged.round.fragment, merged.committed.version,
               core::DigestText(merged.committed.digest));
  figures_.Merged(merged);
}

void Coordinator::Taken(const v1::DownloadRequest& request, int64_t begun_ms) {
  if (request.source_case() != v1::DownloadRequest::kUpdateBase) return;  // an anchor belongs to no round
  {
    core::MutexLock lock(mutex_);
    if (members_.Find(request.context().site()) == nullptr) return;
  }
  figures_.Taken(request, begun_ms);
}

// ---- The snapshot ----

void Coordinator::SetContributing(const SiteRecord& record, SiteStatus& status) const {
  status.contributing = false;
  if (!core::IsActive(record.state)) {
    status.contributing_reason = absl::StrCat(core::SiteStateName(record.state), ": ", record.reason);
    return;
  }
  std::optional<core::Version> first;  // of the round that will take it
  for (FragmentId p = 0; p < static_cast<FragmentId>(record.first_versions.size()); ++p) {
    if (!Owns(p)) continue;
    status.contributing |= record.first_versions[p] <= rounds_->state().versions[p];
    first = std::min(first.value_or(record.first_versions[p]), record.first_versions[p]);
  }
  if (record.quarantined) {
    status.contributing = false;
    status.contributing_reason = record.reason;
  } else if (!status.contributing) {
    status.contributing_reason =
        absl::StrCat("it has entered, and takes part from version ", first.value_or(0) + 1, " on");
  } else if (status.progress->completing && options_.config.sync.mode == core::SyncMode::kQuorum) {
    status.contributing = false;
    status.contributing_reason = "it has done all its steps";
  } else if (status.lease_s_left) {
    status.contributing_reason = "its control stream is broken; rounds wait for it until its lease ends";
  } else if (record.state == SiteState::kDraining) {
    status.contributing_reason = "it leaves after what it has in flight";
  } else {
    status.contributing_reason = "open rounds expect it";
  }
}

void Coordinator::Flooded(const SiteId& site, const std::string& why) {
  core::MutexLock lock(mutex_);
  Member* const member = members_.Find(site);
  if (member == nullptr) return;
  const int64_t now_ms = options_.clock->NowMs();
  std::optional<Member::Flood>& flood = member->flood;
  const bool noted = flood && now_ms - flood->noted_ms < kShownFloodMs;
  flood = Member::Flood{.last_ms = now_ms, .noted_ms = noted ? flood->noted_ms : now_ms, .why = why};
  if (noted) return;
  outbox_.Note("noisy", site, -1, why);
  Publish();
}

// The reason why a site has no place yet.
std::string Coordinator::WhyJoining(const SiteId& site) const {
  if (!model_.stays()) {
    if (model_.seeder().empty()) return "the initial parameters, which have not been requested from any site yet";
    if (model_.seeder() != site) {
      return absl::StrCat("the initial parameters, which site ", model_.seeder(), " was asked for");
    }
    const auto own = std::ranges::count_if(model_.map().fragments(),
                                           [this](const core::Fragment& fragment) { return Owns(fragment.id); });
    return absl::StrCat("its initial parameters, of which ", seeding_.NumArrived(), " of ", own, " fragments are here");
  }
  if (!rounds_->IsReady(site)) return "its anchors";
  return absl::StrCat("its place: ", rounds_->Reason());
}

SiteStatus Coordinator::MakeSiteStatus(const SiteId& site, const SiteRecord& record) const {
  SiteStatus status{.name = site, .state = record.state, .reason = record.reason, .lost = IsLost(record)};
  const int64_t now_ms = options_.clock->NowMs();
  if (const Member* const found = members_.Find(site)) {
    const Member& member = *found;
    status.progress = member.progress;
    status.up_bytes = member.meters->up.total();
    status.down_bytes = member.meters->down.total();
    status.up_bytes_per_s = member.meters->up.bytes_per_s();
    status.down_bytes_per_s = member.meters->down.bytes_per_s();
    if (rounds_closed_ > 0) status.merged_weight = member.merged_weight / static_cast<double>(rounds_closed_);
    if (member.joined_ms) status.joined_s = Seconds(now_ms - *member.joined_ms);
    if (member.silent_ms && record.state != SiteState::kGone) {
      const int64_t left_ms = *member.silent_ms + options_.config.membership.lease_ms - now_ms;
      status.lease_s_left = Seconds(std::max<int64_t>(0, left_ms));
    }
    status.last_merged = member.last_merged;
    status.missed = member.missed;
    status.staleness = member.staleness;
    status.norm = member.norm;
    if (member.flood && now_ms - member.flood->last_ms < kShownFloodMs) status.noisy = member.flood->why;
    if (record.state == SiteState::kJoining && now_ms - member.joining_ms > kLongJoinMs) {
      status.reason =
          absl::StrCat("joining for ", (now_ms - member.joining_ms) / 1000, " s, waits for ", WhyJoining(site));
    }
  }
  if (const auto said = admission_.data().known().find(site); said != admission_.data().known().end())
    status.data = said->second;
  if (const auto eval = eval_loss_.by_site.find(site); eval != eval_loss_.by_site.end()) {
    status.eval = {eval->second.loss, eval->second.versions};
  }
  status.refusals = record.refusals;
  status.quarantined = record.quarantined;
  SetContributing(record, status);
  return status;
}

StatusSnapshot Coordinator::MakeSnapshot() const {
  const core::RoundState& state = rounds_->state();
  StatusSnapshot snapshot{.run_id = options_.config.run_id,
                          .protocol = transport::kProtocol,
                          .epoch = journal_->epoch(),
                          .shard = options_.shard,
                          .state = RunStateName(rounds_->run_state()),
                          .reason = rounds_->Reason(),
                          .uptime_s = Seconds(options_.clock->NowMs() - started_ms_),
                          .parameters = model_.known() ? core::NumParameters(model_.map().manifest()) : 0,
                          .codec = options_.config.codec,
                          .codec_reason_up = codecs_.reason_up(),
                          .codec_reason_down = codecs_.reason_down(),
                          .config_json = options_.config_json,
                          .eval_loss_start = eval_loss_.start,
                          .eval_loss_latest = eval_loss_.latest,
                          .eval_loss_versions = eval_loss_.versions,
                          .eval_loss_reason = admission_.data().WhyNoLoss(),
                          .unix_ms = options_.clock->UnixMs(),
                          .mode = options_.config.sync.mode,
                          .min_sites = options_.config.membership.min_sites,
                          .min_quorum = options_.config.membership.min_quorum,
                          .paused = state.paused,
                          .stopped = state.stopped,
                          .finished = state.finished,
                          .rounds_decided = rounds_closed_};
  snapshot.away = shown_shards_.Away(options_.shard, started_ms_, options_.clock->NowMs());
  snapshot.codec.up = codecs_.up();
  snapshot.codec.down = codecs_.down();
  for (const auto& [site, record] : state.sites) snapshot.sites.push_back(MakeSiteStatus(site, record));
  if (options_.clock->NowMs() - started_ms_ < kCompletedShownMs) snapshot.completed = options_.completed.value_or("");
  for (const auto& [site, found] : admission_.strangers().Present(options_.clock->NowMs())) {
    snapshot.strangers.push_back({site, std::string(DoubtName(found.doubt)), found.text});
  }
  for (const Outlier& outlier : rounds_->outliers()) {
    snapshot.outliers.push_back({outlier.site, outlier.fragment, outlier.base + 1, outlier.text});
  }
  if (!model_.known() || !parameters_->is_set()) return snapshot;  // before the seed nothing has a version
  for (const core::Fragment& fragment : model_.map().fragments()) {
    if (!Owns(fragment.id)) continue;
    FragmentStatus& status = snapshot.fragments.emplace_back();
    status.id = fragment.id;
    status.parameters = fragment.parameters;
    status.committed = parameters_->Committed(fragment.id);
    for (const auto& [site, admitted] : state.contributions[fragment.id]) status.contributors.push_back(site);
    status.reason = rounds_->RoundReason(fragment.id);
    status.state = parameters_->Merging(fragment.id) ? "merging" : RoundPhaseName(rounds_->Phase(fragment.id));
  }
  shown_shards_.AddTo(model_.map(), options_.shard, options_.clock->NowMs(), &snapshot);
  return snapshot;
}

StatusSnapshot Coordinator::Status() const {
  StatusSnapshot snapshot;
  {
    core::MutexLock lock(mutex_);
    snapshot = MakeSnapshot();
  }
  if (const absl::Status status = this->status(); !status.ok()) snapshot.failure = std::string(status.message());
  const SyncFigures syncs = journal_->syncs();
  snapshot.syncs = {.count = syncs.count, .seconds = syncs.seconds, .slowest_s = syncs.slowest_s};
  const ScrubFigures scrub = journal_->scrub();
  snapshot.scrub = {.passes = scrub.passes, .bytes = scrub.bytes, .ended_unix_ms = scrub.ended_unix_ms, .damages = {}};
  for (const DiskDamage& damage : scrub.damages) snapshot.scrub.damages.push_back(damage.Text());
  figures_.AddTo(snapshot);
  return snapshot;
}

void Coordinator::PublishStatus() {
  if (options_.board == nullptr) return;
  StatusSnapshot snapshot = Status();
  report_.Show(snapshot);
  options_.board->Publish(std::move(snapshot));
}

}  // namespace causeway::server
