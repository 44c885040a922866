#include "worker/ranks/ordered_collectives.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/multiversion.h"

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

enum class CallKind : uint32_t { kReduce, kScatter, kGather, kAllToAll, kBroadcast, kSend, kBarrier, kSplit };

namespace {

constexpr const char* kNames[] = {"all-reduce", "reduce-scatter", "all-gather", "all-to-all",
                                  "broadcast",  "send",           "barrier",    "split"};

constexpr size_t kInline = 40;  // bytes of values that fit into the first 64

// The number of values that an all-reduce takes at a time, which bounds the memory for those of the other ranks.
constexpr size_t kSliceValues = size_t{4} << 20;

// sum ← parts[0] + parts[1] + …, in this order for each value. `sum` may be one of the parts.
CAUSEWAY_MULTIVERSION
void SumInOrder(const float* const* parts, int count, size_t size, float* sum) {
  constexpr size_t kBlock = 1024;
  float block[kBlock];
  for (size_t first = 0; first < size; first += kBlock) {
    const size_t n = std::min(kBlock, size - first);
    std::memcpy(block, parts[0] + first, n * sizeof(float));
    for (int rank = 1; rank < count; ++rank) {
      const float* const part = parts[rank] + first;
      for (size_t i = 0; i < n; ++i) block[i] += part[i];
    }
    std::memcpy(sum + first, block, n * sizeof(float));
  }
}

}  // namespace

struct OrderedCollectives::Call {
  CallKind kind = CallKind::kBarrier;
  int32_t root = -1;    // of a broadcast
  uint64_t number = 0;  // among the operations of the whole group; 0 for a pair's
  uint64_t bytes = 0;   // contributed by each rank
  char values[kInline] = {};

