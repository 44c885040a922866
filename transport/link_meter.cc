#include "transport/link_meter.h"

#include <spdlog/spdlog.h>

#include <fstream>
#include <iterator>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace causeway::transport {
namespace {

// The share of a buffer's bytes that holds payload. With Linux's default maxima both give about the 2.8 MB that
// LinkMeter assumes.
constexpr double kWritePayload = 0.67;
constexpr double kReadPayload = 0.5;
constexpr int64_t kAdvisedStep = 1 << 20;

std::string ReadText(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Empty if the buffer holds each connection's data in flight at that rate.
std::string AdviceFor(const char* name, const char* at_coordinator, double bytes_per_s, double payload,
                      const BufferSizes& sizes, const core::LinkProgress& link) {
  const double in_flight = kRoomToGrow * bytes_per_s * link.round_trip_s / std::max(1, link.channels);
  const double needed = in_flight / payload;
  if (sizes.most <= 0 || needed <= static_cast<double>(sizes.most)) return "";
  const int64_t most = static_cast<int64_t>(std::ceil(needed / kAdvisedStep)) * kAdvisedStep;
  return absl::StrFormat(
      "%.0f Mbit/s over %.0f ms need %d bytes in each of %d connections' buffers, and net.ipv4.%s allows %d; raise it "
      "here: sysctl -w net.ipv4.%s=\"%d %d %d\", and the last number of net.ipv4.%s at the coordinator likewise",
      bytes_per_s * 8e-6, link.round_trip_s * 1e3, static_cast<int64_t>(needed), link.channels, name, sizes.most, name,
      sizes.least, sizes.initial, most, at_coordinator);
}

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

BufferSizes ParseBufferSizes(const std::string& text) {
  std::istringstream stream(text);
  BufferSizes sizes;
  if (stream >> sizes.least >> sizes.initial >> sizes.most) return sizes;
  return {};
}

KernelBuffers ReadKernelBuffers() {
  return {.write = ParseBufferSizes(ReadText("/proc/sys/net/ipv4/tcp_wmem")),
          .read = ParseBufferSizes(ReadText("/proc/sys/net/ipv4/tcp_rmem"))};
}

std::string BufferAdvice(const core::LinkProgress& link, const KernelBuffers& buffers) {
  const std::string up = AdviceFor("tcp_wmem", "tcp_rmem", link.up_bytes_per_s, kWritePayload, buffers.write, link);
  const std::string down = AdviceFor("tcp_rmem", "tcp_wmem", link.down_bytes_per_s, kReadPayload, buffers.read, link);
  return absl::StrCat(up, up.empty() || down.empty() ? "" : "; ", down);
}

void BufferAdviser::Look(const core::LinkProgress& link) {
  if (advised_) return;
  const std::string advice = BufferAdvice(link, ReadKernelBuffers());
  if (!advice.empty() && !advised_.exchange(true)) spdlog::warn("the kernel's buffers slow this link: {}", advice);
}

}  // namespace causeway::transport
