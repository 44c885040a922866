#include "server/run/run_figures.h"

#include <algorithm>

namespace causeway::server {

using core::FragmentId;
using core::SiteId;
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

}  // namespace causeway::server
