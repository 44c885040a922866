#include "replica/host_store.h"

#include <algorithm>
#include <utility>

#include "core/outer_step.h"

namespace causeway::replica {

UnitRanges RangesOf(const core::Fragment& fragment) {
  UnitRanges ranges;
  for (const core::TensorPlace& place : fragment.tensors)
    ranges.push_back({place.tensor, place.begin_unit, place.units()});
  return ranges;
}

void MoveValues(const Movement& movement, std::span<const float> values, std::span<float> parameters) {
  switch (movement.kind) {
    case Movement::Kind::kMix: core::MixAnchor(movement.factor, values, parameters); break;
    case Movement::Kind::kStep: core::Rebase(movement.factor, values, parameters); break;
  }
}

HostStore::HostStore(std::vector<std::span<float>> tensors, offload::BusSchedule* bus)
    : tensors_(std::move(tensors)), bus_(bus), reads_(bus) {
  int64_t first = 0;
  for (std::span<float> tensor : tensors_) {
    firsts_.push_back(first);
    first += std::ssize(tensor);
  }
}

std::span<float> HostStore::Local(const UnitRange& range) const {
  const std::span<float> tensor = tensors_[range.tensor];
  const size_t first = static_cast<size_t>(range.first) * core::kUnitValues;
  return tensor.subspan(first, std::min<size_t>(range.count * core::kUnitValues, tensor.size() - first));
}

int64_t HostStore::BeginRead(const UnitRanges& ranges, std::span<float> staging) {
  std::vector<ScheduledReads::Piece> pieces;
  size_t at = 0;
  for (const UnitRange& range : ranges) {
    const std::span<float> local = Local(range);
    const std::span<float> to = staging.subspan(at, local.size());
    at += range.count * core::kUnitValues;
    if (bus_ == nullptr) {
      std::ranges::copy(local, to.begin());
      continue;
    }
    const int64_t first = firsts_[range.tensor] + range.first * core::kUnitValues;
    pieces.push_back({{first, std::ssize(local)}, to});
  }
  return bus_ == nullptr ? 0 : reads_.Begin(std::move(pieces));
}

absl::Status HostStore::AwaitRead(int64_t ticket) {
  if (bus_ == nullptr) return absl::OkStatus();
  reads_.Await(ticket, [&](int64_t first) {
    const size_t tensor = std::ranges::upper_bound(firsts_, first) - firsts_.begin() - 1;
    return tensors_[tensor].data() + (first - firsts_[tensor]);
  });
  return absl::OkStatus();
}

absl::Status HostStore::DoMove(const UnitRanges& ranges, const Movement& movement) {
  size_t at = 0;
  for (const UnitRange& range : ranges) {
    const std::span<float> local = Local(range);
    const std::span<const float> values = movement.values.subspan(at, local.size());
    at += range.count * core::kUnitValues;
    MoveValues(movement, values, local);
  }
  return absl::OkStatus();
}

}  // namespace causeway::replica
