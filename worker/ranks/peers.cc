#include "worker/ranks/peers.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/check.h"

namespace causeway::worker {
namespace {

std::vector<int> AllOf(const Wire* wire) {
  std::vector<int> ranks(wire == nullptr ? 1 : wire->world());
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

Peers::Peers(std::shared_ptr<Wire> wire) : Peers(wire, AllOf(wire.get()), /*channel=*/0) {}

Peers::Peers(std::shared_ptr<Wire> wire, std::vector<int> members, uint32_t channel)
    : wire_(std::move(wire)), members_(std::move(members)), channel_(channel) {
  if (wire_ == nullptr) return;
  rank_ = static_cast<int>(std::ranges::find(members_, wire_->rank()) - members_.begin());
  CHECK(rank_ < world());
}

std::string Peers::NameOf(int rank) const { return wire_ == nullptr ? "rank 0 of 1" : wire_->NameOf(members_[rank]); }

std::vector<int> Peers::Others() const {
  std::vector<int> others;
  for (int rank = 0; rank < world(); ++rank) {
    if (rank != rank_) others.push_back(rank);
  }
  return others;
}

void Peers::Abort(const std::string& reason) {
  if (wire_ != nullptr) wire_->Abort(reason);
}

Peers Peers::Subgroup(const std::vector<int>& ranks, uint32_t channel) const {
  std::vector<int> members;
  for (const int rank : ranks) members.push_back(members_[rank]);
  return Peers(wire_, std::move(members), channel);
}

void Transfers::Send(int to, Kind kind, std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  if (kind == Kind::kValues) peers_.Count(std::ssize(bytes));
  const uint64_t tag = uint64_t{peers_.channel_} << 1 | static_cast<uint64_t>(kind);
  pending_.push_back({to, peers_.wire_->Send(peers_.members_[to], tag, bytes)});
}

void Transfers::Receive(int from, Kind kind, std::span<std::byte> bytes) {
  if (bytes.empty()) return;
  const uint64_t tag = uint64_t{peers_.channel_} << 1 | static_cast<uint64_t>(kind);
  pending_.push_back({from, peers_.wire_->Receive(peers_.members_[from], tag, bytes)});
}

absl::Status Transfers::Await() {
  for (Pending& one : pending_) {
    queue_.NowAwaits(one.rank);
    RETURN_IF_ERROR(one.transfer->Await());
  }
  pending_.clear();
  return absl::OkStatus();
}

}  // namespace causeway::worker
