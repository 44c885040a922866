// The sums of a pipeline's gradients over ranks, in the order in which a serial run would have them.
//
//   Reduce(stage)   of a stage's two copies, at the schedule's A, in parallel with computation
//   Final(tensor)   where one stage is the whole model: the ranks' sums from there on, in parallel with backward
//   Finish          awaits these; the head's part is added to the embedding's, where they are one tensor; then the
//                   ranks of a place add theirs, in their order, unless they have shards (stage_shards.h)
//
// The order of floats: by micro-batch for each copy, copy 0 + copy 1, embedding + head, then ranks of a place. One
// owner thread; every rank makes the same calls in the order of its own list.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plan/pipeline_file.h"
#include "worker/model/tensor_values.h"
#include "worker/parallel/pipeline_place.h"
#include "worker/ranks/collectives.h"
#include "worker/ranks/rank_steps.h"

namespace causeway::worker {

class GradientExchange {
 public:
  // Adds a tied head's gradient to the embedding's, where they lie.
  using AddHead = std::function<void(std::span<float> head, std::span<float> embedding)>;

  // `gradients` as LlamaStage has them, of what this rank holds; `together`: all but the tied head's, back to back.
  // They outlive the object, as `ranks` and `places` do. Every rank calls it.
  static absl::StatusOr<std::unique_ptr<GradientExchange>> Open(const TrainerRanks& ranks,
                                                                const plan::PipelineFile& file,
                                                                const PipelinePlaces& places, MutableTensors gradients,
                                                                std::span<float> together,
                                                                AddHead add_head = AddTiedHead);

  void Begin(bool sums);  // `sums` false: the ranks of a place keep their own
  void Reduce(int stage);
  void Final(int tensor);
  absl::Status Finish();  // errors are those of the ranks' collectives

  int64_t sent_bytes() const;  // over its own groups

 private:
  struct Reduced {
    Collectives* group;
    Collectives::Ticket ticket;
  };

  GradientExchange(const PipelinePlaces& places, MutableTensors gradients, std::span<float> together, AddHead add_head,
                   Collectives::Timeout timeout)
      : places_(places),
        gradients_(std::move(gradients)),
        together_(together),
        add_head_(std::move(add_head)),
        timeout_(timeout) {}
  void AddHeadHere();
  absl::Status FinishTiedHead();

  const PipelinePlaces& places_;
  MutableTensors gradients_;
  const std::span<float> together_;
  const AddHead add_head_;
  const Collectives::Timeout timeout_;
  std::map<int, std::unique_ptr<Collectives>> copies_;  // the holders of a stage, where it has two
  std::unique_ptr<Collectives> tied_;                   // holders of the embedding or the head, where they differ
  bool adds_head_ = false, gives_embedding_ = false, gives_head_ = false;
  std::unique_ptr<Collectives> place_;     // null: one rank, or all ranks of the site
  std::optional<GradientBuckets> ranks_;   // sums over the place's ranks; nullopt: they have shards
  bool sums_ = true, head_added_ = false;  // whether Finish sums; whether the head's part was added
  std::vector<Reduced> reduced_;
};

}  // namespace causeway::worker
