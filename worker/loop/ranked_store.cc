#include "worker/loop/ranked_store.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/digest.h"
#include "core/layout.h"
#include "core/random.h"

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

// ---- Pieces of a rank ----

bool IsDivided(const Trainer& trainer) { return !trainer.pieces(0).empty(); }

int64_t ValuesOf(const replica::UnitRange& range) { return range.count * core::kUnitValues; }

struct HeldPiece {
  Piece piece;          // of a range, on a rank; `at` in an array of all ranges
  int64_t at_held = 0;  // in one of the ranges of which the rank has a piece
  bool reads = false;   // no rank before has it
};

struct Held {
  replica::UnitRanges ranges;
  std::vector<HeldPiece> pieces;
  int64_t values = 0, padded = 0;  // of the pieces, and of the ranges
};

// On all ranks, in their order; `at` counts from the range.
std::vector<HeldPiece> PiecesOf(const Trainer& trainer, const replica::UnitRange& range) {
  const int64_t begin = range.first * core::kUnitValues, end = begin + ValuesOf(range);
  const std::vector<Piece> pieces = trainer.pieces(range.tensor);
  std::vector<HeldPiece> held;
  for (const Piece& piece : pieces) {
    const int64_t first = std::max(begin, piece.first), last = std::min(end, piece.first + piece.count);
    if (first >= last) continue;
    const auto reader = std::ranges::find_if(
        pieces, [&](const Piece& other) { return other.first == piece.first && other.count == piece.count; });
    held.push_back(
        {{piece.rank, range.tensor, first, last - first, first - begin}, first - begin, reader->rank == piece.rank});
  }
  return held;
}

Held HeldBy(const Trainer& trainer, const replica::UnitRanges& all, int rank) {
  Held held;
  int64_t at = 0;
  for (const replica::UnitRange& range : all) {
    const size_t pieces_before = held.pieces.size();
    for (HeldPiece each : PiecesOf(trainer, range)) {
      if (each.piece.rank != rank) continue;
      each.piece.at += at;
      each.at_held += held.padded;
      held.values += each.piece.count;
      held.pieces.push_back(each);
    }
    if (held.pieces.size() > pieces_before) {
      held.ranges.push_back(range);
      held.padded += ValuesOf(range);
    }
    at += ValuesOf(range);
  }
  return held;
}

template <typename Value>
std::span<Value> Within(std::span<Value> array, int64_t first, int64_t count) {
  return array.subspan(static_cast<size_t>(first), static_cast<size_t>(count));
}

// The pieces one after the other, out of an array of all ranges.
std::vector<float> Packed(const Held& held, std::span<const float> all) {
  std::vector<float> values;
  values.reserve(static_cast<size_t>(held.values));
  for (const HeldPiece& each : held.pieces) {
    const auto from = Within(all, each.piece.at, each.piece.count);
    values.insert(values.end(), from.begin(), from.end());
  }
  return values;
}

// Moves a rank's pieces of the ranges by their packed values.
absl::Status MovePacked(Trainer& trainer, const Held& held, replica::Movement movement, std::span<const float> packed) {
  std::vector<float> padded(static_cast<size_t>(held.padded));
  int64_t next = 0;
  for (const HeldPiece& each : held.pieces) {
    std::ranges::copy(Within(packed, next, each.piece.count), padded.begin() + each.at_held);
    next += each.piece.count;
  }
  movement.values = padded;
  return trainer.store().Move(held.ranges, movement);
}

// ---- Equality of the ranks ----

