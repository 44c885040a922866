// Collectives in host memory, over a Wire.
//
//   all-reduce of n values   each rank sends every other one its part (n/R)  ─► sums R parts in the order of the ranks
//                            sends the sum to every other one                ─► has all sums: 2 (R−1)/R · n values sent
//
// A part that travels directly needs one hop, not the R−1 of a ring, and is summed in an order that no timing changes.
// Each operation begins with 64 bytes that identify it, so that a rank whose order differs is detected before any value
// is mistaken for another; payloads of at most 40 bytes travel in them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "worker/ranks/collectives.h"
#include "worker/ranks/operation_queue.h"
#include "worker/ranks/wire.h"

namespace causeway::worker {

// The ranks of one group on a wire, and the transfers of one operation between them.
//
//   Transfers transfers(peers, queue);
//   transfers.Send(rank, bytes), transfers.Receive(rank, bytes), … ─► side by side ─► transfers.Await()
//
// Ranks are numbered within the group. One owner thread, except for const members.
class Peers {
 public:
  // A null wire: a single rank. `channel`: unique among the groups on the wire.
  Peers(std::shared_ptr<Wire> wire, std::vector<int> members, uint32_t channel);
  explicit Peers(std::shared_ptr<Wire> wire);  // all ranks of the wire

  int rank() const { return rank_; }
  int world() const { return static_cast<int>(members_.size()); }
  std::string NameOf(int rank) const;
  std::vector<int> Others() const;
  int64_t sent_bytes() const { return sent_bytes_; }
  void Count(int64_t sent_bytes) { sent_bytes_ += sent_bytes; }
  void Abort(const std::string& reason);

  // The subgroup of `ranks`, with a channel of its own, the index-th of those that the split makes.
  Peers Subgroup(const std::vector<int>& ranks, uint32_t channel) const;
  // The next channel that is free in all groups of this rank.
  uint32_t next_channel() const { return wire_ == nullptr ? 0 : wire_->next_channel().load(); }
  void TakeChannelsTo(uint32_t next) const {
    if (wire_ != nullptr) wire_->next_channel() = next;
  }

 private:
  friend class Transfers;

  std::shared_ptr<Wire> wire_;
  std::vector<int> members_;  // ranks on the wire
  int rank_ = 0;              // this rank's index in members_
  uint32_t channel_;
  std::atomic<int64_t> sent_bytes_ = 0;
};

class Transfers {
 public:
  // A call's first bytes, or its values. Transfers of one kind keep their order.
  enum class Kind : uint64_t { kCall, kValues };

  Transfers(Peers& peers, OperationQueue& queue) : peers_(peers), queue_(queue) {}

  void Send(int to, Kind kind, std::span<const std::byte> bytes);
  void Receive(int from, Kind kind, std::span<std::byte> bytes);
  absl::Status Await();  // waits for all transfers

 private:
  struct Pending {
    int rank = 0;
    std::unique_ptr<Wire::Transfer> transfer;
  };

  Peers& peers_;
  OperationQueue& queue_;
  std::vector<Pending> pending_;
};

class OrderedCollectives final : public Collectives {
 public:
  // The group of all ranks of the wire; null: a single rank.
  explicit OrderedCollectives(std::shared_ptr<Wire> wire) : peers_(std::move(wire)) {}

  int rank() const override { return peers_.rank(); }
  int world() const override { return peers_.world(); }
  std::string NameOf(int rank) const override { return peers_.NameOf(rank); }

  Ticket AllReduce(std::span<float> values) override;
  Ticket ReduceScatter(std::span<const float> values, std::span<float> part) override;
  Ticket AllGather(std::span<const std::byte> part, std::span<std::byte> all) override;
  Ticket AllToAll(std::span<const std::byte> parts, std::span<std::byte> received) override;
  Ticket Broadcast(std::span<std::byte> bytes, int root) override;
  Ticket Send(std::span<const std::byte> bytes, int to) override;
  Ticket Receive(std::span<std::byte> bytes, int from) override;
  Ticket Barrier() override;
  absl::StatusOr<std::unique_ptr<Collectives>> Split(int color, Timeout timeout) override;
  absl::Status Await(Ticket ticket, Timeout timeout) override { return queue_.Await(ticket, timeout); }
  bool IsDone(Ticket ticket) override { return queue_.IsDone(ticket); }
  void Abort(const std::string& reason) override;
  int64_t sent_bytes() const override { return peers_.sent_bytes(); }

 private:
  struct Call;  // an operation, as its first 64 bytes describe it

  OrderedCollectives(const Peers& parent, const std::vector<int>& ranks, uint32_t channel)
      : peers_(parent.Subgroup(ranks, channel)) {}

  template <typename Run>
  Ticket Post(const Call& call, Run run);

  // Called on queue_'s thread alone.
  absl::Status Gather(const Call& call, std::span<const std::byte> part, std::span<std::byte> all);
  absl::Status SendTo(const Call& call, std::span<const std::byte> bytes, const std::vector<int>& ranks);
  absl::Status ReceiveFrom(const Call& call, std::span<std::byte> bytes, int rank);
  // Every rank's first 64 bytes, checked against those of this one.
  absl::StatusOr<std::vector<Call>> Meet(const Call& call);
  // Sums the parts that the others have sent for this rank, and its own, in the order of the ranks.
  absl::Status ExchangeAndSum(std::span<const std::span<const float>> parts, std::span<float> sum);
  absl::Status ExchangeParts(std::span<const std::span<std::byte>> parts);

  Peers peers_;
  uint64_t asked_ = 0;           // number of the whole group's operations; used by the owner thread
  std::vector<float> received_;  // parts of the other ranks, while they are summed
  OperationQueue queue_{[this](const std::string& reason) { peers_.Abort(reason); },
                        [this](int rank) { return NameOf(rank < 0 ? peers_.rank() : rank); }};  // last: it calls us
};

}  // namespace causeway::worker
