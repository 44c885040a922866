#include "transport/kernel_buffers.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "transport/link_meter.h"

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

}  // namespace

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
