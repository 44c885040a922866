// The micro-batches of the next step, made by another thread during this one: drawn from the text, cut, and for a
// device their rows sorted by token.
//
//   step t    Take(t) ─► computes                      Take(t + 1) ─► …
//   beside it             makes t + 1
//
// The batches are those that Take would have made then: Forget is called before the text's rows go to other sites. One
// owner thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "core/ids.h"
#include "core/thread.h"
#include "worker/model/gpu_layers.h"

namespace causeway::worker {

class BatchesAhead {
 public:
  using Make = std::function<absl::StatusOr<Batch>(core::Step t)>;  // called on any thread, one call at a time

  BatchesAhead(Make make, int64_t micro_batches, bool sorted)
      : make_(std::move(make)), micro_batches_(micro_batches), sorted_(sorted) {}
  ~BatchesAhead() { Forget(); }

  absl::StatusOr<std::vector<PreparedBatch>> Take(core::Step t);
  void Forget();  // drops what was made; no batch is made until the next Take

 private:
  absl::StatusOr<std::vector<PreparedBatch>> Prepare(core::Step t) const;
  void Await();

  const Make make_;
  const int64_t micro_batches_;
  const bool sorted_;
  core::Thread thread_;
  core::Step ahead_ = 0;                                            // the step that was or is being made; 0: none
  std::optional<absl::StatusOr<std::vector<PreparedBatch>>> made_;  // owned by the thread until it is joined
};

}  // namespace causeway::worker
