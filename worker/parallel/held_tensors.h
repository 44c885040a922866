// Tensors that lie whole on each rank that computes with them: data parallel, and a pipeline's stages.
//
//   B, W ─► sums by micro-batch ─► GradientExchange: copies, a tied head, ranks of a place ─► own().gradients
//
// With one stage for the whole model, gradients are reduced while backward goes on (Final).
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "plan/pipeline_file.h"
#include "worker/parallel/gradient_exchange.h"
#include "worker/parallel/pipeline_place.h"
#include "worker/parallel/sharded_tensors.h"
#include "worker/ranks/rank_steps.h"

namespace causeway::worker {

class HeldTensors : public ShardedTensors {
 public:
  // Every rank calls it. `ranks` outlive the object.
  static absl::StatusOr<std::unique_ptr<ShardedTensors>> Open(const plan::PipelineFile& file, PipelinePlaces places,
                                                              const TrainerRanks& ranks);
  // Every rank holds everything.
  static std::unique_ptr<ShardedTensors> Everywhere(const core::Manifest& manifest, const TrainerRanks& ranks);

  void Reduce(int stage) override { exchange_->Reduce(stage); }

  OwnTensors& own() override { return own_; }

  std::vector<Piece> own_pieces(int rank) const override;
  std::vector<Piece> pieces(int tensor) const override;
  SquareGroups square_groups() const override;

  absl::Status Initialize(const Fill& fill) override { return fill(own_.manifest, own_.weights); }
  void ForEachRun(int tensor, int64_t first, int64_t count, const UseRun& use) override;
  std::unique_ptr<replica::ParameterStore> MakeStore(offload::BusSchedule* bus) override;

  void ClearGradients() override;
  void Begin(bool sums) override { exchange_->Begin(sums); }
  void Final(int tensor) override { exchange_->Final(tensor); }
  absl::Status Finish() override { return exchange_->Finish(); }

  int64_t sent_bytes() const override { return exchange_->sent_bytes(); }
  int64_t bytes() const override;

 protected:
  HeldTensors(PipelinePlaces places, const TrainerRanks& ranks);
  // `tied_head`: memory of a tied head's gradient, which outlives it; nullopt: it has its own.
  HeldTensors(PipelinePlaces places, const TrainerRanks& ranks, OwnTensors own,
              std::optional<std::span<float>> tied_head);
  absl::Status OpenExchange(const plan::PipelineFile& file, GradientExchange::AddHead add_head = AddTiedHead);
  const PipelinePlaces& places() const { return places_; }
  const TrainerRanks& ranks() const { return ranks_; }
  // The tensors here, indexed as in LlamaStage.
  const MutableTensors& held_weights() const { return held_views_; }
  const MutableTensors& held_gradients() const { return sum_views_; }

 private:
  const std::vector<int>& held() const { return places_.held[static_cast<size_t>(ranks_.rank())]; }
  int OwnerOf(int tensor) const { return places_.ranks[static_cast<size_t>(tensor)].front(); }

  const TrainerRanks ranks_;
  const PipelinePlaces places_;
  OwnTensors own_;
  std::vector<float> tied_head_;  // the head's gradient where it is the embedding, if it lies here
  MutableTensors held_views_, sum_views_;
  std::unique_ptr<GradientExchange> exchange_;
};

}  // namespace causeway::worker
