#include "replica/host_store.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/outer_step.h"

namespace causeway::replica {

UnitRanges RangesOf(const core::Fragment& fragment) {
  UnitRanges ranges;
  for (const core::TensorPlace& place : fragment.tensors) ranges.push_back({place.tensor, 0, place.units()});
  return ranges;
}

HostStore::HostStore(std::vector<std::span<float>> tensors, offload::BusSchedule* bus)
    : tensors_(std::move(tensors)), bus_(bus) {
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
  std::vector<Piece> pieces;
  std::vector<offload::BusSchedule::Range> announced;
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
    announced.push_back(pieces.back().from);
  }
  if (bus_ == nullptr) return 0;
  const int64_t ticket = bus_->Announce(announced);
  std::ranges::sort(pieces, {}, [](const Piece& piece) { return piece.from.first; });
  core::MutexLock lock(mutex_);
  reads_[ticket] = std::move(pieces);
  return ticket;
}

absl::Status HostStore::AwaitRead(int64_t ticket) {
  if (bus_ == nullptr) return absl::OkStatus();
  std::vector<Piece> pieces;
  {
    core::MutexLock lock(mutex_);
    pieces = std::move(reads_.at(ticket));
    reads_.erase(ticket);
  }
  bus_->Copy(ticket, [&](const offload::BusSchedule::Range& part) {
    const auto piece = std::prev(
        std::ranges::upper_bound(pieces, part.first, {}, [](const Piece& other) { return other.from.first; }));
    const size_t tensor = std::ranges::upper_bound(firsts_, part.first) - firsts_.begin() - 1;
    std::copy_n(tensors_[tensor].begin() + (part.first - firsts_[tensor]), part.count,
                piece->to.begin() + (part.first - piece->from.first));
  });
  return absl::OkStatus();
}

absl::Status HostStore::DoMove(const UnitRanges& ranges, const Movement& movement) {
  size_t at = 0;
  for (const UnitRange& range : ranges) {
    const std::span<float> local = Local(range);
    const std::span<const float> values = movement.values.subspan(at, local.size());
    at += range.count * core::kUnitValues;
    switch (movement.kind) {
      case Movement::Kind::kMix: core::MixAnchor(movement.factor, values, local); break;
      case Movement::Kind::kStep: core::Rebase(movement.factor, values, local); break;
    }
  }
  return absl::OkStatus();
}

}  // namespace causeway::replica
