#include "tests/bench/wanemu/emulated_network.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"

namespace causeway::bench {
namespace {

constexpr int64_t kSegmentHeaderBytes = 52;  // IP and TCP with timestamps; a super-packet carries them once
constexpr int64_t kFrameBytes = 38;          // Ethernet header, checksum, preamble, gap between frames
constexpr size_t kMaxSpareBuffers = 4096;

int64_t WireBytes(int64_t ip_bytes, int segments) {
  return ip_bytes + (segments - 1) * kSegmentHeaderBytes + segments * kFrameBytes;
}

bool ByChance(double probability) { return probability > 0 && drand48() < probability; }

}  // namespace

EmulatedNetwork::EmulatedNetwork(int datacenters, const LinkOptions& options, bool shared_access)
    : datacenters_(datacenters),
      shared_access_(shared_access),
      links_(static_cast<size_t>(datacenters) * datacenters, Link{.options = options}),
      egress_free_ns_(datacenters),
      ingress_free_ns_(datacenters),
      arrivals_(datacenters) {}

void EmulatedNetwork::SetPair(int a, int b, const LinkOptions& options) {
  link(a, b).options = link(b, a).options = options;
}

std::vector<char> EmulatedNetwork::Copy(std::span<const char> packet) {
  std::vector<char> bytes;
  if (!spare_.empty()) {
    bytes = std::move(spare_.back());
    spare_.pop_back();
  }
  bytes.assign(packet.begin(), packet.end());
  return bytes;
}

void EmulatedNetwork::Send(int from, int to, std::span<const char> packet, int64_t ip_bytes, int segments,
                           int64_t now_ns) {
  CHECK(from != to && segments >= 1);
  Link& link = this->link(from, to);
  const LinkOptions& options = link.options;
  const int64_t start_ns = std::max(now_ns, shared_access_ ? egress_free_ns_[from] : link.free_at_ns);
  if (static_cast<double>(start_ns - now_ns) * 1e-9 > options.queue_s) {
    ++link.counters.dropped;
    return;
  }
  const double bits = 8 * static_cast<double>(WireBytes(ip_bytes, segments));
  const auto wire_ns = static_cast<int64_t>(bits * 1e9 / options.bits_per_s);
  const int64_t end_ns = start_ns + wire_ns;
  link.free_at_ns = egress_free_ns_[from] = end_ns;
  ++link.counters.packets;
  link.counters.ip_bytes += ip_bytes;
  if (ByChance(1 - std::pow(1 - options.loss, segments))) {
    ++link.counters.lost;
    return;
  }
  const auto jitter_ns =
      options.jitter_ns == 0 ? 0 : static_cast<int64_t>((drand48() * 2 - 1) * static_cast<double>(options.jitter_ns));
  link.last_delivery_ns = std::max(link.last_delivery_ns, end_ns + options.delay_ns + jitter_ns);
  if (shared_access_) {
    arrivals_[to].push({link.last_delivery_ns, ++sent_, from, wire_ns, Copy(packet)});
  } else {
    link.under_way.push_back({.deliver_at_ns = link.last_delivery_ns, .bytes = Copy(packet)});
  }
}

void EmulatedNetwork::Enter(int to, Arrival arrival) {
  Link& link = this->link(arrival.from, to);
  const int64_t wait_ns = ingress_free_ns_[to] + arrival.wire_ns - arrival.at_ns;
  if (static_cast<double>(wait_ns) * 1e-9 > link.options.queue_s) {
    --link.counters.packets;
    ++link.counters.dropped;
    return;
  }
  ingress_free_ns_[to] = arrival.at_ns + std::max<int64_t>(0, wait_ns);
  link.under_way.push_back({.deliver_at_ns = ingress_free_ns_[to], .bytes = std::move(arrival.bytes)});
}

void EmulatedNetwork::Deliver(int64_t now_ns, const std::function<void(int, std::span<const char>)>& deliver) {
  for (int to = 0; to < datacenters_; ++to) {
    for (Arrivals& arrivals = arrivals_[to]; !arrivals.empty() && arrivals.top().at_ns <= now_ns; arrivals.pop()) {
      Enter(to, arrivals.top());
    }
  }
  for (int from = 0; from < datacenters_; ++from) {
    for (int to = 0; to < datacenters_; ++to) {
      std::deque<Packet>& under_way = link(from, to).under_way;
      while (!under_way.empty() && under_way.front().deliver_at_ns <= now_ns) {
        const int64_t late_ns = now_ns - under_way.front().deliver_at_ns;
        ++lateness_.packets;
        lateness_.total_ns += late_ns;
        lateness_.worst_ns = std::max(lateness_.worst_ns, late_ns);
        deliver(to, under_way.front().bytes);
        if (spare_.size() < kMaxSpareBuffers) spare_.push_back(std::move(under_way.front().bytes));
        under_way.pop_front();
      }
    }
  }
}

int64_t EmulatedNetwork::NextDeliveryNs() const {
  int64_t next_ns = std::numeric_limits<int64_t>::max();
  for (const Arrivals& arrivals : arrivals_) {
    if (!arrivals.empty()) next_ns = std::min(next_ns, arrivals.top().at_ns);
  }
  for (const Link& link : links_) {
    if (!link.under_way.empty()) next_ns = std::min(next_ns, link.under_way.front().deliver_at_ns);
  }
  return next_ns;
}

}  // namespace causeway::bench