  std::string Name() const {
    std::string name = kNames[static_cast<uint32_t>(kind) % std::size(kNames)];
    if (number > 0) absl::StrAppend(&name, " ", number);
    if (kind != CallKind::kBarrier && kind != CallKind::kSplit) absl::StrAppend(&name, " of ", bytes, " bytes");
    if (root >= 0) absl::StrAppend(&name, " from rank ", root);
    return name;
  }
  bool Inline() const { return bytes <= kInline; }
  // Whether the call of the rank `theirs_name` matches this one.
  absl::Status Expect(const Call& theirs, const std::string& theirs_name) const {
    if (kind == theirs.kind && root == theirs.root && number == theirs.number && bytes == theirs.bytes) {
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError(
        absl::StrCat(theirs_name, ": expected ", Name(), ", as the others do, got ", theirs.Name()));
  }
};

template <typename Run>
Collectives::Ticket OrderedCollectives::Post(const Call& call, Run run) {
  return queue_.Post({call.Name(), [call, run = std::move(run)] { return run(call); }});
}

void OrderedCollectives::Abort(const std::string& reason) {
  queue_.Fail(absl::AbortedError(reason), absl::StrCat(NameOf(rank()), ": ", reason));
}

// ---- Parts of the operations ----

absl::StatusOr<std::vector<OrderedCollectives::Call>> OrderedCollectives::Meet(const Call& call) {
  std::vector<Call> calls(world());
  Transfers transfers(peers_, queue_);
  for (const int rank : peers_.Others()) {
    transfers.Receive(rank, Transfers::Kind::kCall, BytesOf(std::span(&calls[rank], 1)));
    transfers.Send(rank, Transfers::Kind::kCall, BytesOf(std::span(&call, 1)));
  }
  RETURN_IF_ERROR(transfers.Await());
  calls[rank()] = call;
  for (const int rank : peers_.Others()) RETURN_IF_ERROR(call.Expect(calls[rank], NameOf(rank)));
  if (call.Inline()) peers_.Count(static_cast<int64_t>(call.bytes) * (world() - 1));
  return calls;
}

absl::Status OrderedCollectives::ExchangeAndSum(std::span<const std::span<const float>> parts, std::span<float> sum) {
  received_.resize(std::max(received_.size(), sum.size() * parts.size()));
  std::vector<const float*> sources(parts.size());
  Transfers transfers(peers_, queue_);
  for (const int rank : peers_.Others()) {
    const std::span<float> from = std::span(received_).subspan(sum.size() * rank, sum.size());
    sources[rank] = from.data();
    transfers.Receive(rank, Transfers::Kind::kValues, BytesOf(from));
    transfers.Send(rank, Transfers::Kind::kValues, BytesOf(parts[rank]));
  }
  sources[rank()] = parts[rank()].data();
  RETURN_IF_ERROR(transfers.Await());
  SumInOrder(sources.data(), world(), sum.size(), sum.data());
  return absl::OkStatus();
}

absl::Status OrderedCollectives::ExchangeParts(std::span<const std::span<std::byte>> parts) {
  Transfers transfers(peers_, queue_);
  for (const int rank : peers_.Others()) {
    transfers.Receive(rank, Transfers::Kind::kValues, parts[rank]);
    transfers.Send(rank, Transfers::Kind::kValues, parts[this->rank()]);
  }
  return transfers.Await();
}

// ---- The operations ----

Collectives::Ticket OrderedCollectives::AllReduce(std::span<float> values) {
  return Post(Call{.kind = CallKind::kReduce, .number = ++asked_, .bytes = values.size_bytes()},
              [this, values](const Call& call) -> absl::Status {
                if (world() == 1) return absl::OkStatus();
                RETURN_IF_ERROR(Meet({.kind = call.kind, .number = call.number, .bytes = call.bytes}).status());
                for (size_t first = 0; first < values.size(); first += kSliceValues) {
                  const std::span<float> slice = values.subspan(first, std::min(kSliceValues, values.size() - first));
                  std::vector<std::span<const float>> parts(world());
                  std::vector<std::span<std::byte>> bytes(world());
                  std::span<float> own;
                  for (int rank = 0; rank < world(); ++rank) {
                    const size_t begin = slice.size() * rank / world();
                    const std::span<float> part = slice.subspan(begin, slice.size() * (rank + 1) / world() - begin);
                    parts[rank] = part;
                    bytes[rank] = BytesOf(part);
                    if (rank == peers_.rank()) own = part;
                  }
                  RETURN_IF_ERROR(ExchangeAndSum(parts, own));
                  RETURN_IF_ERROR(ExchangeParts(bytes));
                }
                return absl::OkStatus();
              });
}

Collectives::Ticket OrderedCollectives::ReduceScatter(std::span<const float> values, std::span<float> part) {
  CHECK(values.size() == part.size() * world());
  return Post(Call{.kind = CallKind::kScatter, .number = ++asked_, .bytes = values.size_bytes()},
              [this, values, part](const Call& call) -> absl::Status {
                if (world() > 1) RETURN_IF_ERROR(Meet(call).status());
                std::vector<std::span<const float>> parts(world());
                for (int rank = 0; rank < world(); ++rank) {
                  parts[rank] = values.subspan(part.size() * rank, part.size());
                }
                return ExchangeAndSum(parts, part);
              });
}

Collectives::Ticket OrderedCollectives::AllGather(std::span<const std::byte> part, std::span<std::byte> all) {
  CHECK(all.size() == part.size() * world());
  return Post(Call{.kind = CallKind::kGather, .number = ++asked_, .bytes = part.size()},
              [this, part, all](const Call& call) { return Gather(call, part, all); });
}

absl::Status OrderedCollectives::Gather(const Call& call, std::span<const std::byte> part, std::span<std::byte> all) {
  std::vector<std::span<std::byte>> parts(world());
  for (int rank = 0; rank < world(); ++rank) parts[rank] = all.subspan(part.size() * rank, part.size());
  if (!part.empty()) std::memmove(parts[rank()].data(), part.data(), part.size());
  if (world() == 1) return absl::OkStatus();
  Call mine = call;
  if (call.Inline() && !part.empty()) std::memcpy(mine.values, part.data(), part.size());
  ASSIGN_OR_RETURN(const std::vector<Call> calls, Meet(mine));
  if (!call.Inline()) return ExchangeParts(parts);
  for (int rank = 0; rank < world() && !part.empty(); ++rank) {
    std::memcpy(parts[rank].data(), calls[rank].values, part.size());
  }
  return absl::OkStatus();
}

Collectives::Ticket OrderedCollectives::AllToAll(std::span<const std::byte> parts, std::span<std::byte> received) {
  CHECK(parts.size() == received.size() && parts.size() % world() == 0);
  return Post(Call{.kind = CallKind::kAllToAll, .number = ++asked_, .bytes = parts.size()},
              [this, parts, received](const Call& call) -> absl::Status {
                const size_t size = parts.size() / world();
                if (size > 0) std::memcpy(received.data() + size * rank(), parts.data() + size * rank(), size);
                if (world() == 1) return absl::OkStatus();
                RETURN_IF_ERROR(Meet(call).status());
                Transfers transfers(peers_, queue_);
                for (const int other : peers_.Others()) {
                  transfers.Receive(other, Transfers::Kind::kValues, received.subspan(size * other, size));
                  transfers.Send(other, Transfers::Kind::kValues, parts.subspan(size * other, size));
                }
                return transfers.Await();
              });
}

Collectives::Ticket OrderedCollectives::Broadcast(std::span<std::byte> bytes, int root) {
  CHECK(root >= 0 && root < world());
  return Post(Call{.kind = CallKind::kBroadcast, .root = root, .number = ++asked_, .bytes = bytes.size()},
              [this, bytes](const Call& call) {
                return call.root == this->rank() ? SendTo(call, bytes, peers_.Others())
                                                 : ReceiveFrom(call, bytes, call.root);
              });
}

Collectives::Ticket OrderedCollectives::Send(std::span<const std::byte> bytes, int to) {
  CHECK(to >= 0 && to < world() && to != rank());
  return Post(Call{.kind = CallKind::kSend, .bytes = bytes.size()},
              [this, bytes, to](const Call& call) { return SendTo(call, bytes, {to}); });
}

Collectives::Ticket OrderedCollectives::Receive(std::span<std::byte> bytes, int from) {
  CHECK(from >= 0 && from < world() && from != rank());
  return Post(Call{.kind = CallKind::kSend, .bytes = bytes.size()},
              [this, bytes, from](const Call& call) { return ReceiveFrom(call, bytes, from); });
}

absl::Status OrderedCollectives::SendTo(const Call& call, std::span<const std::byte> bytes,
                                        const std::vector<int>& ranks) {
  Call first = call;
  if (call.Inline() && !bytes.empty()) std::memcpy(first.values, bytes.data(), bytes.size());
  Transfers transfers(peers_, queue_);
  for (const int rank : ranks) {
    transfers.Send(rank, Transfers::Kind::kCall, BytesOf(std::span<const Call>(&first, 1)));
    if (call.Inline()) {
      peers_.Count(std::ssize(bytes));
    } else {
      transfers.Send(rank, Transfers::Kind::kValues, bytes);
    }
  }
  return transfers.Await();
}

absl::Status OrderedCollectives::ReceiveFrom(const Call& call, std::span<std::byte> bytes, int rank) {
  Call first;
  Transfers transfers(peers_, queue_);
  transfers.Receive(rank, Transfers::Kind::kCall, BytesOf(std::span(&first, 1)));
  RETURN_IF_ERROR(transfers.Await());
  RETURN_IF_ERROR(call.Expect(first, NameOf(rank)));
  if (call.Inline()) {
    if (!bytes.empty()) std::memcpy(bytes.data(), first.values, bytes.size());
    return absl::OkStatus();
  }
  transfers.Receive(rank, Transfers::Kind::kValues, bytes);
  return transfers.Await();
}

Collectives::Ticket OrderedCollectives::Barrier() {
  return Post(Call{.kind = CallKind::kBarrier, .number = ++asked_},
              [this](const Call& call) { return world() == 1 ? absl::OkStatus() : Meet(call).status(); });
}

absl::StatusOr<std::unique_ptr<Collectives>> OrderedCollectives::Split(int color, Timeout timeout) {
  struct Choice {
    int32_t color;
    uint32_t next_channel;
  };
  const Choice mine{color, peers_.next_channel()};
  std::vector<Choice> choices(world());
  RETURN_IF_ERROR(Await(AllGather(BytesOf(std::span(&mine, 1)), BytesOf(std::span(choices))), timeout));
  std::vector<int> ranks;
  std::vector<int32_t> colors;
  uint32_t channel = 0;
  for (int rank = 0; rank < world(); ++rank) {
    if (choices[rank].color == color) ranks.push_back(rank);
    colors.push_back(choices[rank].color);
    channel = std::max(channel, choices[rank].next_channel);
  }
  std::ranges::sort(colors);
  colors.erase(std::unique(colors.begin(), colors.end()), colors.end());
  peers_.TakeChannelsTo(channel + static_cast<uint32_t>(colors.size()));
  channel += static_cast<uint32_t>(std::ranges::find(colors, color) - colors.begin());
  return std::unique_ptr<Collectives>(new OrderedCollectives(peers_, ranks, channel));
}

}  // namespace causeway::worker
