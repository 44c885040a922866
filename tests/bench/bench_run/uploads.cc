// A site's link that does nothing but upload, as fast as it goes.
//
//   seconds, a line on stdin ─► Upload, the next one when one is through ─► verdicts ─► {"megabytes_per_s": …} on
//   stdout
//
// The payload is one contribution to fragment 0 of the receiver's run (receiver.cc), made once. A second's verdicts
// are left out at the beginning; the rate is the slope of a straight line through bytes over time at the verdicts after
// that, so that it does not matter where in a fragment the time begins and ends.
#include <cstdio>
#include <iostream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "tests/bench/bench_run/bench_run.h"
#include "tests/bench/bench_run/wire.h"

namespace causeway::bench {
namespace {

constexpr double kSettleSeconds = 1;
constexpr size_t kMinArrivals = 5;  // for a straight line

// A verdict: when, and what has arrived in all by then.
struct Arrival {
  double at_s = 0;
  double bytes = 0;
};

// Least squares; of two arrivals at least.
double BytesPerSecond(const std::vector<Arrival>& arrivals) {
  const auto n = static_cast<double>(arrivals.size());
  double mean_s = 0, mean_bytes = 0, covariance = 0, variance = 0;
  for (const Arrival& each : arrivals) {
    mean_s += each.at_s / n;
    mean_bytes += each.bytes / n;
  }
  for (const Arrival& each : arrivals) {
    covariance += (each.at_s - mean_s) * (each.bytes - mean_bytes);
    variance += (each.at_s - mean_s) * (each.at_s - mean_s);
  }
  return covariance / variance;
}

// Thread-safe.
class Uploader final : public IdleListener {
 public:
  Uploader(transport::SessionLink* link, Chunks payload) : link_(link), payload_(std::move(payload)) {
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
      begin_ = core::SystemClock().Now();
      seconds_ = kSettleSeconds + seconds;
      total_ = 0;
      arrivals_.clear();
      in_flight_ = Given<int>("in_flight");
    }
    for (int i = 0; i < Given<int>("in_flight"); ++i) Begin();
    core::MutexLock lock(mutex_);
    lock.Wait(changed_, [this] { return in_flight_ == 0; });
    return arrivals_;
  }

  void OnWelcome(const transport::Welcome&) override {
    core::MutexLock lock(mutex_);
    welcomed_ = true;
    changed_.NotifyAll();
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
    if (!verdict.ok()) End(verdict);
    bool another = false;
    {
      core::MutexLock lock(mutex_);
      total_ += bytes_;
      const double at_s = core::SystemClock().SecondsSince(begin_);
      another = at_s < seconds_;
      if (at_s >= kSettleSeconds && another) arrivals_.push_back({.at_s = at_s, .bytes = total_});
      if (!another) --in_flight_;
      changed_.NotifyAll();
    }
    if (another) Begin();
  }

  transport::SessionLink* const link_;
  const Chunks payload_;
  double bytes_ = 0;  // of one upload

  core::Mutex mutex_;
  core::Condition changed_;
  bool welcomed_ ABSL_GUARDED_BY(mutex_) = false;
  core::Version next_base_ ABSL_GUARDED_BY(mutex_) = 0;
  int in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  core::Clock::TimePoint begin_ ABSL_GUARDED_BY(mutex_);
  double seconds_ ABSL_GUARDED_BY(mutex_) = 0;
  double total_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Arrival> arrivals_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::Status Upload() {
  ASSIGN_OR_RETURN(const auto link, LinkOf(NamesOfSites().front()));
  ASSIGN_OR_RETURN(const DescribedRun run, Describe(*link));
  Uploader uploader(link.get(), MakeContribution(run.map.fragment(0), run.config));
  link->Start(run.map.manifest(), &uploader);
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
  link->Leave(/*finished=*/true, "all uploads are done");
  return absl::OkStatus();
}

}  // namespace causeway::bench
