// wanemu: a wide-area network in user space, for kernels without netem. Real TCP runs across it from end to end.
//
//   wanemu --dcs=3 --rate_mbit=1000 --rtt_ms=100 [--loss=1e-4] [--jitter_ms=2] [--queue_ms=100]
//          [--no_gso=true] [--access=true] [--pair=1:2:RATE_MBIT:RTT_MS:LOSS,…]
//
//   dc1 10.77.1.1 ◄─ wan0 ─► │ EmulatedNetwork: rate, delay, queue, loss │ ◄─ wan0 ─► dc2 10.77.2.1 …
//
// Run things in the namespaces with `ip netns exec dc1 …`. Prints a JSON line when the network is up, on SIGUSR1, and
// at the end (SIGTERM, SIGINT), which also removes the namespaces:
//
//   {"wall_s": …, "cpu_s": …, "delivered": …, "late_s": …, "latest_s": …,
//    "links": [{"from": 1, "to": 2, "packets": …, "ip_bytes": …, "dropped": …, "lost": …}]}
//
// cpu_s is its own processor time: where it nears one core, what is measured is the emulator. late_s is the sum over
// packets of how much later than due they were handed over, latest_s the worst: where it nears the delay, the machine
// had no time for the emulator. GSO keeps cpu_s low; with loss say --no_gso=true, so that loss is of segments. A
// namespace inherits its congestion control from the root namespace when it is created, and it cannot be changed
// inside. Ends with 2 if it may not or cannot do this here.
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/check.h"
#include "tests/bench/wanemu/emulated_network.h"

ABSL_FLAG(int, dcs, 3, "datacenters, from 2 to 250");
ABSL_FLAG(double, rate_mbit, 1000, "of each ordered pair, or of each datacenter's access link (--access)");
ABSL_FLAG(double, rtt_ms, 100, "round trip of an empty link");
ABSL_FLAG(double, loss, 0, "share of segments that are lost");
ABSL_FLAG(double, jitter_ms, 0, "the delay varies by as much either way; deliveries are never reordered");
ABSL_FLAG(double, queue_ms, 0, "drop-tail queue, in time at the link's rate; 0: one round trip, 10 ms at least");
ABSL_FLAG(bool, no_gso, false, "one packet for each segment");
ABSL_FLAG(bool, access, false, "the rate is each datacenter's own link, out and in, which all its peers share");
ABSL_FLAG(std::vector<std::string>, pair, {}, "A:B:RATE_MBIT:RTT_MS:LOSS of single pairs, separated by commas");
ABSL_FLAG(std::string, prefix, "dc", "of the namespaces' names");

namespace causeway::bench {

// Network namespaces that play datacenters, each with one TUN device "wan0", whose packets come to us.
//
//   namespace PREFIXi, 10.77.i.1/16 on wan0  ◄─ TCP of whatever runs there ─►  descriptor: read and write packets
//
// Needs root, ip(8) and /dev/net/tun. A lock file keeps a second emulator from taking names that are in use; what an
// earlier one left when it was killed is replaced. One owner thread, whose namespace is the same again after each call.

// In front of every packet on a TUN device with IFF_VNET_HDR: <linux/virtio_net.h> does not compile as C++ everywhere.
struct VirtioNetHeader {
  uint8_t flags, gso_type;
  uint16_t hdr_len, gso_size, csum_start, csum_offset;
};

class Namespaces {
 public:
  struct Options {
    std::string prefix;
    int count = 0;
    bool gso = true;  // super-packets of up to 64 KiB, which keep the packet rate low
  };

  // FAILED_PRECONDITION with what is missing, UNAVAILABLE if another emulator has the prefix.
  static absl::StatusOr<Namespaces> Create(const Options& options);
  Namespaces(Namespaces&& other) noexcept;
  Namespaces& operator=(Namespaces&&) = delete;
  ~Namespaces();  // removes them

  const std::vector<int>& tuns() const { return tuns_; }  // one each, non-blocking

 private:
  Namespaces() = default;
  absl::Status Lock();
  absl::Status Add(int number, bool gso);

