#include "transport/connection_watch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"

namespace causeway::transport {
namespace {

constexpr double kSuspectBeats = 1.5;  // of silence, where there is another reason to think that a connection is dead
constexpr int64_t kLeastBeats = 3;

}  // namespace

// ---- A stream ----

ConnectionWatch::Stream::Stream(ConnectionWatch* watch, int connection, int64_t now_us)
    : watch_(watch), connection_(connection) {
  core::MutexLock lock(watch_->mutex_);
  Connection& used = watch_->connections_[connection];
  if (used.streams.empty()) used.heard_us = used.moved_us = now_us;
  used.streams.push_back(this);
}

ConnectionWatch::Stream::~Stream() {
  core::MutexLock lock(watch_->mutex_);
  if (!replaced_) std::erase(watch_->connections_[connection_].streams, this);
}

void ConnectionWatch::Stream::Heard(bool chunk, int64_t now_us) {
  core::MutexLock lock(watch_->mutex_);
  if (replaced_) return;
  Connection& used = watch_->connections_[connection_];
  if (chunk) ConnectionWatch::Note(watch_->down_, now_us - used.heard_us, /*came=*/true);
  used.heard_us = std::max(used.heard_us, now_us);
}

void ConnectionWatch::Stream::ExpectsChunks(bool expects) {
  core::MutexLock lock(watch_->mutex_);
  expects_chunks_ = expects;
}

void ConnectionWatch::Stream::Sends(int64_t now_us) {
  core::MutexLock lock(watch_->mutex_);
  if (replaced_) return;
  Connection& used = watch_->connections_[connection_];
  if (!HasOnTheWay(used)) used.moved_us = std::max(used.moved_us, now_us);
  ++sent_;
}

void ConnectionWatch::Stream::Taken(int64_t now_us) {
  core::MutexLock lock(watch_->mutex_);
  if (replaced_) return;
  int64_t& moved_us = watch_->connections_[connection_].moved_us;
  moved_us = std::max(moved_us, now_us);
}

void ConnectionWatch::Stream::Arrived(int64_t sent, int64_t now_us) {
  core::MutexLock lock(watch_->mutex_);
  if (replaced_ || sent <= arrived_) return;
  Connection& used = watch_->connections_[connection_];
  arrived_ = std::min(sent, sent_);
  if (arrived_ > 1) ConnectionWatch::Note(watch_->up_, now_us - used.moved_us, /*came=*/true);
  used.moved_us = std::max(used.moved_us, now_us);
}

void ConnectionWatch::Stream::Pauses(int64_t until_us) {
  core::MutexLock lock(watch_->mutex_);
  if (replaced_) return;
  Connection& used = watch_->connections_[connection_];
  used.heard_us = std::max(used.heard_us, until_us);
  used.moved_us = std::max(used.moved_us, until_us);
}

// ---- The connections ----

std::unique_ptr<ConnectionWatch::Stream> ConnectionWatch::Open(int connection, int64_t now_us) {
  return std::make_unique<Stream>(this, connection, now_us);
}

void ConnectionWatch::Begin(int64_t beat_ms) {
  core::MutexLock lock(mutex_);
  beat_us_ = beat_ms * 1000;
}

void ConnectionWatch::Note(Way& way, int64_t us, bool came) {
  way.push_back({std::max<int64_t>(0, us), came});
  if (way.size() > kKeptTimes) way.pop_front();
}

bool ConnectionWatch::HasOnTheWay(const Connection& connection) {
  return std::ranges::any_of(connection.streams, [](const Stream* stream) { return stream->sent_ > stream->arrived_; });
}

bool ConnectionWatch::HasChunksOnTheWay(const Connection& connection) {
  return std::ranges::any_of(
      connection.streams, [](const Stream* stream) { return stream->sent_ > std::max<int64_t>(1, stream->arrived_); });
}

bool ConnectionWatch::ExpectsChunks(const Connection& connection) {
  return std::ranges::any_of(connection.streams, [](const Stream* stream) { return stream->expects_chunks_; });
}

int64_t ConnectionWatch::LeastUs() const { return std::max(kLeastSilenceUs, kLeastBeats * beat_us_); }

// The coordinator's word of what has arrived comes with its next beat.
int64_t ConnectionWatch::AllowedUs(const Way& way) const {
  if (way.empty()) return std::max(LeastUs(), kMostSilenceUs);
  std::vector<int64_t> times;
  int64_t longest_us = 0;  // that came
  for (const Took& one : way) {
    times.push_back(one.us);
    if (one.came) longest_us = std::max(longest_us, one.us);
  }
  std::ranges::nth_element(times, times.begin() + static_cast<int64_t>(times.size() / 2));
  const int64_t chunk_us = std::max(kTimesMedian * times[times.size() / 2], kTimesLongest * longest_us);
  return std::max(LeastUs(), std::min(chunk_us + beat_us_, kMostSilenceUs));
}

ConnectionWatch::Silence ConnectionWatch::SilenceOf(const Connection& connection, int64_t now_us) const {
  if (connection.streams.empty()) return {};
  const bool chunks = ExpectsChunks(connection), sends = HasChunksOnTheWay(connection);
  const Silence down{chunks ? Silence::kChunksDown : Silence::kSmall, now_us - connection.heard_us,
                     chunks ? AllowedUs(down_) : LeastUs()};
  if (down.us > down.allowed_us) return down;
  const Silence up{sends ? Silence::kChunksUp : Silence::kSmall, now_us - connection.moved_us,
                   sends ? AllowedUs(up_) : LeastUs()};
  if (HasOnTheWay(connection) && up.us > up.allowed_us) return up;
  return {};
}

void ConnectionWatch::Replace(Connection& connection, int64_t now_us) {
  for (Stream* const stream : connection.streams) stream->replaced_ = true;
  redials_ += connection.streams.empty() ? 0 : 1;
  connection = {.streams = {}, .heard_us = now_us, .moved_us = now_us};
}

ConnectionWatch::Dead ConnectionWatch::TakeDead(int64_t now_us) {
  core::MutexLock lock(mutex_);
  Dead dead;
  if (beat_us_ == 0) return dead;
  for (auto& [index, connection] : connections_) {
    const Silence silence = SilenceOf(connection, now_us);
    if (silence.kind == Silence::kNone) continue;
    if (silence.kind == Silence::kChunksDown) Note(down_, silence.us, /*came=*/false);
    if (silence.kind == Silence::kChunksUp) Note(up_, silence.us, /*came=*/false);
    const char* const missing = silence.kind == Silence::kChunksDown ? "no chunk has come"
                                : silence.kind == Silence::kChunksUp ? "no chunk has arrived there"
                                                                     : "nothing was heard";
    dead.why = absl::StrFormat("%s for %.1f s, where %.1f s are allowed", missing, 1e-6 * silence.us,
                               1e-6 * silence.allowed_us);
    dead.connections.push_back(index);
    Replace(connection, now_us);
  }
  for (auto& [index, connection] : connections_) {
    if (dead.connections.empty() || !connection.streams.empty() || now_us - connection.heard_us <= LeastUs()) continue;
    dead.connections.push_back(index);
    Replace(connection, now_us);
  }
  return dead;
}

void ConnectionWatch::ControlLost() {
  core::MutexLock lock(mutex_);
  control_lost_ = true;
}

ConnectionWatch::Dead ConnectionWatch::TakeSuspects(int64_t now_us) {
  core::MutexLock lock(mutex_);
  Dead suspects{{}, "nothing was heard on them since the control connection was lost"};
  if (!std::exchange(control_lost_, false) || beat_us_ == 0) return suspects;
  for (auto& [index, connection] : connections_) {
    if (static_cast<double>(now_us - connection.heard_us) <= kSuspectBeats * static_cast<double>(beat_us_)) continue;
    if (ExpectsChunks(connection) && now_us - connection.heard_us <= AllowedUs(down_)) continue;
    suspects.connections.push_back(index);
    Replace(connection, now_us);
  }
  return suspects;
}

core::LinkProgress ConnectionWatch::AddTo(core::LinkProgress progress, int64_t now_us) const {
  core::MutexLock lock(mutex_);
  int64_t silent_us = 0;
  for (const auto& [index, connection] : connections_) {
    if (connection.streams.empty() || beat_us_ == 0) continue;
    silent_us = std::max(silent_us, now_us - connection.heard_us);
    if (HasOnTheWay(connection)) silent_us = std::max(silent_us, now_us - connection.moved_us);
  }
  progress.redials = redials_;
  progress.silent_s = static_cast<double>(silent_us) * 1e-6;
  return progress;
}

}  // namespace causeway::transport
