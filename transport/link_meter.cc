#include "transport/link_meter.h"

#include <algorithm>
#include <cmath>

namespace causeway::transport {
namespace {

constexpr double kBytesPerConnection = 2.8e6;  // in a round trip
constexpr double kFairBytesPerS = 1e6;         // a slower flow loses more to packet losses than it gains from company
constexpr int64_t kLeastBytes = 256 << 10;
constexpr double kNewestWeight = 0.3;
constexpr size_t kKeptTrips = 32;  // half a minute of pings: long enough to meet an empty queue
constexpr size_t kKeptWishes = 8;  // a connection too many costs nothing; one too few costs the link

}  // namespace

void ByteMeter::Sample(int64_t now_ms) {
  constexpr double kNewShare = 0.3;  // weight of the newest second: a burst shows at once and fades over about five
  constexpr double kLeast = 0.5;     // bytes a second; a value that fades for hours would become denormal
  const int64_t total = this->total();
  if (sampled_at_ms_ != 0 && now_ms > sampled_at_ms_) {
    const double newest =
        1000.0 * static_cast<double>(total - sampled_total_) / static_cast<double>(now_ms - sampled_at_ms_);
    const double rate = kNewShare * newest + (1 - kNewShare) * bytes_per_s();
    rate_.store(rate < kLeast ? 0 : rate, std::memory_order_relaxed);
  }
  sampled_total_ = total;
  sampled_at_ms_ = now_ms;
}

int ChannelsFor(double bytes_per_s, double round_trip_s) {
  return static_cast<int>(
      std::clamp(std::ceil(bytes_per_s * round_trip_s / kBytesPerConnection), 1.0, double{kMaxChannels}));
}

void LinkMeter::Rate::Add(int64_t moved, double seconds) {
  const double weight = seconds_ == 0 ? 1 : kNewestWeight;
  bytes_ += weight * (static_cast<double>(moved) - bytes_);
  seconds_ += weight * (seconds - seconds_);
}

void LinkMeter::Moved(Direction direction, int64_t bytes, double seconds) {
  if (bytes < kLeastBytes) return MovedAtLeast(direction, bytes, seconds);
  if (seconds <= 0) return;
  core::MutexLock lock(mutex_);
  (direction == Direction::kUp ? up_ : down_).Add(bytes, seconds);
  Choose();
}

void LinkMeter::MovedAtLeast(Direction direction, int64_t bytes, double seconds) {
  if (bytes <= 0 || seconds <= 0) return;
  core::MutexLock lock(mutex_);
  (direction == Direction::kUp ? least_up_ : least_down_).Add(bytes, seconds);
}

void LinkMeter::RoundTrip(double seconds) {
  core::MutexLock lock(mutex_);
  trips_.push_back(seconds);
  if (trips_.size() > kKeptTrips) trips_.pop_front();
}

double LinkMeter::ShortestTrip() const { return trips_.empty() ? 0 : *std::ranges::min_element(trips_); }

void LinkMeter::Choose() {
  if (trips_.empty()) return;
  const double rate = std::max(up_.bytes_per_s(), down_.bytes_per_s());
  const int fair = static_cast<int>(std::clamp(rate / kFairBytesPerS, 1.0, double{kDefaultChannels}));
  wanted_.push_back(std::max(fair, ChannelsFor(kRoomToGrow * rate, ShortestTrip())));
  if (wanted_.size() > kKeptWishes) wanted_.pop_front();
}

int LinkMeter::channels() const {
  core::MutexLock lock(mutex_);
  return wanted_.empty() ? kDefaultChannels : *std::ranges::max_element(wanted_);
}

int LinkMeter::ChannelsWithin(double held_bytes_per_s) const {
  const int wanted = channels();
  return held_bytes_per_s > 0 ? std::min(wanted, ChannelsFor(kRoomToGrow * held_bytes_per_s, round_trip_s())) : wanted;
}

double LinkMeter::round_trip_s() const {
  core::MutexLock lock(mutex_);
  return ShortestTrip();
}

core::LinkProgress LinkMeter::progress() const {
  const int number = channels();
  core::MutexLock lock(mutex_);
  return {.up_bytes_per_s = up_.bytes_per_s(),
          .down_bytes_per_s = down_.bytes_per_s(),
          .round_trip_s = ShortestTrip(),
          .channels = number,
          .up_least_bytes_per_s = least_up_.bytes_per_s(),
          .down_least_bytes_per_s = least_down_.bytes_per_s()};
}

}  // namespace causeway::transport
