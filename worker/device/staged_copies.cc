#include "worker/device/staged_copies.h"

#include <algorithm>
#include <vector>

#include "core/check.h"
#include "core/host_limits.h"
#include "core/layout.h"
#include "offload/round_copy.h"

namespace causeway::worker {
namespace {

constexpr int kMostThreads = 8;  // enough for a bus

}  // namespace

StagedCopies::StagedCopies(offload::Device* device, offload::PinnedPool* pool, int64_t most_values,
                           offload::Queue queue)
    : device_(device),
      own_(device),
      pool_(pool == nullptr ? &own_ : pool),
      queue_(queue),
      piece_values_(std::clamp<int64_t>(most_values, 1, kPieceValues)),
      team_(piece_values_ < kPieceValues ? 1 : std::min(core::UsableCores(), kMostThreads)) {}

absl::Status StagedCopies::Prepare() {
  for (Piece& piece : pieces_) {
    if (piece.memory.data() != nullptr) return absl::OkStatus();
    ASSIGN_OR_RETURN(piece.memory, pool_->Take(static_cast<size_t>(piece_values_) * sizeof(float)));
    piece.free = device_->MakeEvent();
  }
  return absl::OkStatus();
}

absl::Status StagedCopies::ToDevice(std::span<const float> from, void* to, ValueType type) {
  RETURN_IF_ERROR(Prepare());
  int turn = 0;
  for (int64_t first = 0; first < std::ssize(from); first += piece_values_, ++turn) {
    const Piece& piece = pieces_[turn % kPieces];
    const int64_t count = std::min(piece_values_, std::ssize(from) - first);
    device_->AwaitOnHost(piece.free);
    core::OnAllThreads(team_, count, [&](int64_t begin, int64_t size) {
      const float* const values = from.data() + first + begin;
      if (type == ValueType::kFloat32) {
        std::copy_n(values, size, piece.memory.Values<float>().begin() + begin);
      } else {
        offload::RoundCopy(values, piece.memory.Values<uint16_t>().data() + begin, size);
      }
    });
    device_->CopyToDevice(queue_, static_cast<char*>(to) + first * BytesOf(type), piece.memory.data(),
                          static_cast<size_t>(count * BytesOf(type)));
    device_->Record(piece.free, queue_);
  }
  return device_->status();
}

void StagedCopies::Collect(const Piece& piece, std::span<float> to) {
  device_->AwaitOnHost(piece.free);
  core::OnAllThreads(team_, std::ssize(to), [&](int64_t begin, int64_t size) {
    std::copy_n(piece.memory.Values<float>().begin() + begin, size, to.begin() + begin);
  });
}

absl::Status StagedCopies::ToHost(const float* from, std::span<float> to) {
  RETURN_IF_ERROR(Prepare());
  std::array<std::span<float>, kPieces> waiting;  // of the pieces, what they are for
  int turn = 0;
  for (int64_t first = 0; first < std::ssize(to); first += piece_values_, ++turn) {
    const Piece& piece = pieces_[turn % kPieces];
    Collect(piece, std::exchange(waiting[turn % kPieces],
                                 to.subspan(static_cast<size_t>(first),
                                            static_cast<size_t>(std::min(piece_values_, std::ssize(to) - first)))));
    const std::span<float> part = waiting[turn % kPieces];
    device_->CopyToHost(queue_, piece.memory.data(), from + first, part.size_bytes());
    device_->Record(piece.free, queue_);
  }
  for (int i = 0; i < kPieces; ++i, ++turn) Collect(pieces_[turn % kPieces], waiting[turn % kPieces]);
  return device_->status();
}

ThetaGather::~ThetaGather() {
  for (const auto& [key, table] : tables_) backend_->device().Free(table.pieces);
}

absl::StatusOr<const ThetaGather::Table*> ThetaGather::TableOf(const replica::UnitRanges& ranges) {
  Table& table = tables_[{ranges.front().tensor, ranges.front().first}];
  if (table.count > 0) return &table;
  std::vector<GatherPiece> pieces;
  int64_t at = 0, blocks = 0;
  for (const replica::UnitRange& range : ranges) {
    const Place place = place_of_(range);
    pieces.push_back({place.values, at, place.count, blocks});
    blocks += GatherKernel::BlocksOf(place.values, place.count);
    at += range.count * core::kUnitValues;
  }
  offload::Device& device = backend_->device();
  const size_t bytes = pieces.size() * sizeof(GatherPiece);
  ASSIGN_OR_RETURN(table.pieces, device.Allocate(bytes));
  device.CopyToDevice(offload::Queue::kCompute, table.pieces, pieces.data(), bytes);
  const offload::Device::Event there = device.MakeEvent();
  device.Record(there, offload::Queue::kCompute);
  device.AwaitOnHost(there);  // `pieces` end here
  table.blocks = blocks;
  table.count = std::ssize(pieces);
  return &table;
}

absl::Status ThetaGather::Queue(const replica::UnitRanges& ranges, float* to, offload::Device::Event taken) {
  ASSIGN_OR_RETURN(const Table* const table, TableOf(ranges));
  backend_->Launch(offload::Queue::kCompute, GatherKernel{.pieces = static_cast<const GatherPiece*>(table->pieces),
                                                          .to = to,
                                                          .count = table->count,
                                                          .all_blocks = table->blocks});
  backend_->device().Record(taken, offload::Queue::kCompute);
  return absl::OkStatus();
}

}  // namespace causeway::worker
