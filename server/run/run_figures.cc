#include "server/run/run_figures.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "formats/run_yaml.h"
#include "server/rounds/run_facts.h"
#include "server/run/run_parts.h"
#include "transport/messages.h"

namespace causeway::server {

using core::FragmentId;
using core::SiteId;
using core::SiteRecord;
using core::SiteState;
using core::Version;

void RunFigures::Begun(FragmentId fragment, Version version, const SiteId& site) {
  core::MutexLock lock(mutex_);
  log_.Begun(fragment, version, site, clock_.UnixMs());
}

void RunFigures::Arrived(FragmentId fragment, Version version, const SiteId& site, int64_t begun_ms) {
  const int64_t took_ms = clock_.NowMs() - begun_ms;
  const int64_t unix_ms = clock_.UnixMs();
  core::MutexLock lock(mutex_);
  log_.Arrived(fragment, version, site, unix_ms - took_ms, unix_ms);
  times_.up.Add(SecondsOf(took_ms));
}

void RunFigures::Restored(FragmentId fragment, Version version, const SiteId& site) {
  const int64_t unix_ms = clock_.UnixMs();
  core::MutexLock lock(mutex_);
  log_.Arrived(fragment, version, site, unix_ms, unix_ms);
}

void RunFigures::Forget(FragmentId fragment, const SiteId& site) {
  core::MutexLock lock(mutex_);
  log_.Forget(fragment, site);
}

void RunFigures::Forget(const SiteId& site) {
  core::MutexLock lock(mutex_);
  cosines_.erase(site);
}

void RunFigures::Decided(FragmentId fragment, Version version, const std::string& reason, int64_t unix_ms,
                         double took_s) {
  core::MutexLock lock(mutex_);
  log_.Decided(fragment, version, reason, unix_ms);
  times_.rounds.Add(took_s);
}

void RunFigures::Merged(const MergedRound& merged) {
  const FragmentId fragment = merged.round.fragment;
  const core::AnchorDigest committed = merged.committed;
  const StepProducts& products = merged.result.products;
  core::MutexLock lock(mutex_);
  log_.Merged(fragment, committed, clock_.UnixMs());
  if (merged.round.rolled_back_to) {
    gradients_.erase(fragment);
    return;
  }
  times_.merges.Add(merged.merge_s);
  gradients_[fragment].Add(committed.version, merged.round.outer, {products.gg, products.gv, products.vv});
  for (size_t i = 0; i < merged.result.cosines.size(); ++i) {
    const double cosine = merged.result.cosines[i];
    cosines_[merged.round.contributors[i].site] = {fragment, committed.version, cosine};
  }
}

void RunFigures::Taken(const v1::DownloadRequest& request, int64_t begun_ms) {
  const int64_t unix_ms = clock_.UnixMs();
  const int64_t begun_unix_ms = unix_ms - (clock_.NowMs() - begun_ms);
  core::MutexLock lock(mutex_);
  const std::optional<int64_t> took_ms =
      log_.Taken(request.fragment(), request.update_base() + 1, request.context().site(), request.stripe(),
                 std::max(1, request.num_stripes()), begun_unix_ms, unix_ms);
  if (took_ms) times_.down.Add(SecondsOf(*took_ms));
}

void RunFigures::AddTo(StatusSnapshot& snapshot) const {
  core::MutexLock lock(mutex_);
  for (FragmentStatus& fragment : snapshot.fragments) {
    if (const auto found = gradients_.find(fragment.id); found != gradients_.end()) {
      fragment.gradient = found->second.Figures();
    }
  }
  for (SiteStatus& site : snapshot.sites) {
    if (const auto found = cosines_.find(site.name); found != cosines_.end()) site.cosine = found->second;
  }
  snapshot.rounds = log_.rounds();
  snapshot.times = times_;
}

// ---- The status ----

namespace {

constexpr int64_t kLongJoinMs = 30'000;  // a joiner that takes longer shows the reason
constexpr int64_t kCompletedShownMs = 600'000;

void SetContributing(const RunParts& run, const SiteRecord& record, SiteStatus& status) {
  status.contributing = false;
  if (!core::IsActive(record.state)) {
    status.contributing_reason = absl::StrCat(core::SiteStateName(record.state), ": ", record.reason);
    return;
  }
  std::optional<core::Version> first;  // of the round that will take it
  for (FragmentId p = 0; p < static_cast<FragmentId>(record.first_versions.size()); ++p) {
    if (!run.options.shard.Owns(p)) continue;
    status.contributing |= record.first_versions[p] <= run.rules->state().versions[p];
    first = std::min(first.value_or(record.first_versions[p]), record.first_versions[p]);
  }
  if (record.quarantined) {
    status.contributing = false;
    status.contributing_reason = record.reason;
  } else if (!status.contributing) {
    status.contributing_reason =
        absl::StrCat("it has entered, and takes part from version ", first.value_or(0) + 1, " on");
  } else if (status.progress->completing && run.options.config.sync.mode == core::SyncMode::kQuorum) {
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

// The reason why a site has no place yet.
std::string WhyJoining(const RunParts& run, const SiteId& site) {
  if (!run.model.fact().stays()) {
    if (run.model.fact().seeder().empty())
      return "the initial parameters, which have not been requested from any site yet";
    if (run.model.fact().seeder() != site) {
      return absl::StrCat("the initial parameters, which site ", run.model.fact().seeder(), " was asked for");
    }
    const auto own = std::ranges::count_if(run.model.fact().map().fragments(), [&run](const core::Fragment& fragment) {
      return run.options.shard.Owns(fragment.id);
    });
    return absl::StrCat("its initial parameters, of which ", run.uploads.seeding.NumArrived(), " of ", own,
                        " fragments are here");
  }
  if (!run.rules->IsReady(site)) return "its anchors";
  return absl::StrCat("its place: ", run.rules->Reason());
}

SiteStatus StatusOf(const RunParts& run, const SiteId& site, const SiteRecord& record) {
  SiteStatus status{.name = site, .state = record.state, .reason = record.reason, .lost = IsLost(record)};
  status.finished = record.state == core::SiteState::kGone && record.ended == core::Ended::kFinished;
  const int64_t now_ms = run.options.clock->NowMs();
  if (const Member* const found = run.members.Find(site)) {
    const Member& member = *found;
    status.progress = member.progress;
    status.up_bytes = member.meters->up.total();
    status.down_bytes = member.meters->down.total();
    status.up_bytes_per_s = member.meters->up.bytes_per_s();
    status.down_bytes_per_s = member.meters->down.bytes_per_s();
    if (run.said.rounds > 0) status.merged_weight = member.merged_weight / static_cast<double>(run.said.rounds);
    if (member.joined_ms) status.joined_s = SecondsOf(now_ms - *member.joined_ms);
    if (member.silent_ms && record.state != SiteState::kGone) {
      const int64_t left_ms = *member.silent_ms + run.settings.newest().membership.lease_ms - now_ms;
      status.lease_s_left = SecondsOf(std::max<int64_t>(0, left_ms));
    }
    status.last_merged = member.last_merged;
    status.missed = member.missed;
    status.staleness = member.staleness;
    status.norm = member.norm;
    const auto shown = [now_ms](const std::optional<Member::Complaint>& complaint) {
      return complaint && now_ms - complaint->last_ms < kComplaintMs ? complaint->why : "";
    };
    status.noisy = shown(member.flood);
    status.rival = shown(member.rival);
    if (core::IsJoining(record.state) && now_ms - member.joining_ms > kLongJoinMs) {
      status.reason =
          absl::StrCat("joining for ", (now_ms - member.joining_ms) / 1000, " s, waits for ", WhyJoining(run, site));
    }
  }
  if (const auto said = run.admission.data.known().find(site); said != run.admission.data.known().end())
    status.data = said->second;
  if (const auto eval = run.eval_loss.by_site.find(site); eval != run.eval_loss.by_site.end()) {
    status.eval = {eval->second.loss, eval->second.versions};
  }
  double squares = 0;
  for (const auto& merged : record.merged) {
    if (!merged.empty()) squares += merged.back().admitted.norm * merged.back().admitted.norm;
  }
  status.sent_norm = std::sqrt(squares);
  status.refusals = record.refusals;
  status.quarantined = record.quarantined;
  SetContributing(run, record, status);
  return status;
}

}  // namespace

StatusSnapshot SnapshotOf(const RunParts& run, int64_t started_ms) {
  const core::RoundState& state = run.rules->state();
  const core::RunConfig& config = run.settings.newest();
  StatusSnapshot snapshot{
      .run_id = run.options.config.run_id,
      .protocol = transport::kProtocol,
      .epoch = run.journal.identity().epoch,
      .shard = run.options.shard,
      .state = RunStateName(run.rules->run_state()),
      .reason = run.rules->Reason(),
      .uptime_s = SecondsOf(run.options.clock->NowMs() - started_ms),
      .parameters = run.model.fact().known() ? core::NumParameters(run.model.fact().map().manifest()) : 0,
      .codec = config.codec,
      .codec_reason_up = run.codecs.reason_up(),
      .codec_reason_down = run.codecs.reason_down(),
      .grpc = run.options.grpc,
      .config_json = run.settings.revision() == 0 ? run.options.config_json : formats::RunConfigJson(config),
      .settings = run.settings.After(0),
      .eval_loss_start = run.eval_loss.start,
      .eval_loss_latest = run.eval_loss.latest,
      .eval_loss_versions = run.eval_loss.versions,
      .eval_loss_reason = run.admission.data.WhyNoLoss(),
      .unix_ms = run.options.clock->UnixMs(),
      .mode = run.options.config.sync.mode,
      .min_sites = config.membership.min_sites,
      .min_quorum = config.membership.min_quorum,
      .paused = state.paused,
      .stopped = state.stopped,
      .finished = state.finished,
      .rounds_decided = run.said.rounds};
  const auto* const lead = std::get_if<LeadShard>(&run.shard);
  if (lead != nullptr)
    snapshot.others.away = lead->shown.Away(run.options.shard, started_ms, run.options.clock->NowMs());
  snapshot.codec.up = run.codecs.up();
  snapshot.codec.down = run.codecs.down();
  for (const auto& [site, record] : state.sites) snapshot.sites.push_back(StatusOf(run, site, record));
  if (run.options.clock->NowMs() - started_ms < kCompletedShownMs)
    snapshot.completed = run.options.completed.value_or("");
  for (const auto& [site, found] : run.admission.strangers.Present(run.options.clock->NowMs())) {
    snapshot.strangers.push_back({site, std::string(DoubtName(found.doubt)), found.text});
  }
  snapshot.outliers = run.rules->Outliers();
  if (!run.model.fact().known() || !run.model.parameters()->is_set())
    return snapshot;  // before the seed nothing has a version
  for (const core::Fragment& fragment : run.model.fact().map().fragments()) {
    if (!run.options.shard.Owns(fragment.id)) continue;
    FragmentStatus& status = snapshot.fragments.emplace_back();
    status.id = fragment.id;
    status.parameters = fragment.parameters;
    status.committed = run.model.parameters()->Committed(fragment.id);
    for (const auto& [site, admitted] : state.contributions[fragment.id]) status.contributors.push_back(site);
    status.reason = run.rules->RoundReason(fragment.id);
    status.state =
        run.model.parameters()->Merging(fragment.id) ? "merging" : RoundPhaseName(run.rules->Phase(fragment.id));
  }
  if (lead != nullptr)
    lead->shown.AddTo(run.model.fact().map(), run.options.shard, run.options.clock->NowMs(), &snapshot);
  return snapshot;
}

}  // namespace causeway::server
