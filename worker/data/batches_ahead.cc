#include "worker/data/batches_ahead.h"

#include <utility>

#include "core/check.h"

namespace causeway::worker {

absl::StatusOr<std::vector<PreparedBatch>> BatchesAhead::Prepare(core::Step t) const {
  ASSIGN_OR_RETURN(const Batch batch, make_(t));
  std::vector<PreparedBatch> parts;
  for (int64_t i = 0; i < micro_batches_; ++i) parts.emplace_back(Part(batch, i, micro_batches_), sorted_);
  return parts;
}

void BatchesAhead::Await() {
  if (thread_.joinable()) thread_.Join();
}

void BatchesAhead::Forget() {
  Await();
  ahead_ = 0;
  made_.reset();
}

absl::StatusOr<std::vector<PreparedBatch>> BatchesAhead::Take(core::Step t) {
  Await();
  absl::StatusOr<std::vector<PreparedBatch>> parts = ahead_ == t && t > 0 ? *std::move(made_) : Prepare(t);
  Forget();
  if (!parts.ok()) return parts;
  ahead_ = t + 1;
  thread_ = core::Thread([this] { made_ = Prepare(ahead_); });
  return parts;
}

}  // namespace causeway::worker