  std::string prefix_;
  int lock_ = -1;
  std::vector<int> tuns_;
};

namespace {

absl::Status SystemError(const std::string& what) {
  return absl::FailedPreconditionError(absl::StrCat(what, ": ", std::strerror(errno)));
}

// ip(8), for what would be a page of netlink otherwise.
absl::Status Ip(const std::string& arguments) {
  const std::string command = absl::StrCat("ip ", arguments);
  if (std::system(command.c_str()) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("failed: ", command));
}

void Remove(const std::string& name) {
  if (access(absl::StrCat("/run/netns/", name).c_str(), F_OK) == 0) Ip(absl::StrCat("netns del ", name)).IgnoreError();
}

absl::StatusOr<int> OpenTun(bool gso) {
  const int tun = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (tun < 0) return SystemError("/dev/net/tun");
  ifreq request{};
  std::strcpy(request.ifr_name, "wan0");
  request.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR;
  if (ioctl(tun, TUNSETIFF, &request) != 0) return SystemError("TUNSETIFF");
  if (gso && ioctl(tun, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6) != 0) return SystemError("TUNSETOFFLOAD");
  return tun;
}

}  // namespace

absl::StatusOr<Namespaces> Namespaces::Create(const Options& options) {
  Namespaces namespaces;
  namespaces.prefix_ = options.prefix;
  RETURN_IF_ERROR(namespaces.Lock());
  for (int number = 1; number <= options.count; ++number) RETURN_IF_ERROR(namespaces.Add(number, options.gso));
  return namespaces;
}

Namespaces::Namespaces(Namespaces&& other) noexcept
    : prefix_(std::move(other.prefix_)), lock_(std::exchange(other.lock_, -1)), tuns_(std::move(other.tuns_)) {
  other.tuns_.clear();
}

Namespaces::~Namespaces() {
  for (size_t i = 0; i < tuns_.size(); ++i) {
    close(tuns_[i]);
    Remove(absl::StrCat(prefix_, i + 1));
  }
  if (lock_ >= 0) close(lock_);
}

absl::Status Namespaces::Lock() {
  const std::string path = absl::StrCat("/run/wanemu-", prefix_, ".lock");
  lock_ = open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (lock_ < 0) return SystemError(path);
  if (flock(lock_, LOCK_EX | LOCK_NB) == 0) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("another wanemu has namespaces ", prefix_, "1, …; choose another --prefix"));
}

absl::Status Namespaces::Add(int number, bool gso) {
  const std::string name = absl::StrCat(prefix_, number);
  Remove(name);
  RETURN_IF_ERROR(Ip(absl::StrCat("netns add ", name)));
  const int ours = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
  const int theirs = open(absl::StrCat("/run/netns/", name).c_str(), O_RDONLY | O_CLOEXEC);
  const absl::Cleanup close_both = [&] {
    close(ours);
    close(theirs);
  };
  if (ours < 0 || theirs < 0 || setns(theirs, CLONE_NEWNET) != 0) return SystemError(name);
  const absl::StatusOr<int> tun = OpenTun(gso);
  if (setns(ours, CLONE_NEWNET) != 0) return SystemError("setns back");
  RETURN_IF_ERROR(tun.status());
  tuns_.push_back(*tun);
  RETURN_IF_ERROR(Ip(absl::StrCat("-n ", name, " link set lo up")));
  RETURN_IF_ERROR(Ip(absl::StrCat("-n ", name, " addr add 10.77.", number, ".1/16 dev wan0")));
  return Ip(absl::StrCat("-n ", name, " link set wan0 up txqueuelen 10000 mtu 1500"));
}

