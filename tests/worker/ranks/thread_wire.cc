#include "tests/worker/ranks/thread_wire.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "core/check.h"
#include "core/thread.h"

namespace causeway::worker {

struct ThreadRanks::Hub {
  using Pair = std::tuple<int, int, uint64_t>;  // from, to, tag
  struct Half {
    std::span<const std::byte> from;
    std::span<std::byte> to;
    bool hangs = false;
    bool gone = false;  // with its memory
    bool done = false;
    core::Clock::TimePoint arrives;
  };
  using Halves = std::map<Pair, std::deque<std::shared_ptr<Half>>>;

  Hub(int world, ThreadLinks links) : world(world), links(links), free_at(world), ended(world), hangs(world) {}

  // Both halves of a transfer are here: moves the bytes.
  void Match(int from, int to, Half& send, Half& receive) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (send.hangs || send.gone || receive.gone) return;
    CHECK(send.from.size() == receive.to.size());
    std::memcpy(receive.to.data(), send.from.data(), send.from.size());
    double seconds = links.latency_s;
    const double rate = links.bytes_per_s_between ? links.bytes_per_s_between(from, to) : links.bytes_per_s;
    if (rate > 0) seconds += static_cast<double>(send.from.size()) / rate;
    core::Clock::TimePoint& free = free_at[from];
    free = std::max(free, core::SystemClock().Now()) +
           std::chrono::duration_cast<core::Clock::TimePoint::duration>(std::chrono::duration<double>(seconds));
    send.arrives = receive.arrives = free;
    send.done = receive.done = true;
    changed.NotifyAll();
  }

  void End(int rank) {
    core::MutexLock lock(mutex);
    ended[rank] = true;
    changed.NotifyAll();
  }

  const int world;
  const ThreadLinks links;
  core::Mutex mutex;
  core::Condition changed;
  Halves sends ABSL_GUARDED_BY(mutex);
  Halves receives ABSL_GUARDED_BY(mutex);
  std::vector<core::Clock::TimePoint> free_at ABSL_GUARDED_BY(mutex);  // of each rank's link
  std::vector<bool> ended ABSL_GUARDED_BY(mutex);
  std::vector<bool> hangs ABSL_GUARDED_BY(mutex);
  std::string reason ABSL_GUARDED_BY(mutex);  // given to Abort; empty: none
};

class ThreadRanks::RankTransfer final : public Wire::Transfer {
 public:
  RankTransfer(std::shared_ptr<Hub> hub, const Wire& wire, int other, std::shared_ptr<Hub::Half> half)
      : hub_(std::move(hub)), wire_(wire), other_(other), half_(std::move(half)) {}

  ~RankTransfer() override {
    core::MutexLock lock(hub_->mutex);
    half_->gone = true;
  }

  absl::Status Await() override {
    Hub& hub = *hub_;
    {
      core::MutexLock lock(hub.mutex);
      lock.Wait(hub.changed, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(hub.mutex) {
        return half_->done || hub.ended[other_] || !hub.reason.empty();
      });
      if (!half_->done && !hub.reason.empty()) return absl::AbortedError(hub.reason);
      if (!half_->done) return absl::UnavailableError(wire_.NameOf(other_) + " has ended");
    }
    if (half_->arrives > core::SystemClock().Now()) core::SleepUntil(half_->arrives);
    return absl::OkStatus();
  }

 private:
  const std::shared_ptr<Hub> hub_;
  const Wire& wire_;
  const int other_;
  const std::shared_ptr<Hub::Half> half_;
};

class ThreadRanks::RankWire final : public Wire {
 public:
  RankWire(std::shared_ptr<Hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}

  ~RankWire() override { hub_->End(rank_); }

  int rank() const override { return rank_; }
  int world() const override { return hub_->world; }
  const std::string& host(int) const override { return host_; }

  std::unique_ptr<Transfer> Send(int to, uint64_t tag, std::span<const std::byte> bytes) override {
    core::MutexLock lock(hub_->mutex);
    auto half = std::make_shared<Hub::Half>(Hub::Half{.from = bytes, .hangs = hub_->hangs[rank_]});
    auto& receives = hub_->receives[{rank_, to, tag}];
    if (receives.empty()) {
      hub_->sends[{rank_, to, tag}].push_back(half);
    } else {
      hub_->Match(rank_, to, *half, *receives.front());
      receives.pop_front();
    }
    return std::make_unique<RankTransfer>(hub_, *this, to, std::move(half));
  }

  std::unique_ptr<Transfer> Receive(int from, uint64_t tag, std::span<std::byte> bytes) override {
    core::MutexLock lock(hub_->mutex);
    auto half = std::make_shared<Hub::Half>(Hub::Half{.to = bytes});
    auto& sends = hub_->sends[{from, rank_, tag}];
    if (sends.empty()) {
      hub_->receives[{from, rank_, tag}].push_back(half);
    } else {
      hub_->Match(from, rank_, *sends.front(), *half);
      sends.pop_front();
    }
    return std::make_unique<RankTransfer>(hub_, *this, from, std::move(half));
  }

  void Abort(const std::string& reason) override {
    core::MutexLock lock(hub_->mutex);
    if (hub_->reason.empty()) hub_->reason = reason;
    hub_->changed.NotifyAll();
  }

 private:
  const std::shared_ptr<Hub> hub_;
  const int rank_;
  const std::string host_ = "thread";
};

ThreadRanks::ThreadRanks(int world, ThreadLinks links) : hub_(std::make_shared<Hub>(world, links)) {}

std::shared_ptr<Wire> ThreadRanks::wire(int rank) { return std::make_shared<RankWire>(hub_, rank); }

void ThreadRanks::End(int rank) { hub_->End(rank); }

void ThreadRanks::Hang(int rank) {
  core::MutexLock lock(hub_->mutex);
  hub_->hangs[rank] = true;
}

}  // namespace causeway::worker
