#include "server/status/status_board.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/status/metrics_text.h"

namespace causeway::server {
namespace {

constexpr int64_t kHostMs = 1'000;  // how often the disk is checked

// In synchronous mode every site needs every fragment: without one of its shards the run stands still.
void ShowPaused(StatusSnapshot& snapshot) {
  if (snapshot.away.empty() || snapshot.state != "training" || snapshot.mode != core::SyncMode::kSynchronous) return;
  const AwayShard& away = snapshot.away.front();
  snapshot.state = "paused";
  snapshot.reason = absl::StrFormat(
      "shard %d has not been heard of for %.0f s, and every round waits for its fragments", away.shard, away.away_s);
}

}  // namespace

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
