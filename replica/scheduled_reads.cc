#include "replica/scheduled_reads.h"

#include <algorithm>
#include <utility>

namespace causeway::replica {

int64_t ScheduledReads::Begin(std::vector<Piece> pieces) {
  std::vector<offload::BusSchedule::Range> announced;
  for (const Piece& piece : pieces) announced.push_back(piece.from);
  const int64_t ticket = bus_->Announce(announced);
  std::ranges::sort(pieces, {}, [](const Piece& piece) { return piece.from.first; });
  core::MutexLock lock(mutex_);
  reads_[ticket] = std::move(pieces);
  return ticket;
}

void ScheduledReads::Await(int64_t ticket, const std::function<const float*(int64_t first)>& values) {
  std::vector<Piece> pieces;
  {
    core::MutexLock lock(mutex_);
    pieces = std::move(reads_.at(ticket));
    reads_.erase(ticket);
  }
  bus_->Copy(ticket, [&](const offload::BusSchedule::Range& part) {
    const auto piece = std::prev(
        std::ranges::upper_bound(pieces, part.first, {}, [](const Piece& other) { return other.from.first; }));
    std::copy_n(values(part.first), part.count, piece->to.begin() + (part.first - piece->from.first));
  });
}

}  // namespace causeway::replica
