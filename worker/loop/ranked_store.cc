#include "worker/loop/ranked_store.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/layout.h"
#include "core/random.h"
#include "core/theta_digest.h"

namespace causeway::worker {
namespace {

using Kind = RankCommand::Kind;

// ---- Ranges and how they move, as bytes ----

struct MoveHead {
  uint32_t kind = 0;
  float factor = 0;
};

std::string RangesPayload(const replica::UnitRanges& ranges, const replica::Movement& movement = {}) {
  const MoveHead head{static_cast<uint32_t>(movement.kind), movement.factor};
  std::string payload(sizeof(head) + ranges.size() * sizeof(replica::UnitRange), '\0');
  std::memcpy(payload.data(), &head, sizeof(head));
  if (!ranges.empty()) {
    std::memcpy(payload.data() + sizeof(head), ranges.data(), ranges.size() * sizeof(replica::UnitRange));
  }
  return payload;
}

replica::UnitRanges ParseRanges(const std::string& payload, replica::Movement& movement) {
  MoveHead head;
  CHECK(payload.size() >= sizeof(head) && (payload.size() - sizeof(head)) % sizeof(replica::UnitRange) == 0);
  std::memcpy(&head, payload.data(), sizeof(head));
  movement.kind = static_cast<replica::Movement::Kind>(head.kind);
  movement.factor = head.factor;
  replica::UnitRanges ranges((payload.size() - sizeof(head)) / sizeof(replica::UnitRange));
  if (!ranges.empty()) std::memcpy(ranges.data(), payload.data() + sizeof(head), payload.size() - sizeof(head));
  return ranges;
}

// ---- Tensors of a rank ----

bool Holds(const Trainer& trainer, int tensor, int rank) {
  const std::vector<int> holders = trainer.holders(tensor);
  return holders.empty() || std::ranges::find(holders, rank) != holders.end();
}

bool Gives(const Trainer& trainer, int tensor, int rank) {  // to a read
  const std::vector<int> holders = trainer.holders(tensor);
  return holders.empty() ? rank == 0 : holders.front() == rank;
}

bool IsDivided(const Trainer& trainer) { return !trainer.holders(0).empty(); }

// Ranges of a rank's tensors, and where each one's padded values begin among those of all.
struct OwnRanges {
  replica::UnitRanges ranges;
  std::vector<int64_t> firsts;
  int64_t values = 0;  // of these
};

OwnRanges Select(const replica::UnitRanges& all, const std::function<bool(int tensor)>& selects) {
  OwnRanges own;
  int64_t first = 0;
  for (const replica::UnitRange& range : all) {
    const int64_t values = range.count * core::kUnitValues;
    if (selects(range.tensor)) {
      own.ranges.push_back(range);
      own.firsts.push_back(first);
      own.values += values;
    }
    first += values;
  }
  return own;
}

int64_t ValuesOf(const replica::UnitRange& range) { return range.count * core::kUnitValues; }

OwnRanges HeldBy(const Trainer& trainer, const replica::UnitRanges& all, int rank) {
  return Select(all, [&](int tensor) { return Holds(trainer, tensor, rank); });
}

// The values of these ranges out of those of all.
std::vector<float> Packed(const OwnRanges& own, std::span<const float> all) {
  std::vector<float> values;
  values.reserve(static_cast<size_t>(own.values));
  for (size_t i = 0; i < own.ranges.size(); ++i) {
    const auto part = all.subspan(static_cast<size_t>(own.firsts[i]), static_cast<size_t>(ValuesOf(own.ranges[i])));
    values.insert(values.end(), part.begin(), part.end());
  }
  return values;
}

// ---- Equality of the ranks ----

uint64_t DigestOf(Trainer& trainer, const replica::UnitRanges& ranges, int rank) {
  uint64_t digest = 0;
  for (const replica::UnitRange& range : HeldBy(trainer, ranges, rank).ranges) {
    const std::span<const float> values = trainer.tensor(range.tensor);
    const int64_t first = range.first * core::kUnitValues;
    const int64_t end = std::min(std::ssize(values), (range.first + range.count) * core::kUnitValues);
    digest += core::ThetaDigest(core::ThetaSeed(trainer.manifest()[range.tensor].name), first,
                                values.subspan(first, end - first));
  }
  return digest;
}

replica::UnitRanges AllRanges(const core::Manifest& manifest) {
  replica::UnitRanges ranges;
  for (size_t i = 0; i < manifest.size(); ++i) {
    ranges.push_back({static_cast<int>(i), 0, core::UnitsFor(manifest[i].NumValues())});
  }
  return ranges;
}

uint64_t DataDigest(const Trainer& trainer) {
  const core::SiteData data = trainer.data();
  uint64_t digest = 0;
  for (const auto& one : {data.training, data.held_out}) {
    digest = core::HashCombine(digest, one ? one->digest : 0);
    digest = core::HashCombine(digest, one ? static_cast<uint64_t>(one->tokens) : 0);
  }
  return digest;
}

// The first rank that holds the same of these tensors.
int TwinOf(const Trainer& trainer, const replica::UnitRanges& ranges, int rank) {
  for (int twin = 0; twin < rank; ++twin) {
    const auto alike = [&](const replica::UnitRange& range) {
      return Holds(trainer, range.tensor, rank) == Holds(trainer, range.tensor, twin);
    };
    if (std::ranges::all_of(ranges, alike)) return twin;
  }
  return rank;
}

// INTERNAL names the first rank that differs from its twin.
absl::Status CheckEqual(RankControl& control, uint64_t mine, const std::string& what,
                        const std::function<int(int rank)>& twin_of) {
  ASSIGN_OR_RETURN(const std::vector<uint64_t> digests, control.GatherDigests(mine));
  for (size_t rank = 1; rank < digests.size(); ++rank) {
    const int twin = twin_of(static_cast<int>(rank));
    const uint64_t expected = digests[static_cast<size_t>(twin)];
    if (digests[rank] == expected) continue;
    return absl::InternalError(absl::StrCat(control.group().NameOf(static_cast<int>(rank)), " differs: expected ", what,
                                            " with digest ", absl::Hex(expected, absl::kZeroPad16), ", as rank ", twin,
                                            ", got ", absl::Hex(digests[rank], absl::kZeroPad16)));
  }
  return absl::OkStatus();
}

absl::Status CheckParameters(RankControl& control, Trainer& trainer, const replica::UnitRanges& ranges,
                             const std::string& what) {
  return CheckEqual(control, DigestOf(trainer, ranges, control.group().rank()), what,
                    [&](int rank) { return TwinOf(trainer, ranges, rank); });
}

absl::Status CheckMoved(RankControl& control, Trainer& trainer, const replica::UnitRanges& ranges) {
  return CheckParameters(control, trainer, ranges, "parameters after a move");
}

}  // namespace

// ---- The leader ----

absl::Status RankedStore::DoMove(const replica::UnitRanges& ranges, const replica::Movement& movement) {
  if (control_.alone()) return own_.store().Move(ranges, movement);
  const RanksTogether together(control_);
  RETURN_IF_ERROR(control_.Tell({Kind::kMove, std::ssize(movement.values), RangesPayload(ranges, movement)}));
  if (IsDivided(own_)) {
    RETURN_IF_ERROR(GiveValues(ranges, movement));
  } else {
    // Broadcast writes on the other ranks alone.
    RETURN_IF_ERROR(
        control_.Broadcast(BytesOf(std::span(const_cast<float*>(movement.values.data()), movement.values.size()))));
    RETURN_IF_ERROR(own_.store().Move(ranges, movement));
  }
  return CheckMoved(control_, own_, ranges);
}

// To each rank the values of its tensors, and here by those of the leader's.
absl::Status RankedStore::GiveValues(const replica::UnitRanges& ranges, const replica::Movement& movement) {
  for (int rank = control_.group().world() - 1; rank >= 0; --rank) {
    const OwnRanges part = HeldBy(own_, ranges, rank);
    if (part.ranges.empty()) continue;
    const std::vector<float> values = Packed(part, movement.values);
    if (rank > 0) {
      RETURN_IF_ERROR(control_.Await(control_.group().Send(BytesOf(std::span(values)), rank)));
    } else {
      RETURN_IF_ERROR(own_.store().Move(part.ranges, {movement.kind, movement.factor, values}));
    }
  }
  return absl::OkStatus();
}

int64_t RankedStore::BeginRead(const replica::UnitRanges& ranges, std::span<float> staging) {
  if (control_.alone() || !IsDivided(own_)) return own_.store().BeginRead(ranges, staging);
  const RanksTogether together(control_);
  Read read{.begun = control_.Tell({.kind = Kind::kRead, .payload = RangesPayload(ranges)})};
  for (int rank = 0; rank < control_.group().world() && read.begun.ok(); ++rank) {
    const OwnRanges part = Select(ranges, [&](int tensor) { return Gives(own_, tensor, rank); });
    for (size_t i = 0; i < part.ranges.size(); ++i) {
      const auto to =
          staging.subspan(static_cast<size_t>(part.firsts[i]), static_cast<size_t>(ValuesOf(part.ranges[i])));
      if (rank > 0) {
        read.received = control_.group().Receive(BytesOf(to), rank);
      } else {
        read.own.push_back(own_.store().BeginRead({part.ranges[i]}, to));
      }
    }
  }
  const core::MutexLock lock(mutex_);
  reads_[++tickets_] = std::move(read);
  return tickets_;
}

absl::Status RankedStore::AwaitRead(int64_t ticket) {
  if (control_.alone() || !IsDivided(own_)) return own_.store().AwaitRead(ticket);
  Read read;
  {
    const core::MutexLock lock(mutex_);
    read = std::move(reads_.extract(ticket).mapped());
  }
  RETURN_IF_ERROR(read.begun);
  for (const int64_t own : read.own) RETURN_IF_ERROR(own_.store().AwaitRead(own));
  return read.received == 0 ? absl::OkStatus() : control_.Await(read.received);
}

// ---- A follower ----

absl::Status FollowMove(const RankCommand& command, Trainer& trainer, RankControl& control) {
  replica::Movement movement;
  const replica::UnitRanges ranges = ParseRanges(command.payload, movement);
  const OwnRanges held = HeldBy(trainer, ranges, control.group().rank());
  std::vector<float> values(static_cast<size_t>(IsDivided(trainer) ? held.values : command.count));
  if (!IsDivided(trainer)) {
    RETURN_IF_ERROR(control.Broadcast(BytesOf(std::span(values))));
  } else if (!values.empty()) {
    RETURN_IF_ERROR(control.Await(control.group().Receive(BytesOf(std::span(values)), 0)));
  }
  movement.values = values;
  RETURN_IF_ERROR(trainer.store().Move(held.ranges, movement));
  return CheckMoved(control, trainer, ranges);
}

absl::Status FollowRead(const RankCommand& command, Trainer& trainer, RankControl& control) {
  replica::Movement unused;
  const replica::UnitRanges ranges = ParseRanges(command.payload, unused);
  for (const replica::UnitRange& range : ranges) {
    if (!Gives(trainer, range.tensor, control.group().rank())) continue;
    std::vector<float> values(static_cast<size_t>(ValuesOf(range)));
    RETURN_IF_ERROR(trainer.store().Read({range}, values));
    RETURN_IF_ERROR(control.Await(control.group().Send(BytesOf(std::span<const float>(values)), 0)));
  }
  return absl::OkStatus();
}

absl::Status CheckStart(RankControl& control, Trainer& trainer) {
  RETURN_IF_ERROR(CheckEqual(control, DataDigest(trainer), "data", [](int) { return 0; }));
  return CheckParameters(control, trainer, AllRanges(trainer.manifest()), "initial parameters");
}

}  // namespace causeway::worker
