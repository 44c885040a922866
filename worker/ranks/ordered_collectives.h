// Collectives in host memory, over a Wire.
//
//   all-reduce of n values   each rank sends every other one its part (n/R)  ─► sums R parts in the order of the ranks
//                            sends the sum to every other one                ─► has all sums: 2 (R−1)/R · n values sent
//
// A part that travels directly needs one hop, not the R−1 of a ring, and is summed in an order that no timing changes.
// Each operation begins with 64 bytes that name it, so that a rank whose order differs is found before any value is
// taken for another; what has at most 40 bytes travels in them.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <vector>

#include "core/mutex.h"
#include "core/thread.h"
#include "worker/ranks/collectives.h"
#include "worker/ranks/wire.h"

namespace causeway::worker {

class OrderedCollectives final : public Collectives {
 public:
  // All ranks of the wire; none (null): one rank alone.
  explicit OrderedCollectives(std::shared_ptr<Wire> wire);
  ~OrderedCollectives() override;

  int rank() const override { return rank_; }
  int world() const override { return static_cast<int>(members_.size()); }
  std::string NameOf(int rank) const override;

  Ticket AllReduce(std::span<float> values) override;
  Ticket ReduceScatter(std::span<const float> values, std::span<float> part) override;
  Ticket AllGather(std::span<const std::byte> part, std::span<std::byte> all) override;
  Ticket Broadcast(std::span<std::byte> bytes, int root) override;
  Ticket Send(std::span<const std::byte> bytes, int to) override;
  Ticket Receive(std::span<std::byte> bytes, int from) override;
  Ticket Barrier() override;
  absl::StatusOr<std::unique_ptr<Collectives>> Split(int color, Timeout timeout) override;
  absl::Status Await(Ticket ticket, Timeout timeout) override;
  void Abort(const std::string& reason) override;
  int64_t sent_bytes() const override { return sent_bytes_; }

 private:
  struct Call;     // what an operation is, as its first 64 bytes say it
  struct Pending;  // a transfer and the rank at its other end

  OrderedCollectives(std::shared_ptr<Wire> wire, std::vector<int> members, uint32_t channel);

  template <typename Run>
  Ticket Post(const Call& call, Run run);
  void Serve();
  void Fail(const absl::Status& failure, const std::string& for_others);  // unless it has failed before

  // On the thread of the operations. Ranks are those of the group.
  absl::Status Reduce(const Call& call, std::span<float> values);
  absl::Status Scatter(const Call& call, std::span<const float> values, std::span<float> part);
  absl::Status Gather(const Call& call, std::span<const std::byte> part, std::span<std::byte> all);
  absl::Status SendTo(const Call& call, std::span<const std::byte> bytes, const std::vector<int>& ranks);
  absl::Status ReceiveFrom(const Call& call, std::span<std::byte> bytes, int rank);
  // Every rank's first 64 bytes, checked against those of this one.
  absl::StatusOr<std::vector<Call>> Meet(const Call& call);
  absl::Status Check(const Call& mine, const Call& theirs, int rank) const;
  // What the others have sent of this rank's part, and `mine`, summed in the order of the ranks.
  absl::Status ExchangeAndSum(std::span<const std::span<const float>> parts, std::span<float> sum);
  absl::Status ExchangeParts(std::span<const std::span<std::byte>> parts);
  void StartSend(int to, bool values, std::span<const std::byte> bytes, std::vector<Pending>& pending);
  void StartReceive(int from, bool values, std::span<std::byte> bytes, std::vector<Pending>& pending);
  absl::Status AwaitAll(std::vector<Pending>& pending);
  std::vector<int> Others() const;

  const std::shared_ptr<Wire> wire_;
  const std::vector<int> members_;  // ranks on the wire
  int rank_ = 0;                    // among them
  const uint32_t channel_;          // that no other group on the wire has
  uint64_t asked_ = 0;              // operations of the whole group; the owner thread's
  std::atomic<int64_t> sent_bytes_ = 0;
  std::vector<float> received_;  // parts of the other ranks, while they are summed

  struct Operation {
    std::string name;
    std::function<absl::Status()> run;
  };
  core::Mutex mutex_;
  core::Condition changed_;
  std::deque<Operation> queue_ ABSL_GUARDED_BY(mutex_);  // the front runs
  int64_t posted_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);  // the first
  int awaited_ ABSL_GUARDED_BY(mutex_) = -1;      // the rank that the operation under way waits for
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  core::Thread thread_;  // last: it calls us
};

}  // namespace causeway::worker
