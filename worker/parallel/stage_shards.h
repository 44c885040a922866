// The parameters of a device's stages where the ranks of a place divide them: each tensor lies on one of the w ranks.
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
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/model/tensor_values.h"
#include "worker/parallel/pipeline_place.h"
#include "worker/parallel/pipeline_program.h"
#include "worker/ranks/collectives.h"

namespace causeway::worker {

class StageShards {
 public:
  // `program` is this device's. `weights` and `gradients`: of what this rank holds, as LlamaStage indexes them. All
  // outlive the object. Every rank calls it.
  static absl::StatusOr<std::unique_ptr<StageShards>> Open(Collectives& ranks, const PipelinePlaces& places,
                                                           const PipelineProgram& program, Tensors weights,
                                                           MutableTensors gradients, Collectives::Timeout timeout);

  void Begin() { next_gather_ = next_release_ = 0; }  // of a step
  absl::Status Gather(int stage);                     // the next G of the program; errors as the ranks'
  absl::Status Release(int stage);                    // R
  // The arrays of gathered stages; those of others are empty.
  const Tensors& weights() const { return gathered_weights_; }
  const MutableTensors& gradients() const { return gathered_gradients_; }

  int64_t gathers() const { return gathers_; }  // all-gathers and reduce-scatters so far
  int64_t scatters() const { return scatters_; }
  int64_t buffers() const {
    return buffers_;
  }  // the largest number in use at once, each with the size of the largest stage
  int64_t sent_bytes() const { return place_->sent_bytes(); }

 private:
  struct Part {
    int gradient = 0;             // as LlamaStage indexes gradients; the weight's index but for a tied head
    int64_t first = 0, size = 0;  // in the array
    bool own = false;
  };
  struct Layout {
    std::vector<Part> parts;
    int64_t part_values = 0;  // of each rank
  };
  struct Gathered {
    int uses = 0;                           // G without an R
    std::vector<float> weights, gradients;  // none: no backward comes before it is dropped
  };

  StageShards(const PipelinePlaces& places, Tensors weights, MutableTensors gradients, Collectives::Timeout timeout);
  Layout LayoutOf(int stage, int j) const;
  std::vector<float> TakeBuffer();
  void Show(const Layout& layout, Gathered& gathered);  // to weights() and gradients()
  std::span<float> OwnPart(const Layout& layout, std::vector<float>& array) const;
  std::span<float> Whole(const Layout& layout, std::vector<float>& array) const;
  absl::Status Scatter(const Layout& layout, Gathered& gathered);

  const PipelinePlaces& places_;
  const Tensors weights_;
  const MutableTensors gradients_;
  const Collectives::Timeout timeout_;
  std::unique_ptr<Collectives> place_;
  std::map<int, Layout> layouts_;  // by stage
  std::vector<bool> backward_;     // of each G in the program: whether a backward comes before the stage is dropped
  std::vector<bool> scatters_at_;  // of each R: whether a W or B of its stage has come since the one before
  size_t next_gather_ = 0, next_release_ = 0;
  std::map<int, Gathered> gathered_;  // by stage
  std::vector<std::vector<float>> free_;
  Tensors gathered_weights_;
  MutableTensors gathered_gradients_;
  int64_t gathers_ = 0, scatters_ = 0, buffers_ = 0;
};

}  // namespace causeway::worker
