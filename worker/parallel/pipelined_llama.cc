#include "worker/parallel/pipelined_llama.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace causeway::worker {
namespace {

core::Manifest Subset(const core::Manifest& manifest, const std::vector<int>& tensors) {
  core::Manifest subset;
  for (const int tensor : tensors) subset.push_back(manifest[static_cast<size_t>(tensor)]);
  return subset;
}

// Views as for the whole model, empty where a tensor is not held.
MutableTensors Spread(size_t size, const std::vector<int>& held, TensorValues& values) {
  MutableTensors all(size);
  for (size_t i = 0; i < held.size(); ++i) all[static_cast<size_t>(held[i])] = values[static_cast<int>(i)];
  return all;
}

// The number of values of the head's gradient on this rank, where it is separate from the embedding's.
size_t TiedHeadValues(const PipelinePlaces& places, int rank) {
  const std::vector<int>& held = places.held[static_cast<size_t>(rank)];
  const bool has = std::ranges::find(places.head_devices, rank / places.width) != places.head_devices.end();
  return has && !held.empty() && held.front() == 0 ? static_cast<size_t>(places.manifest[0].NumValues()) : 0;
}

}  // namespace

PipelinedLlama::PipelinedLlama(const TrainerRanks& ranks, PipelinePlaces places)
    : ranks_(ranks),
      places_(std::move(places)),
      held_manifest_(Subset(places_.manifest, held())),
      parameters_(held_manifest_),
      gradients_(held_manifest_),
      tied_head_(TiedHeadValues(places_, ranks.rank())),
      tensors_(Spread(places_.manifest.size(), held(), parameters_)),
      weights_(tensors_.begin(), tensors_.end()),
      sums_(HeldGradients()) {}

MutableTensors PipelinedLlama::HeldGradients() {
  MutableTensors views = Spread(places_.manifest.size(), held(), gradients_);
  views.emplace_back(tied_head_);  // used where the embedding is the head
  return views;
}

absl::StatusOr<std::unique_ptr<PipelinedLlama>> PipelinedLlama::Open(const core::RunConfig& config,
                                                                     const plan::PipelineFile& file,
                                                                     const TrainerRanks& ranks, int64_t rows,
                                                                     const std::string& trace_path,
                                                                     const MakeStages& make_stages) {
  std::unique_ptr<PipelinedLlama> model(new PipelinedLlama(ranks, PlacesOf(file, config.llama)));
  PipelinedLlama* const self = model.get();
  ASSIGN_OR_RETURN(self->stages_,
                   make_stages({.config = config.llama,
                                .file = file,
                                .device = ranks.rank() / file.width,
                                .batch_rows = rows / file.schedule.micro_batches,
                                .sequence = config.sequence_length(),
                                .weights = self->weights_,
                                .gradients = self->sums_,
                                .synchronize = [self](const plan::Operation& o) { return self->Synchronize(o); }}));
  RETURN_IF_ERROR(model->Open(file, trace_path));
  return model;
}

absl::Status PipelinedLlama::Open(const plan::PipelineFile& file, const std::string& trace_path) {
  const Collectives::Timeout timeout = TimeoutOf(ranks_.timeout_s);
  ASSIGN_OR_RETURN(programs_, CompilePipeline(file.schedule));
  ASSIGN_OR_RETURN(links_,
                   PipelineLinks::Open(*ranks_.values, programs_, file.width, stages_->message_values(), timeout));
  ASSIGN_OR_RETURN(exchange_, GradientExchange::Open(*ranks_.values, file, places_, HeldGradients(), timeout));
  if (file.shards) {
    ASSIGN_OR_RETURN(shards_, StageShards::Open(*ranks_.values, places_, program(), weights_, sums_, timeout));
  }
  ASSIGN_OR_RETURN(trace_, PipelineTrace::Open(trace_path, *ranks_.values, programs_, file.width, timeout));
  return absl::OkStatus();
}

absl::Status PipelinedLlama::Synchronize(const plan::Operation& operation) {
  using Kind = plan::OperationKind;
  if (operation.kind == Kind::kReduce) exchange_->Reduce(operation.stage);
  if (shards_ == nullptr || operation.kind == Kind::kReduce) return absl::OkStatus();
  RETURN_IF_ERROR(operation.kind == Kind::kGather ? shards_->Gather(operation.stage)
                                                  : shards_->Release(operation.stage));
  weights_ = shards_->weights();
  sums_ = shards_->gradients();
  return absl::OkStatus();
}

absl::Status PipelinedLlama::Run(core::Step t, const Batch& batch) {
  gradients_.Clear();
  std::ranges::fill(tied_head_, 0.0f);
  RETURN_IF_ERROR(stages_->BeginStep(batch, 1.0f / static_cast<float>(places_.width)));
  exchange_->Begin();
  if (shards_ != nullptr) shards_->Begin();
  spans_.clear();
  if (trace_ != nullptr) RETURN_IF_ERROR(RankFailure(trace_->Begin()));
  RETURN_IF_ERROR(RankFailure(RunPipelineStep(program(), *links_, *stages_, spans_)));
  RETURN_IF_ERROR(stages_->EndStep());
  RETURN_IF_ERROR(RankFailure(exchange_->Finish()));
  if (trace_ != nullptr) RETURN_IF_ERROR(RankFailure(trace_->Write(t, spans_)));
  return absl::OkStatus();
}

double PipelinedLlama::compute_s() const {
  double all = 0;
  for (const PipelineSpan& span : spans_) all += span.end_s - span.begin_s;
  return all;
}

int64_t PipelinedLlama::sent_bytes() const {
  return links_->sent_bytes() + exchange_->sent_bytes() + (shards_ == nullptr ? 0 : shards_->sent_bytes());
}

}  // namespace causeway::worker
