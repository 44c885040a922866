// The tensors of a device's stages where the ranks of a place divide them: each tensor lies on one of the w ranks.
//
//   G   own tensors ─► all-gather ─► the whole stage, until R
//   R   after a W or B: gradients ─► reduce-scatter, the ranks' in their order ─► added to those of the own tensors
//
// A stage stays until it has had as many R as G; a G of a stage that is present moves nothing. A gathered stage is one
// array of w equal parts, part j the tensors of rank j back to back, so that both collectives run in place; parts are
// padded to the largest. A rank has memory for as many stages as are gathered at once. Sums are by micro-batch up to an
// R, over ranks, then over these R. One owner thread; every rank of a place makes the same calls. Source: ZeroPP (arXiv
// 2402.03791), in our reading.
#pragma once

#include <map>
#include <memory>

#include "absl/status/statusor.h"
#include "worker/parallel/gathered_stages.h"
#include "worker/parallel/held_tensors.h"

namespace causeway::worker {

class StageShards final : public HeldTensors {
 public:
  // Every rank calls it. `ranks` outlive the object.
  static absl::StatusOr<std::unique_ptr<ShardedTensors>> Open(const plan::PipelineFile& file, PipelinePlaces places,
                                                              const TrainerRanks& ranks);

  const MutableTensors& GradientsOf(int stage) override;
  absl::Status Gather(int stage) override;
  absl::Status Release(int stage) override;

  int64_t sent_bytes() const override { return HeldTensors::sent_bytes() + place_->sent_bytes(); }
  int64_t bytes() const override { return HeldTensors::bytes() + gathered_.bytes(); }

  int64_t gathers() const { return gathers_; }  // all-gathers and reduce-scatters so far
  int64_t scatters() const { return scatters_; }
  int64_t arrays() const { return gathered_.made(); }

 private:
  StageShards(const plan::PipelineFile& file, PipelinePlaces places, const TrainerRanks& ranks);
  std::map<int, LayoutGroup> GroupsOf(const plan::PipelineFile& file) const;  // of this device's stages
  std::span<float> OwnPart(std::span<float> array) const;
  absl::Status Scatter(int stage, std::span<float> sums);

  std::unique_ptr<Collectives> place_;
  GatheredStages gathered_;
  int64_t gathers_ = 0, scatters_ = 0;
};

}  // namespace causeway::worker
