#include "worker/parallel/partition_store.h"

#include <algorithm>

#include "replica/host_store.h"

namespace causeway::worker {
namespace {

// Calls `use(values of θ, where they are in an array of the ranges)` for each run that is here.
template <typename Use>
void ForEachRun(PartitionedValues& values, const replica::UnitRanges& ranges, const Use& use) {
  int64_t at = 0;
  for (const replica::UnitRange& range : ranges) {
    const int64_t first = range.first * core::kUnitValues, count = range.count * core::kUnitValues;
    values.ForEachRun(range.tensor, first, count,
                      [&](int64_t from, std::span<float> run) { use(run, static_cast<size_t>(at + from - first)); });
    at += count;
  }
}

}  // namespace

int64_t PartitionStore::BeginRead(const replica::UnitRanges& ranges, std::span<float> staging) {
  ForEachRun(values_, ranges,
             [&](std::span<float> run, size_t at) { std::ranges::copy(run, staging.subspan(at, run.size()).begin()); });
  return 0;
}

absl::Status PartitionStore::DoMove(const replica::UnitRanges& ranges, const replica::Movement& movement) {
  ForEachRun(values_, ranges, [&](std::span<float> run, size_t at) {
    replica::MoveValues(movement, movement.values.subspan(at, run.size()), run);
  });
  return absl::OkStatus();
}

}  // namespace causeway::worker
