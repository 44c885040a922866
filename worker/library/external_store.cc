#include "worker/library/external_store.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "core/check.h"

namespace causeway::worker {
namespace {

using Kind = WorkPiece::Kind;
using replica::Movement;
using replica::UnitRange;
using replica::UnitRanges;

absl::Status NotTaken(const char* operation, int64_t id) {
  return absl::InvalidArgumentError(
      absl::StrCat(operation, ": expected the id of work that was taken and is not done, got ", id));
}

}  // namespace

ExternalStore::ExternalStore(std::vector<Tensor> tensors, std::function<void()> changed)
    : tensors_(std::move(tensors)), changed_(std::move(changed)) {}

// ---- Pieces ----

// Each range's values, without padding, inside an array in padded layout.
std::vector<WorkPiece> ExternalStore::PiecesOf(const UnitRanges& ranges, std::span<float> padded,
                                               const WorkPiece& like) const {
  std::vector<WorkPiece> pieces;
  int64_t at = 0;
  for (const UnitRange& range : ranges) {
    WorkPiece piece = like;
    piece.tensor = range.tensor;
    piece.first = range.first * core::kUnitValues;
    const int64_t count = std::min(range.count * core::kUnitValues, tensors_[range.tensor].values - piece.first);
    piece.count = count;
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
  lock.Wait(done_, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return batch.left == 0 || (!ended_.ok() && batch.taken == 0);
  });
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
  taken_[piece.id] = {piece, ticket};
  ++batches_.at(ticket).taken;
  return piece;
}

bool ExternalStore::has_work() const {
  core::MutexLock lock(mutex_);
  return !waiting_.empty() && ended_.ok();
}

absl::StatusOr<WorkPiece> ExternalStore::Taken(const char* operation, int64_t id) const {
  core::MutexLock lock(mutex_);
  const auto taken = taken_.find(id);
  if (taken == taken_.end()) return NotTaken(operation, id);
  return taken->second.first;
}

absl::Status ExternalStore::Keep(int64_t id, const void* theta, void* stream) {
  ASSIGN_OR_RETURN(const WorkPiece piece, Taken("keep", id));
  if (piece.kind != Kind::kKeep) {
    return absl::InvalidArgumentError(
        absl::StrCat("keep: expected work of kind KEEP, got ", static_cast<int>(piece.kind)));
  }
  const absl::Status queued = device_.copy(stream, piece.values.data(), theta, piece.count, piece.event);
  RETURN_IF_ERROR(Done(id, queued));
  return queued;
}

absl::Status ExternalStore::CarryOut(int64_t id, void* theta) {
  ASSIGN_OR_RETURN(const WorkPiece piece, Taken("do_work", id));
  if (piece.kind == Kind::kKeep) {
    return absl::InvalidArgumentError(
        "do_work: expected work on the host's memory, got KEEP, which is causeway_site_keep's");
  }
  if (piece.kind == Kind::kDigest) {
    const Tensor& tensor = tensors_[piece.tensor];
    *piece.digest =
        DigestTheta(tensor.digest_seed, tensor.dtype, {.first = piece.first, .columns = piece.count}, theta);
  } else {
    MoveTheta(piece.kind, piece.factor, piece.anchor ? core::DType::kFloat32 : dtype(piece.tensor), piece.values,
              theta);
  }
  return Done(id, absl::OkStatus());
}

absl::Status ExternalStore::DoneAfter(int64_t id, void* event) {
  ASSIGN_OR_RETURN(const WorkPiece piece, Taken("work_done", id));
  if (device_.await == nullptr) {
    return absl::InvalidArgumentError("cuda_event: expected NULL without causeway_site_encode_on, got a pointer");
  }
  const absl::Status ordered = piece.on_device != nullptr ? device_.order_after(event) : device_.await(event);
  RETURN_IF_ERROR(Done(id, ordered));
  return ordered;
}

absl::Status ExternalStore::Done(int64_t id, const absl::Status& how) {
  core::MutexLock lock(mutex_);
  const auto taken = taken_.find(id);
  if (taken == taken_.end()) return NotTaken("work_done", id);
  Batch& batch = batches_.at(taken->second.second);
  --batch.taken;
  if (how.ok()) {
    --batch.left;
  } else if (ended_.ok()) {
    ended_ = how;
  }
  taken_.erase(taken);
  done_.NotifyAll();
  return absl::OkStatus();
}

void ExternalStore::End(const absl::Status& why) {
  core::MutexLock lock(mutex_);
  if (ended_.ok()) ended_ = why;
  done_.NotifyAll();
}

bool ExternalStore::has_taken_work() const {
  core::MutexLock lock(mutex_);
  return !taken_.empty();
}

// ---- The site ----

void ExternalStore::EncodeOnDevice(std::shared_ptr<replica::ThetaEncoder> encoder, DeviceCalls calls) {
  encoder_ = std::move(encoder);
  device_ = std::move(calls);
}

absl::Status ExternalStore::KeepTheta(const UnitRanges& ranges, float* to, int event) {
  int64_t values = 0;
  for (const UnitRange& range : ranges) values += range.count * core::kUnitValues;
  return Perform(PiecesOf(ranges, std::span(to, static_cast<size_t>(values)),
                          {.kind = Kind::kKeep, .values = {}, .event = event}));
}

int64_t ExternalStore::BeginRead(const UnitRanges& ranges, std::span<float> staging) {
  return Post(PiecesOf(ranges, staging, {.kind = Kind::kRead, .values = {}, .before_change = true}));
}

absl::Status ExternalStore::AwaitRead(int64_t ticket) { return Await(ticket); }

absl::Status ExternalStore::DoMove(const UnitRanges& ranges, const Movement& movement) {
  const bool mixes = movement.kind == Movement::Kind::kMix;
  const Kind mix_or_set = movement.factor == 0 ? Kind::kWrite : Kind::kMix;
  // Pieces have one kind of array; only reads write to it.
  const std::span values(const_cast<float*>(movement.values.data()), movement.values.size());
  std::vector<WorkPiece> pieces =
      PiecesOf(ranges, values, {.kind = mixes ? mix_or_set : Kind::kAdd, .values = {}, .factor = movement.factor});
  const float* const on_device = encoder_ == nullptr ? nullptr : encoder_->AnchorOf(ranges, movement.stamp);
  for (WorkPiece& piece : pieces) {
    if (on_device != nullptr) piece.on_device = on_device + (piece.values.data() - values.data());
  }
  return Perform(pieces);
}

absl::Status ExternalStore::HandOutAnchor(std::vector<std::vector<float>>& tensors) {
  std::vector<WorkPiece> pieces;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].empty()) continue;  // not synced
    pieces.push_back({.kind = Kind::kWrite,
                      .tensor = static_cast<int>(i),
                      .count = std::ssize(tensors[i]),
                      .values = tensors[i],
                      .anchor = true});
  }
  return Perform(pieces);
}

absl::StatusOr<uint64_t> ExternalStore::Digest() {
  std::vector<uint64_t> digests(tensors_.size());
  std::vector<WorkPiece> pieces;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!tensors_[i].synced) continue;
    pieces.push_back({.kind = Kind::kDigest,
                      .tensor = static_cast<int>(i),
                      .count = tensors_[i].values,
                      .values = {},
                      .digest = &digests[i]});
  }
  RETURN_IF_ERROR(Perform(pieces));
  return std::accumulate(digests.begin(), digests.end(), uint64_t{0});
}

}  // namespace causeway::worker
