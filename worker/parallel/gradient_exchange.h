// The sums of a pipeline's gradients over ranks, in the order in which a serial run would have them.
//
//   Reduce(stage)   of a stage's two copies, at the schedule's A, in parallel with computation
//   Finish          awaits these; then the head's part is added to the embedding's, where they are one tensor; then the
//                   ranks of a place add theirs, in their order, unless they have shards (stage_shards.h)
//
// The order of floats: by micro-batch for each copy, copy 0 + copy 1, embedding + head, then ranks of a place. One
// owner thread; every rank makes the same calls in the order of its own list.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plan/pipeline_file.h"
#include "worker/model/tensor_values.h"
#include "worker/parallel/pipeline_place.h"
#include "worker/ranks/collectives.h"

namespace causeway::worker {

class GradientExchange {
 public:
  // `gradients` as LlamaStage has them, of what this rank holds; they outlive the object, as `ranks` and `places` do.
  // Every rank calls it.
  static absl::StatusOr<std::unique_ptr<GradientExchange>> Open(Collectives& ranks, const plan::PipelineFile& file,
                                                                const PipelinePlaces& places, MutableTensors gradients,
                                                                Collectives::Timeout timeout);

  void Begin() { reduced_.clear(); }
  void Reduce(int stage);
  absl::Status Finish();  // UNAVAILABLE and others, as the ranks

  int64_t sent_bytes() const;

 private:
  struct Reduced {
    Collectives* group;
    Collectives::Ticket ticket;
  };

  GradientExchange(const PipelinePlaces& places, MutableTensors gradients, Collectives::Timeout timeout)
      : places_(places), gradients_(std::move(gradients)), timeout_(timeout) {}
  absl::Status FinishTiedHead();

  const PipelinePlaces& places_;
  MutableTensors gradients_;
  const Collectives::Timeout timeout_;
  std::map<int, std::unique_ptr<Collectives>> copies_;  // the holders of a stage, where it has two
  std::unique_ptr<Collectives> tied_;                   // holders of the embedding or the head, where they differ
  bool adds_head_ = false, gives_embedding_ = false, gives_head_ = false;
  std::unique_ptr<Collectives> place_;  // null: one rank
  std::vector<Reduced> reduced_;
};

}  // namespace causeway::worker
