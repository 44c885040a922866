// The effects of a wide-area network on packets: for each ordered pair of datacenters a rate, a delay, jitter, loss and
// a drop-tail queue.
//
//   Send ─► queue of the link: full? dropped ─► leaves at the link's rate ─► lost? ─► delay, jitter ─► Deliver
//
// Per access link (`shared_access`): the rate is that of each datacenter's own link to the net, once for all that it
// sends and once for all that it receives, each with a queue of its own, so that many senders to one receiver share the
// receiver's link, and a packet to a busy receiver holds up no other one of its sender.
//
//   Send ─► queue, rate of the sender's link ─► delay ─► queue, rate of the receiver's link ─► Deliver
//
// An idle receiver's link takes a packet cut-through, with no second time on the wire.
//
// A packet may be a super-packet (GSO) that stands for several segments; it takes the time of all of them on the wire
// with their headers, preambles and gaps, and is delivered or lost as one. Deliveries of a link never overtake each
// other. Time comes from the caller, in nanoseconds. Single-threaded.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <queue>
#include <span>
#include <vector>

namespace causeway::bench {

struct LinkOptions {
  double bits_per_s = 1e9;  // on the wire: of an Ethernet frame of 1,538 bytes, 1,448 are a TCP segment's payload
  int64_t delay_ns = 50'000'000;
  int64_t jitter_ns = 0;  // added to the delay or taken from it, uniform
  double loss = 0;        // of a segment
  double queue_s = 0.1;   // a packet that would wait longer is dropped
};

struct LinkCounters {
  int64_t packets = 0;  // sent, dropped ones not counted
  int64_t ip_bytes = 0;
  int64_t dropped = 0;  // the queue was full
  int64_t lost = 0;     // by chance
};

// How much later than due packets were handed over: what the machine took from the emulator.
struct Lateness {
  int64_t packets = 0;
  int64_t total_ns = 0;
  int64_t worst_ns = 0;
};

class EmulatedNetwork {
 public:
  EmulatedNetwork(int datacenters, const LinkOptions& options, bool shared_access);

  void SetPair(int a, int b, const LinkOptions& options);  // both directions

  // A packet of `segments` segments, `ip_bytes` of which are an IP packet; the rest goes along.
  void Send(int from, int to, std::span<const char> packet, int64_t ip_bytes, int segments, int64_t now_ns);

  // Hands over what is due, oldest first on each link.
  void Deliver(int64_t now_ns, const std::function<void(int to, std::span<const char> packet)>& deliver);
  int64_t NextDeliveryNs() const;  // INT64_MAX: nothing is under way

  int datacenters() const { return datacenters_; }
  const Lateness& lateness() const { return lateness_; }
  const LinkCounters& counters(int from, int to) const { return links_[from * datacenters_ + to].counters; }

 private:
  struct Packet {
    int64_t deliver_at_ns = 0;
    std::vector<char> bytes;
  };
  struct Link {
    LinkOptions options;
    int64_t free_at_ns = 0;        // its last packet has left by then
    int64_t last_delivery_ns = 0;  // of the packets under way
    std::deque<Packet> under_way;
    LinkCounters counters;
  };

  // At the receiver's access link, by time.
  struct Arrival {
    int64_t at_ns = 0, number = 0;  // in the order of sends where times are equal
    int from = 0;
    int64_t wire_ns = 0;
    std::vector<char> bytes;
    bool operator>(const Arrival& other) const {
      return at_ns != other.at_ns ? at_ns > other.at_ns : number > other.number;
    }
  };
  using Arrivals = std::priority_queue<Arrival, std::vector<Arrival>, std::greater<>>;

  void Enter(int to, Arrival arrival);  // the receiver's queue

  Link& link(int from, int to) { return links_[from * datacenters_ + to]; }
  std::vector<char> Copy(std::span<const char> packet);

  const int datacenters_;
  const bool shared_access_;
  std::vector<Link> links_;               // from · datacenters + to
  std::vector<int64_t> egress_free_ns_;   // shared access alone
  std::vector<int64_t> ingress_free_ns_;  // the same
  std::vector<Arrivals> arrivals_;        // the same; of each receiver
  int64_t sent_ = 0;
  Lateness lateness_;
  std::vector<std::vector<char>> spare_;  // buffers of delivered packets, for the next ones
};

}  // namespace causeway::bench
