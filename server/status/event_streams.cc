#include "server/status/event_streams.h"

#include <chrono>

#include "core/clock.h"

namespace causeway::server {
namespace {

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(core::SystemClock().Now().time_since_epoch()).count();
}

constexpr int64_t kSecondNs = 1'000'000'000;
constexpr int64_t kTimelineSeconds = 2;

// The texts are JSON in one line each: no line of an event breaks.
bool WriteEvent(const EventStreams::Write& write, std::string_view name, const std::string& text) {
  return write("event: ") && write(name) && write("\ndata: ") && write(text) && write("\n\n");
}

}  // namespace

EventStreams::Stream::~Stream() { --streams_->board_->event_streams(); }

std::unique_ptr<EventStreams::Stream> EventStreams::Open() {
  if (++board_->event_streams() > most_) {
    --board_->event_streams();
    return nullptr;
  }
  return std::make_unique<Stream>(this);
}

void EventStreams::Stop() {
  core::MutexLock lock(mutex_);
  stopping_ = true;
  changed_.NotifyAll();
}

int64_t EventStreams::WaitForSecondAfter(int64_t second) {
  core::MutexLock lock(mutex_);
  const auto due = std::chrono::nanoseconds((second + 1) * kSecondNs - NowNs());
  if (lock.WaitFor(changed_, due, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; })) return 0;
  return NowNs() / kSecondNs;
}

bool EventStreams::Stream::Next(const Write& write) {
  const bool first = second_ == 0;
  second_ = first ? NowNs() / kSecondNs : streams_->WaitForSecondAfter(NowNs() / kSecondNs);
  if (second_ == 0) return false;
  StatusBoard& board = *streams_->board_;
  const SharedText status = board.Status();
  const SharedText timeline = first || second_ % kTimelineSeconds == 0 ? board.Timeline() : timeline_;
  const bool new_status = status != status_, new_timeline = timeline != timeline_;
  status_ = status;
  timeline_ = timeline;
  if (first && !write("retry: 2000\n\n")) return false;
  if (new_status && !WriteEvent(write, "status", *status)) return false;
  if (new_timeline && !WriteEvent(write, "timeline", *timeline)) return false;
  return new_status || new_timeline || first || write(":\n\n");
}

}  // namespace causeway::server
