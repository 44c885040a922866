// transport_run: a site's link that does nothing but upload, as fast as it goes.
//
//   transport_run --coordinator=HOST:PORT --site=NAME [--channels=N] [--in_flight=2]
//
//   seconds, a line on stdin ─► Upload, the next one when one is through ─► verdicts ─► {"megabytes_per_s": …} on
//   stdout
//
// The payload is one contribution to fragment 0 of the receiver's run (transport_alone), made once. A second's verdicts
// are left out at the beginning; the rate is the slope of a straight line through bytes over time at the verdicts after
// that, so that it does not matter where in a fragment the time begins and ends.
#include <chrono>
#include <cstdio>
#include <iostream>
#include <numeric>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/mutex.h"
#include "ctl/client_flags.h"
#include "ctl/program.h"
#include "formats/run_yaml.h"
#include "tests/bench/ingest_run/light_payloads.h"
#include "transport/grpc_link.h"

ABSL_FLAG(std::string, coordinator, "127.0.0.1:7077", "HOST:PORT of the receiver");
ABSL_FLAG(std::string, site, "a", "name");
ABSL_FLAG(int, channels, 0, "TCP connections that an upload is spread over; 0: as the link chooses");
ABSL_FLAG(int, in_flight, 2, "uploads at a time");

namespace causeway::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kSettleSeconds = 1;
constexpr size_t kMinArrivals = 5;  // for a straight line

double SecondsSince(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// A verdict: when, and what has arrived in all by then.
struct Arrival {
  double at_s = 0;
  double bytes = 0;
};

// Least squares; of two arrivals at least.
double BytesPerSecond(const std::vector<Arrival>& arrivals) {
  const auto n = static_cast<double>(arrivals.size());
  const auto sum = [&](auto term) {
    return std::accumulate(arrivals.begin(), arrivals.end(), 0.0,
                           [&](double total, const Arrival& arrival) { return total + term(arrival); });
  };
  const double mean_s = sum([](const Arrival& arrival) { return arrival.at_s; }) / n;
  const double mean_bytes = sum([](const Arrival& arrival) { return arrival.bytes; }) / n;
  const double covariance =
      sum([&](const Arrival& arrival) { return (arrival.at_s - mean_s) * (arrival.bytes - mean_bytes); });
  return covariance / sum([&](const Arrival& arrival) { return (arrival.at_s - mean_s) * (arrival.at_s - mean_s); });
}

// Thread-safe.
class Uploader final : public transport::LinkListener {
 public:
  Uploader(transport::GrpcLink* link, Chunks payload) : link_(link), payload_(std::move(payload)) {
    bytes_ = static_cast<double>(PayloadBytes(*payload_));
  }

  void AwaitWelcome() {
    core::MutexLock lock(mutex_);
    lock.Wait(changed_, [this] { return welcomed_; });
  }

  // Blocks until everything that it began has its verdict.
  std::vector<Arrival> UploadFor(double seconds) {
    {
      core::MutexLock lock(mutex_);
      begin_ = Clock::now();
      seconds_ = kSettleSeconds + seconds;
      total_ = 0;
      arrivals_.clear();
      in_flight_ = absl::GetFlag(FLAGS_in_flight);
    }
    for (int i = 0; i < absl::GetFlag(FLAGS_in_flight); ++i) Begin();
    core::MutexLock lock(mutex_);
    lock.Wait(changed_, [this] { return in_flight_ == 0; });
    return arrivals_;
  }

  transport::Standing GetStanding() override { return {}; }
  void OnWelcome(const transport::Welcome&) override {
    core::MutexLock lock(mutex_);
    welcomed_ = true;
    changed_.NotifyAll();
  }
  void OnSeedRequest() override {}
  void OnEntry(const core::Entry&) override {}
  void OnNotice(const std::string&) override {}
  void OnDrain(const std::string&) override {}
  void OnHold(bool) override {}
  void OnFailure(const absl::Status& status) override {
    ctl::Fail(ctl::kFailed, status);
    std::_Exit(ctl::kFailed);
  }

 private:
  void Begin() {
    transport::UploadRequest request{.chunks = payload_};
    {
      core::MutexLock lock(mutex_);
      request.base = next_base_++;
    }
    request.done = [this](const absl::Status& verdict) { OnVerdict(verdict); };
    link_->Upload(std::move(request));
  }

  void OnVerdict(const absl::Status& verdict) {
    if (!verdict.ok()) return OnFailure(verdict);
    bool another = false;
    {
      core::MutexLock lock(mutex_);
      total_ += bytes_;
      const double at_s = SecondsSince(begin_);
      another = at_s < seconds_;
      if (at_s >= kSettleSeconds && another) arrivals_.push_back({.at_s = at_s, .bytes = total_});
      if (!another) --in_flight_;
      changed_.NotifyAll();
    }
    if (another) Begin();
  }

  transport::GrpcLink* const link_;
  const Chunks payload_;
  double bytes_ = 0;  // of one upload

  core::Mutex mutex_;
  core::Condition changed_;
  bool welcomed_ ABSL_GUARDED_BY(mutex_) = false;
  core::Version next_base_ ABSL_GUARDED_BY(mutex_) = 0;
  int in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  Clock::time_point begin_ ABSL_GUARDED_BY(mutex_);
  double seconds_ ABSL_GUARDED_BY(mutex_) = 0;
  double total_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Arrival> arrivals_ ABSL_GUARDED_BY(mutex_);
};

absl::Status Run() {
  ASSIGN_OR_RETURN(const transport::Address address, transport::ParseAddress(absl::GetFlag(FLAGS_coordinator)));
  ASSIGN_OR_RETURN(const transport::ChannelOptions channel, ctl::ReadChannelOptions(address));
  transport::GrpcLink link({.coordinator = address,
                            .channel = channel,
                            .site = absl::GetFlag(FLAGS_site),
                            .channels = absl::GetFlag(FLAGS_channels)});
  ASSIGN_OR_RETURN(const transport::RunDescription description, link.Describe([] { return false; }));
  ASSIGN_OR_RETURN(const core::RunConfig config, formats::ParseRunConfig(description.run_config));
  ASSIGN_OR_RETURN(const core::FragmentMap map, MapOf(config));
  Uploader uploader(&link, MakeContribution(map.fragment(0), config));
  link.Start(map.manifest(), &uploader);
  uploader.AwaitWelcome();
  std::string line;
  while (std::getline(std::cin, line)) {
    double seconds = 0;
    if (!absl::SimpleAtod(line, &seconds)) {
      return absl::InvalidArgumentError(absl::StrCat("expected seconds, got '", line, "'"));
    }
    const std::vector<Arrival> arrivals = uploader.UploadFor(seconds);
    if (arrivals.size() < kMinArrivals) {
      return absl::DeadlineExceededError(absl::StrCat(arrivals.size(), " uploads in ", seconds, " s, expected ",
                                                      kMinArrivals, " at least; give it more time"));
    }
    std::printf("{\"megabytes_per_s\": %.3f, \"uploads\": %zu}\n", BytesPerSecond(arrivals) * 1e-6, arrivals.size());
    std::fflush(stdout);
  }
  link.Leave(/*finished=*/true, "all uploads are done");
  return absl::OkStatus();
}

}  // namespace
}  // namespace causeway::bench

int main(int argc, char** argv) {
  using namespace causeway;
  ctl::StartProgram(argc, argv, "transport_run --coordinator=HOST:PORT --site=NAME [--channels=N]\n");
  const absl::Status status = bench::Run();
  return status.ok() ? ctl::kDone : ctl::Fail(ctl::kFailed, status);
}
