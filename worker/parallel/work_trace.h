// The operations of a rank's steps, with the amounts of each resource that they use, as a file: Chrome's trace-event
// format, which browsers open and causewayctl plan what-if reads.
//
//   Add("forward 3", …, {"cpu": FLOP, "l2": bytes, …}) ─► EndStep(t) ─► [{"name": "forward 3", "ts": µs, "dur": µs, …
//
// The first event has the resources' speeds. Only the first steps are traced. One owner thread.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/clock.h"
#include "core/schedule.h"
#include "worker/parallel/trace_file.h"

namespace causeway::worker {

using Amounts = std::vector<std::pair<std::string, double>>;  // by resource

class WorkTrace {
 public:
  // `speeds` of the resources, in amounts a second. UNAVAILABLE: the file cannot be written.
  static absl::StatusOr<std::unique_ptr<WorkTrace>> Open(const std::string& path, const Amounts& speeds);

  void Add(const std::string& name, core::Clock::TimePoint begin, const Amounts& uses);  // the operation ends now
  void EndStep(core::Step t);

 private:
  explicit WorkTrace(std::unique_ptr<TraceFile> file) : file_(std::move(file)) {}

  struct Operation {
    std::string name;
    double begin_s = 0, end_s = 0;
    Amounts uses;
  };

  const std::unique_ptr<TraceFile> file_;
  const core::Clock::TimePoint start_ = core::SystemClock().Now();
  std::vector<Operation> operations_;  // of the current step
  int written_ = 0;
};

}  // namespace causeway::worker