namespace {

constexpr int kPacketsAtOnce = 64;  // read from one device before the others have their turn
constexpr int kPriority = -15;
constexpr int64_t kIdleNs = 50'000'000;
constexpr ssize_t kHeaderBytes = sizeof(VirtioNetHeader);
constexpr size_t kMaxPacketBytes = 70'000;

volatile sig_atomic_t stop_requested = 0;
volatile sig_atomic_t report_requested = 0;

int64_t NowNs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

LinkOptions OptionsOf(double rate_mbit, double rtt_ms, double loss) {
  const double queue_ms = absl::GetFlag(FLAGS_queue_ms);
  return {.bits_per_s = rate_mbit * 1e6,
          .delay_ns = static_cast<int64_t>(rtt_ms / 2 * 1e6),
          .jitter_ns = static_cast<int64_t>(absl::GetFlag(FLAGS_jitter_ms) * 1e6),
          .loss = loss,
          .queue_s = (queue_ms > 0 ? queue_ms : std::max(10.0, rtt_ms)) * 1e-3};
}

absl::StatusOr<EmulatedNetwork> MakeNetwork(int dcs) {
  const double rate_mbit = absl::GetFlag(FLAGS_rate_mbit);
  if (dcs < 2 || dcs > 250 || rate_mbit <= 0) return absl::InvalidArgumentError("--dcs or --rate_mbit out of range");
  EmulatedNetwork network(dcs, OptionsOf(rate_mbit, absl::GetFlag(FLAGS_rtt_ms), absl::GetFlag(FLAGS_loss)),
                          absl::GetFlag(FLAGS_access));
  for (const std::string& pair : absl::GetFlag(FLAGS_pair)) {
    int a = 0, b = 0;
    double mbit = 0, rtt_ms = 0, loss = 0;
    if (std::sscanf(pair.c_str(), "%d:%d:%lf:%lf:%lf", &a, &b, &mbit, &rtt_ms, &loss) != 5 || std::min(a, b) < 1 ||
        std::max(a, b) > dcs || a == b || mbit <= 0) {
      return absl::InvalidArgumentError(absl::StrCat("--pair: expected A:B:RATE_MBIT:RTT_MS:LOSS, got '", pair, "'"));
    }
    network.SetPair(a - 1, b - 1, OptionsOf(mbit, rtt_ms, loss));
  }
  return network;
}

void PrintReport(const EmulatedNetwork& network, int64_t begin_ns) {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  std::vector<std::string> links;
  for (int from = 0; from < network.datacenters(); ++from) {
    for (int to = 0; to < network.datacenters(); ++to) {
      const LinkCounters& counters = network.counters(from, to);
      if (counters.packets == 0) continue;
      links.push_back(absl::StrCat(R"({"from": )", from + 1, R"(, "to": )", to + 1, R"(, "packets": )",
                                   counters.packets, R"(, "ip_bytes": )", counters.ip_bytes, R"(, "dropped": )",
                                   counters.dropped, R"(, "lost": )", counters.lost, "}"));
    }
  }
  const Lateness& late = network.lateness();
  std::printf(R"({"wall_s": %.3f, "cpu_s": %.3f, "delivered": %ld, "late_s": %.6f, "latest_s": %.6f, "links": [%s]})"
              "\n",
              static_cast<double>(NowNs() - begin_ns) * 1e-9, seconds(usage.ru_utime) + seconds(usage.ru_stime),
              late.packets, static_cast<double>(late.total_ns) * 1e-9, static_cast<double>(late.worst_ns) * 1e-9,
              absl::StrJoin(links, ", ").c_str());
  std::fflush(stdout);
}

// Reads what a datacenter sends. Addresses tell where it goes: 10.77.TO.1; everything else is dropped.
void TakePackets(int tun, int from, EmulatedNetwork& network, std::vector<char>& buffer) {
  for (int i = 0; i < kPacketsAtOnce; ++i) {
    const ssize_t size = read(tun, buffer.data(), buffer.size());
    if (size < kHeaderBytes + 20) return;
    const auto* ip = reinterpret_cast<const unsigned char*>(buffer.data()) + kHeaderBytes;
    const int to = ip[18] - 1;
    if ((ip[0] >> 4) != 4 || ip[16] != 10 || ip[17] != 77) continue;
    if (to < 0 || to >= network.datacenters() || to == from) continue;
    const auto* header = reinterpret_cast<const VirtioNetHeader*>(buffer.data());
    const ssize_t ip_bytes = size - kHeaderBytes;
    const ssize_t segments = header->gso_size == 0 ? 1 : (ip_bytes + header->gso_size - 1) / header->gso_size;
    network.Send(from, to, std::span(buffer).first(size), ip_bytes, static_cast<int>(segments), NowNs());
  }
}

void Run(const std::vector<int>& tuns, EmulatedNetwork& network) {
  const int64_t begin_ns = NowNs();
  PrintReport(network, begin_ns);
  std::vector<char> buffer(kMaxPacketBytes);
  std::vector<pollfd> polls;
  for (int tun : tuns) polls.push_back({.fd = tun, .events = POLLIN, .revents = 0});
  const auto deliver = [&](int to, std::span<const char> packet) {
    // A receiver that has no room drops it, as a network card would.
    [[maybe_unused]] const ssize_t written = write(tuns[to], packet.data(), packet.size());
  };
  while (stop_requested == 0) {
    if (report_requested != 0) {
      report_requested = 0;
      PrintReport(network, begin_ns);
    }
    network.Deliver(NowNs(), deliver);
    const int64_t wait_ns = std::clamp<int64_t>(network.NextDeliveryNs() - NowNs(), 0, kIdleNs);
    const timespec timeout{.tv_sec = 0, .tv_nsec = wait_ns};
    if (ppoll(polls.data(), polls.size(), &timeout, nullptr) <= 0) continue;
    for (size_t i = 0; i < polls.size(); ++i) {
      if (polls[i].revents & POLLIN) TakePackets(tuns[i], static_cast<int>(i), network, buffer);
    }
  }
  PrintReport(network, begin_ns);
}

absl::Status Main() {
  auto network = MakeNetwork(absl::GetFlag(FLAGS_dcs));
  RETURN_IF_ERROR(network.status());
  const auto stop = [](int) { stop_requested = 1; };
  signal(SIGTERM, stop);
  signal(SIGINT, stop);
  signal(SIGUSR1, [](int) { report_requested = 1; });
  signal(SIGPIPE, SIG_IGN);  // the reader of our reports is gone; the namespaces still have to go
  prctl(PR_SET_TIMERSLACK, 1);
  setpriority(PRIO_PROCESS, 0, kPriority);  // a network does not wait for the machines at its ends
  const auto namespaces = Namespaces::Create(
      {.prefix = absl::GetFlag(FLAGS_prefix), .count = absl::GetFlag(FLAGS_dcs), .gso = !absl::GetFlag(FLAGS_no_gso)});
  RETURN_IF_ERROR(namespaces.status());
  Run(namespaces->tuns(), *network);
  return absl::OkStatus();
}

}  // namespace

}  // namespace causeway::bench

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("wanemu --dcs=N --rate_mbit=R --rtt_ms=T [--access]\n");
  absl::ParseCommandLine(argc, argv);
  const absl::Status status = causeway::bench::Main();
  if (status.ok()) return 0;
  std::fprintf(stderr, "error: %s\n", status.ToString().c_str());
  return 2;
}
