// The ranks of one group on a wire, and the transfers of one operation between them.
//
//   Transfers transfers(peers, queue);
//   transfers.Send(rank, bytes), transfers.Receive(rank, bytes), … ─► side by side ─► transfers.Await()
//
// Ranks are numbered within the group. One owner thread, except for const members.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/ranks/operation_queue.h"
#include "worker/ranks/wire.h"

namespace causeway::worker {

class Peers {
 public:
  // No wire: a single rank. `channel`: unique among the groups on the wire.
  Peers(std::shared_ptr<Wire> wire, std::vector<int> members, uint32_t channel);
  explicit Peers(std::shared_ptr<Wire> wire);  // all ranks of it

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
  int rank_ = 0;              // among them
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
  absl::Status Await();  // all of them

 private:
  struct Pending {
    int rank = 0;
    std::unique_ptr<Wire::Transfer> transfer;
  };

  Peers& peers_;
  OperationQueue& queue_;
  std::vector<Pending> pending_;
};

}  // namespace causeway::worker