absl::StatusOr<uint64_t> DigestOf(Trainer& trainer, const replica::UnitRanges& ranges, int rank) {
  uint64_t digest = 0;
  const auto add = [&](int tensor, int64_t first, std::span<const float> values) {
    digest += core::ThetaDigest(core::ThetaSeed(trainer.manifest()[tensor].name), first, values);
  };
  if (!IsDivided(trainer)) {
    for (const replica::UnitRange& range : ranges) {
      const std::span<const float> values = trainer.tensor(range.tensor);
      const int64_t first = range.first * core::kUnitValues;
      add(range.tensor, first, Within(values, first, std::min(std::ssize(values) - first, ValuesOf(range))));
    }
    return digest;
  }
  const Held held = HeldBy(trainer, ranges, rank);
  std::vector<float> values(static_cast<size_t>(held.padded));
  RETURN_IF_ERROR(trainer.store().Read(held.ranges, values));
  for (const HeldPiece& each : held.pieces) {
    add(each.piece.tensor, each.piece.first, Within(std::span<const float>(values), each.at_held, each.piece.count));
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

// For each rank, the first that holds the same of these ranges.
std::vector<int> TwinsOf(const Trainer& trainer, const replica::UnitRanges& ranges, int world) {
  std::vector<int> twins(static_cast<size_t>(world));
  if (!IsDivided(trainer)) return twins;
  using Pieces = std::vector<std::tuple<int, int64_t, int64_t>>;  // tensor, first, count
  std::vector<Pieces> pieces(twins.size());
  for (const replica::UnitRange& range : ranges) {
    for (const HeldPiece& each : PiecesOf(trainer, range)) {
      pieces[static_cast<size_t>(each.piece.rank)].emplace_back(each.piece.tensor, each.piece.first, each.piece.count);
    }
  }
  std::map<Pieces, int> first;
  for (size_t rank = 0; rank < pieces.size(); ++rank) {
    twins[rank] = first.emplace(pieces[rank], static_cast<int>(rank)).first->second;
  }
  return twins;
}

// INTERNAL names the first rank that differs from its twin.
absl::Status CheckEqual(RankControl& control, uint64_t mine, const std::string& what, const std::vector<int>& twins) {
  ASSIGN_OR_RETURN(const std::vector<uint64_t> digests, control.GatherDigests(mine));
  for (size_t rank = 1; rank < digests.size(); ++rank) {
    const int twin = twins[rank];
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
  ASSIGN_OR_RETURN(const uint64_t digest, DigestOf(trainer, ranges, control.group().rank()));
  return CheckEqual(control, digest, what, TwinsOf(trainer, ranges, control.group().world()));
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
    // Broadcast writes only on the other ranks.
    RETURN_IF_ERROR(
        control_.Broadcast(BytesOf(std::span(const_cast<float*>(movement.values.data()), movement.values.size()))));
    RETURN_IF_ERROR(own_.store().Move(ranges, movement));
  }
  return CheckMoved(control_, own_, ranges);
}

// Sends each rank the values of its pieces, and moves the leader's own here.
absl::Status RankedStore::GiveValues(const replica::UnitRanges& ranges, const replica::Movement& movement) {
  for (int rank = control_.group().world() - 1; rank >= 0; --rank) {
    const Held held = HeldBy(own_, ranges, rank);
    if (held.pieces.empty()) continue;
    const std::vector<float> values = Packed(held, movement.values);
    RETURN_IF_ERROR(rank > 0 ? control_.Await(control_.group().Send(BytesOf(std::span(values)), rank))
                             : MovePacked(own_, held, movement, values));
  }
  return absl::OkStatus();
}

replica::ThetaEncoder* RankedStore::encoder() {
  return control_.alone() || !IsDivided(own_) ? own_.store().encoder() : nullptr;
}

int64_t RankedStore::BeginRead(const replica::UnitRanges& ranges, std::span<float> staging) {
  if (control_.alone() || !IsDivided(own_)) return own_.store().BeginRead(ranges, staging);
  const RanksTogether together(control_);
  Read read{.begun = control_.Tell({.kind = Kind::kRead, .payload = RangesPayload(ranges)})};
  int64_t at = 0;
  for (const replica::UnitRange& range : ranges) {
    const std::vector<HeldPiece> parts = read.begun.ok() ? PiecesOf(own_, range) : std::vector<HeldPiece>();
    for (const HeldPiece& each : parts) {
      if (!each.reads || each.piece.rank == 0) continue;
      read.received =
          control_.group().Receive(BytesOf(Within(staging, at + each.piece.at, each.piece.count)), each.piece.rank);
    }
    if (std::ranges::any_of(parts, [](const HeldPiece& each) { return each.reads && each.piece.rank == 0; })) {
      read.own.push_back(own_.store().BeginRead({range}, Within(staging, at, ValuesOf(range))));
    }
    at += ValuesOf(range);
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
  if (!IsDivided(trainer)) {
    std::vector<float> values(static_cast<size_t>(command.count));
    RETURN_IF_ERROR(control.Broadcast(BytesOf(std::span(values))));
    movement.values = values;
    RETURN_IF_ERROR(trainer.store().Move(ranges, movement));
  } else if (const Held held = HeldBy(trainer, ranges, control.group().rank()); !held.pieces.empty()) {
    std::vector<float> values(static_cast<size_t>(held.values));
    RETURN_IF_ERROR(control.Await(control.group().Receive(BytesOf(std::span(values)), 0)));
    RETURN_IF_ERROR(MovePacked(trainer, held, movement, values));
  }
  return CheckMoved(control, trainer, ranges);
}

absl::Status FollowRead(const RankCommand& command, Trainer& trainer, RankControl& control) {
  replica::Movement unused;
  for (const replica::UnitRange& range : ParseRanges(command.payload, unused)) {
    const Held held = HeldBy(trainer, {range}, control.group().rank());
    if (std::ranges::none_of(held.pieces, &HeldPiece::reads)) continue;
    std::vector<float> values(static_cast<size_t>(held.padded));
    RETURN_IF_ERROR(trainer.store().Read({range}, values));
    for (const HeldPiece& each : held.pieces) {
      if (!each.reads) continue;
      const auto from = Within(std::span<const float>(values), each.at_held, each.piece.count);
      RETURN_IF_ERROR(control.Await(control.group().Send(BytesOf(from), 0)));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckStart(RankControl& control, Trainer& trainer) {
  RETURN_IF_ERROR(
      CheckEqual(control, DataDigest(trainer), "data", std::vector<int>(static_cast<size_t>(control.group().world()))));
  return CheckParameters(control, trainer, AllRanges(trainer.manifest()), "initial parameters");
}

}  // namespace causeway::worker
