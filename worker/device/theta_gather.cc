#include "worker/device/theta_gather.h"

#include <vector>

#include "core/check.h"
#include "core/layout.h"

namespace causeway::worker {

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
