#include "worker/site/external_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/outer_step.h"

namespace causeway::worker {

using Kind = WorkPiece::Kind;
using replica::Movement;
using replica::UnitRange;
using replica::UnitRanges;

ExternalStore::ExternalStore(std::vector<Tensor> tensors, std::function<void()> changed)
    : tensors_(std::move(tensors)), changed_(std::move(changed)) {}

// ---- Pieces ----

// Each range's values, without padding, where they lie in an array in padded layout.
std::vector<WorkPiece> ExternalStore::PiecesOf(const UnitRanges& ranges, std::span<float> padded,
                                               const WorkPiece& like) const {
  std::vector<WorkPiece> pieces;
  int64_t at = 0;
  for (const UnitRange& range : ranges) {
    WorkPiece piece = like;
    piece.tensor = range.tensor;
    piece.first = range.first * core::kUnitValues;
    const int64_t count = std::min(range.count * core::kUnitValues, tensors_[range.tensor].values - piece.first);
    piece.values = padded.subspan(at, count);
    at += range.count * core::kUnitValues;
    pieces.push_back(piece);
  }
  return pieces;
}

int64_t ExternalStore::Post(const std::vector<WorkPiece>& pieces) {
  int64_t ticket = 0;
  {
    core::MutexLock lock(mutex_);
    ticket = ++last_ticket_;
    batches_[ticket] = {.left = pieces.size()};
    for (const WorkPiece& piece : pieces) {
      waiting_.emplace_back(piece, ticket);
      waiting_.back().first.id = ++last_id_;
    }
  }
  changed_();
  return ticket;
}

absl::Status ExternalStore::Await(int64_t ticket) {
  core::MutexLock lock(mutex_);
  const Batch& batch = batches_.at(ticket);
  lock.Wait(done_, [&] { return batch.left == 0 || (!ended_.ok() && batch.taken == 0); });
  const absl::Status outcome = batch.left == 0 ? absl::OkStatus() : ended_;
  batches_.erase(ticket);
  return outcome;
}

// ---- The program ----

std::optional<WorkPiece> ExternalStore::Take() {
  core::MutexLock lock(mutex_);
  if (waiting_.empty() || !ended_.ok()) return std::nullopt;
  const auto [piece, ticket] = waiting_.front();
  waiting_.pop_front();
  taken_[piece.id] = ticket;
  ++batches_.at(ticket).taken;
  return piece;
}

bool ExternalStore::has_work() const {
  core::MutexLock lock(mutex_);
  return !waiting_.empty() && ended_.ok();
}

absl::Status ExternalStore::Done(int64_t id, const absl::Status& how) {
  core::MutexLock lock(mutex_);
  const auto taken = taken_.find(id);
  if (taken == taken_.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("work_done: expected the id of work that was taken and is not done, got ", id));
  }
  Batch& batch = batches_.at(taken->second);
  --batch.taken;
  if (how.ok()) {
    --batch.left;
  } else if (ended_.ok()) {
    ended_ = how;
  }
  taken_.erase(taken);
  done_.notify_all();
  return absl::OkStatus();
}

void ExternalStore::End(const absl::Status& why) {
  core::MutexLock lock(mutex_);
  if (ended_.ok()) ended_ = why;
  done_.notify_all();
}

bool ExternalStore::has_taken_work() const {
  core::MutexLock lock(mutex_);
  return !taken_.empty();
}

// ---- The site ----

int64_t ExternalStore::BeginRead(const UnitRanges& ranges, std::span<float> staging) {
  return Post(PiecesOf(ranges, staging, {.kind = Kind::kRead, .values = {}, .before_change = true}));
}

absl::Status ExternalStore::AwaitRead(int64_t ticket) { return Await(ticket); }

absl::Status ExternalStore::DoMove(const UnitRanges& ranges, const Movement& movement) {
  UnitRanges some;  // as many ranges as are moved at once
  int64_t begin = 0, size = 0;
  const auto move_some = [&] {
    const absl::Status moved = MoveAtOnce(some, movement, movement.values.subspan(begin, size));
    begin += std::exchange(size, 0);
    some.clear();
    return moved;
  };
  constexpr int64_t kUnitsAtOnce = kMovedAtOnce / core::kUnitValues;
  for (const UnitRange& range : ranges) {
    for (int64_t unit = 0; unit < range.count;) {
      const int64_t count = std::min(range.count - unit, kUnitsAtOnce - size / core::kUnitValues);
      some.push_back({range.tensor, range.first + unit, count});
      unit += count;
      size += count * core::kUnitValues;
      if (size == kMovedAtOnce) RETURN_IF_ERROR(move_some());
    }
  }
  return some.empty() ? absl::OkStatus() : move_some();
}

absl::Status ExternalStore::MoveAtOnce(const UnitRanges& ranges, const Movement& movement,
                                       std::span<const float> values) {
  std::vector<float> moved(values.begin(), values.end());  // W or s, then what θ becomes
  std::vector<WorkPiece> pieces = PiecesOf(ranges, moved, {.kind = Kind::kWrite, .values = {}});
  const bool sets = movement.kind == Movement::Kind::kMix && movement.factor == 0;
  if (!sets) RETURN_IF_ERROR(ComputeMoved(movement, pieces));
  for (const WorkPiece& piece : pieces) {
    if (piece.kind == Kind::kWrite) core::RoundTo(dtype(piece.tensor), piece.values, piece.values);
  }
  return Perform(pieces);
}

// What θ becomes, in the place of W or s; where the program computes it, the piece says so instead.
absl::Status ExternalStore::ComputeMoved(const Movement& movement, std::vector<WorkPiece>& pieces) {
  const bool mixes = movement.kind == Movement::Kind::kMix;
  std::vector<std::vector<float>> theta(pieces.size());
  std::vector<WorkPiece> reads;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (tensors_[pieces[i].tensor].caller_moves) {
      pieces[i].kind = mixes ? Kind::kMix : Kind::kAdd;
      pieces[i].factor = movement.factor;
      continue;
    }
    theta[i].resize(pieces[i].values.size());
    reads.push_back(pieces[i]);
    reads.back().kind = Kind::kRead;
    reads.back().values = theta[i];
  }
  RETURN_IF_ERROR(Perform(reads));
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (theta[i].empty()) continue;
    if (mixes) {
      core::MixAnchor(movement.factor, pieces[i].values, theta[i]);
    } else {
      core::Rebase(movement.factor, pieces[i].values, theta[i]);
    }
    std::ranges::copy(theta[i], pieces[i].values.begin());
  }
  return absl::OkStatus();
}

absl::Status ExternalStore::HandOutAnchor(std::vector<std::vector<float>>& tensors) {
  std::vector<WorkPiece> pieces;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].empty()) continue;  // not synced
    pieces.push_back({.kind = Kind::kWrite, .tensor = static_cast<int>(i), .values = tensors[i], .anchor = true});
  }
  return Perform(pieces);
}

}  // namespace causeway::worker
