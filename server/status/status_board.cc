#include "server/status/status_board.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/status/metrics_text.h"

namespace causeway::server {
namespace {

uint64_t KeyOf(core::FragmentId fragment, core::Version version) {
  return static_cast<uint64_t>(fragment) << 48 | (static_cast<uint64_t>(version) & 0xffff'ffff'ffff);
}

double MedianOf(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

// The median of the other sites' losses, if the site's is apart from them.
std::optional<double> OthersIfApart(const StatusSnapshot& snapshot, const SiteStatus& site) {
  const auto loss_of = [](const SiteStatus& one) { return one.progress->loss; };
  std::vector<double> others;
  for (const SiteStatus& other : snapshot.sites) {
    if (&other == &site || !core::IsActive(other.state) || other.progress->step == 0) continue;
    if (std::isfinite(loss_of(other))) others.push_back(loss_of(other));
  }
  if (others.size() < 2 || !core::IsActive(site.state) || !std::isfinite(loss_of(site))) return std::nullopt;
  const double median = MedianOf(others);
  for (double& loss : others) loss = std::fabs(loss - median);
  const double deviation = std::max(MedianOf(others), StatusHistory::kLeastDeviation * std::fabs(median));
  const bool apart = std::fabs(loss_of(site) - median) > StatusHistory::kApartDeviations * deviation;
  return apart ? std::optional(median) : std::nullopt;
}

constexpr int64_t kHostMs = 1'000;  // how often the disk is checked

// In synchronous mode every site needs every fragment: without one of its shards the run stands still.
void ShowPaused(StatusSnapshot& snapshot) {
  if (snapshot.others.away.empty() || snapshot.state != "training" || snapshot.mode != core::SyncMode::kSynchronous)
    return;
  const AwayShard& away = snapshot.others.away.front();
  snapshot.state = "paused";
  snapshot.reason = absl::StrFormat(
      "shard %d has not been heard of for %.0f s, and every round waits for its fragments", away.shard, away.away_s);
}

}  // namespace

void FindMismatches(StatusSnapshot& snapshot) {
  std::unordered_map<uint64_t, uint64_t> digests;
  for (const auto& round : snapshot.rounds) {
    if (round->digest) digests[KeyOf(round->fragment, round->version)] = *round->digest;
  }
  for (const FragmentStatus& fragment : snapshot.fragments) {
    digests[KeyOf(fragment.id, fragment.committed.version)] = fragment.committed.digest;
  }
  for (SiteStatus& site : snapshot.sites) {
    site.mismatches.clear();
    for (const auto& [fragment, anchor] : site.progress->digests) {
      const auto committed = digests.find(KeyOf(fragment, anchor.version));
      if (committed != digests.end() && committed->second != anchor.digest) site.mismatches.push_back(fragment);
    }
  }
}

void StatusHistory::NoteBytes(const StatusSnapshot& snapshot, SiteStatus& status, Site& site) {
  if (status.state != core::SiteState::kGone) {
    std::deque<Bytes>& window = site.window;
    if (window.empty()) window.push_back({snapshot.uptime_s - status.joined_s, 0, 0});  // it may have sent by now
    window.push_back({snapshot.uptime_s, status.up_bytes, status.down_bytes});
    // Every start that is far enough back, so that nothing falls between two of them.
    for (; window.size() > 1; window.pop_front()) {
      const double seconds = snapshot.uptime_s - window.front().uptime_s;
      if (seconds < kPeakWindowS) break;
      const auto rate = [seconds](int64_t before, int64_t now) { return static_cast<double>(now - before) / seconds; };
      site.up_rate.peak = std::max(site.up_rate.peak, rate(window.front().up, window.back().up));
      site.down_rate.peak = std::max(site.down_rate.peak, rate(window.front().down, window.back().down));
    }
    if (status.joined_s > 0) {
      site.up_rate.mean = static_cast<double>(status.up_bytes) / status.joined_s;
      site.down_rate.mean = static_cast<double>(status.down_bytes) / status.joined_s;
    }
  }
  status.up_rate = site.up_rate;
  status.down_rate = site.down_rate;
}

namespace {

// Figures that begin at 0 in each stay or process count from there; positions that fall are positions still.
void Count(const core::Progress& before, const core::Progress& now, SiteCounts& counts) {
  if (before.tokens == 0 && before.wall_s == 0) return;  // no report yet
  const auto rise = [](double from, double to) { return std::max(0.0, to - from); };
  const auto since = [&](double from, double to) { return to < from ? to : to - from; };
  counts.steps += rise(static_cast<double>(before.step), static_cast<double>(now.step));
  counts.tokens += rise(static_cast<double>(before.tokens), static_cast<double>(now.tokens));
  counts.sent += rise(static_cast<double>(before.contributions_sent), static_cast<double>(now.contributions_sent));
  counts.merged +=
      rise(static_cast<double>(before.contributions_merged), static_cast<double>(now.contributions_merged));
  counts.stall_s += since(before.stall_s, now.stall_s);
  counts.compute_s += since(before.compute_s, now.compute_s);
}

}  // namespace

void StatusHistory::NoteProgress(const StatusSnapshot& snapshot, SiteStatus& status, Site& site) {
  if (status.progress != site.noted) {
    if (site.noted != nullptr) Count(*site.noted, *status.progress, site.counts);
    site.noted = status.progress;
    if (std::isfinite(status.progress->loss)) site.losses.Add({snapshot.unix_ms, status.progress->loss});
    site.reports_apart = OthersIfApart(snapshot, status) ? site.reports_apart + 1 : 0;
  }
  if (site.reports_apart >= kReportsApart) status.loss_of_others = OthersIfApart(snapshot, status);
  status.loss_history = site.losses.points();
  status.counts = site.counts;
}

void StatusHistory::NoteRedials(const StatusSnapshot& snapshot, SiteStatus& status, Site& site) {
  const int64_t redials = status.progress->link.redials;
  if (redials > site.redials) site.redialled_unix_ms = snapshot.unix_ms;
  site.redials = redials;
  const bool lately = site.redialled_unix_ms && std::abs(snapshot.unix_ms - *site.redialled_unix_ms) <= kRedialShownMs;
  if (lately) status.redialled_unix_ms = site.redialled_unix_ms;
}

// A round of all fragments is complete when all contributions are merged. The residual is measured by what the site
// sends, so that a change of the learning rate, or the start of a sparse codec, is no growth.
void StatusHistory::NoteResidual(const StatusSnapshot& snapshot, SiteStatus& status, Site& site) {
  const auto fragments = static_cast<int64_t>(std::max<size_t>(1, snapshot.fragments.size()));
  const int64_t rounds = status.progress->contributions_merged / fragments;
  if (status.sent_norm <= 0) return;
  const double norm = status.progress->residual_norm / status.sent_norm;
  if (rounds < site.rounds) {  // a site of that name began anew
    site.norms.clear();
    site.largest_norm = 0;
    site.has_earlier = false;
  }
  if (rounds != site.rounds && rounds > 0) {
    site.norms.push_back(norm);
    if (site.norms.size() > kTrendRounds + 1) {
      site.largest_norm = std::max(site.largest_norm, site.norms.front());
      site.has_earlier = true;
      site.norms.pop_front();
    }
  }
  site.rounds = rounds;
  if (!site.has_earlier) return;
  status.residual = ResidualTrend{
      .now = norm, .before = site.norms.front(), .largest_ago = std::max(site.largest_norm, site.norms.front())};
}

void StatusHistory::NoteEval(StatusSnapshot& snapshot) {
  if (snapshot.eval_loss_latest && snapshot.eval_loss_versions != noted_eval_) {
    noted_eval_ = snapshot.eval_loss_versions;
    const auto least = std::ranges::min_element(noted_eval_);
    if (std::isfinite(*snapshot.eval_loss_latest)) {
      evals_.Add({snapshot.unix_ms, least == noted_eval_.end() ? 0 : *least, *snapshot.eval_loss_latest});
    }
  }
  snapshot.eval_history = evals_.points();
}

void StatusHistory::Note(StatusSnapshot& snapshot) {
  FindMismatches(snapshot);
  for (SiteStatus& status : snapshot.sites) {
    Site& site = sites_[status.name];
    NoteBytes(snapshot, status, site);
    NoteProgress(snapshot, status, site);
    NoteResidual(snapshot, status, site);
    NoteRedials(snapshot, status, site);
    if (!status.mismatches.empty()) site.mismatched_unix_ms = snapshot.unix_ms;
    if (site.mismatched_unix_ms && std::abs(snapshot.unix_ms - *site.mismatched_unix_ms) <= kMismatchShownMs) {
      status.mismatched_unix_ms = site.mismatched_unix_ms;
    }
  }
  NoteEval(snapshot);
}

StatusBoard::StatusBoard(StatusBoardOptions options) : options_(std::move(options)), host_(options_.host) {}

void StatusBoard::Publish(StatusSnapshot snapshot) {
  const int64_t now_ms = options_.clock->NowMs();
  if (host_ms_ == 0 || now_ms >= host_ms_ + kHostMs) {
    host_ms_ = now_ms;
    host_status_ = host_.Read();
  }
  snapshot.version = options_.version;
  snapshot.host = host_status_;
  history_.Note(snapshot);
  ShowPaused(snapshot);
  snapshot.alarms = FindAlarms(snapshot);
  alarm_book_.Note(snapshot.alarms, snapshot.unix_ms);
  auto page = std::make_shared<Page>();
  page->snapshot = std::move(snapshot);
  page->published_ms = now_ms;
  core::MutexLock lock(mutex_);
  page_.swap(page);  // the previous one is freed after the lock is released
}

void StatusBoard::SetReady() { SetNotReady(""); }

void StatusBoard::SetNotReady(const std::string& why) {
  core::MutexLock lock(mutex_);
  not_ready_ = why;
}

std::shared_ptr<StatusBoard::Page> StatusBoard::CurrentPage() const {
  core::MutexLock lock(mutex_);
  return page_;
}

template <typename Render>
SharedText StatusBoard::Rendered(SharedText Page::*text, Render render) const {
  const std::shared_ptr<Page> page = CurrentPage();
  if (page == nullptr) return nullptr;
  core::MutexLock lock(page->mutex);
  SharedText& rendered = (*page).*text;
  if (rendered == nullptr) rendered = std::make_shared<const std::string>(render(page->snapshot));
  return rendered;
}

SharedText StatusBoard::Status(Details details) const {
  const auto render = [details](const StatusSnapshot& snapshot) { return StatusJson(snapshot, details); };
  return Rendered(details == Details::kFull ? &Page::full_status : &Page::status, render);
}

SharedText StatusBoard::Timeline() const {
  return Rendered(&Page::timeline, [](const StatusSnapshot& snapshot) { return TimelineJson(snapshot); });
}

SharedText StatusBoard::Metrics() const {
  return Rendered(&Page::metrics, [this](const StatusSnapshot& snapshot) {
    return MetricsText(snapshot, ReadProcessStatus(), event_streams_);
  });
}

Answer StatusBoard::Healthy() const {
  const std::shared_ptr<Page> page = CurrentPage();
  if (page == nullptr) return {.ok = true};  // it starts
  if (!page->snapshot.failure.empty()) return {.reason = page->snapshot.failure};
  const int64_t age_ms = options_.clock->NowMs() - page->published_ms;
  if (age_ms <= kSilentMs) return {.ok = true};
  return {.reason = absl::StrCat("the coordinator has not looked at its run for ", age_ms / 1000, " s")};
}

Answer StatusBoard::Ready() const {
  if (Answer healthy = Healthy(); !healthy.ok) return healthy;
  core::MutexLock lock(mutex_);
  return {.ok = not_ready_.empty(), .reason = not_ready_};
}

}  // namespace causeway::server
