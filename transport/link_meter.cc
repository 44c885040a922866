#include "transport/link_meter.h"

#include <algorithm>
#include <cmath>

namespace causeway::transport {
namespace {

constexpr double kBytesPerConnection = 2.8e6;  // in a round trip
constexpr double kRoomToGrow = 1.25;
constexpr int64_t kLeastBytes = 256 << 10;
constexpr double kNewestWeight = 0.3;
constexpr size_t kKeptTrips = 32;  // half a minute of pings: long enough to meet an empty queue
constexpr size_t kKeptWishes = 8;  // a connection too many costs nothing; one too few costs the link

void Update(double* average, double value) {
  *average = *average == 0 ? value : *average + kNewestWeight * (value - *average);
}

}  // namespace

void LinkMeter::Moved(Direction direction, int64_t bytes, double seconds) {
  if (bytes < kLeastBytes || seconds <= 0) return;
  core::MutexLock lock(mutex_);
  Update(direction == Direction::kUp ? &up_ : &down_, static_cast<double>(bytes) / seconds);
  Choose();
}

void LinkMeter::RoundTrip(double seconds) {
  core::MutexLock lock(mutex_);
  trips_.push_back(seconds);
  if (trips_.size() > kKeptTrips) trips_.pop_front();
}

double LinkMeter::ShortestTrip() const { return trips_.empty() ? 0 : *std::ranges::min_element(trips_); }

void LinkMeter::Choose() {
  if (trips_.empty()) return;
  const double in_flight = kRoomToGrow * std::max(up_, down_) * ShortestTrip();
  wanted_.push_back(
      static_cast<int>(std::clamp(std::ceil(in_flight / kBytesPerConnection), 1.0, double{kMaxChannels})));
  if (wanted_.size() > kKeptWishes) wanted_.pop_front();
}

int LinkMeter::channels() const {
  core::MutexLock lock(mutex_);
  return wanted_.empty() ? kDefaultChannels : *std::ranges::max_element(wanted_);
}

double LinkMeter::round_trip_s() const {
  core::MutexLock lock(mutex_);
  return ShortestTrip();
}

core::LinkProgress LinkMeter::progress() const {
  const int number = channels();
  core::MutexLock lock(mutex_);
  return {.up_bytes_per_s = up_, .down_bytes_per_s = down_, .round_trip_s = ShortestTrip(), .channels = number};
}

}  // namespace causeway::transport
