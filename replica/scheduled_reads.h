// Reads of θ in host memory that are copied piece by piece while the next step computes; the bus schedule keeps θ
// unchanged until then.
//
//   Begin (step thread): announced ─► ticket ─► Await (another thread): copies, as the schedule lets it
#pragma once

#include <functional>
#include <map>
#include <span>
#include <vector>

#include "core/mutex.h"
#include "offload/bus_schedule.h"

namespace causeway::replica {

class ScheduledReads {
 public:
  // Values of θ, in the schedule's flat numbering, and their destination.
  struct Piece {
    offload::BusSchedule::Range from;
    std::span<float> to;
  };

  explicit ScheduledReads(offload::BusSchedule* bus) : bus_(bus) {}

  int64_t Begin(std::vector<Piece> pieces);
  // `values(first)` is where value `first` lies in host memory, with those behind it to the end of its piece. Called
  // once for a ticket.
  void Await(int64_t ticket, const std::function<const float*(int64_t first)>& values);

 private:
  offload::BusSchedule* const bus_;
  core::Mutex mutex_;
  std::map<int64_t, std::vector<Piece>> reads_ ABSL_GUARDED_BY(mutex_);  // by ticket, in ascending order of `from`
};

}  // namespace causeway::replica
