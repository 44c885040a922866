#include "worker/model/gpu_llama.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/model_manifest.h"
#include "worker/model/gpu_block.h"
#include "worker/model/gpu_head.h"
#include "worker/model/llama_block.h"

namespace causeway::worker {
namespace {

using offload::Queue;

constexpr int64_t kFloatBytes = sizeof(float);

// Computes with values of T.
template <typename T>
class LlamaOf final : public GpuLlama {
 public:
  LlamaOf(const core::LlamaConfig& config, const Options& options, ComputeBackend* backend);

  absl::Status Allocate();
  absl::Status Begin(const PreparedBatch& batch) override { return batch_.Copy(batch); }
  void Forward(const void* parameters) override;
  void Backward(const void* parameters, float* gradients, float scale, const OnFinal& queued) override;
  void BackwardInput(const void* parameters, float scale) override;
  void BackwardWeight(const void* parameters, float* gradients) override;
  void Evaluate(const void* parameters) override {
    head_->Evaluate(static_cast<const T*>(parameters), batch_.targets());
  }
  void* input() const override { return At(blocks_.empty() ? places_.output : blocks_.front().input()); }
  void* output() const override { return At(places_.output); }
  void* stream() const override { return At(places_.dstream); }
  absl::Status AwaitGradients(const OnFinal& final) override;
  absl::StatusOr<double> Loss(int64_t skipped) override { return head_->Loss(skipped); }
  Rooms rooms() const override;
  const Arena& arena() const override { return arena_; }

 private:
  struct Places {
    Arena::Place output = 0, dstream = 0, norm_buffer = 0, attention_buffer = 0, embedding_buffer = 0;
  };

  void Plan();

  T* At(Arena::Place place) const { return arena_.At<T>(place); }
  float* Floats(Arena::Place place) const { return arena_.At<float>(place); }
  int TensorOf(int64_t layer, BlockTensor tensor) const { return 1 + static_cast<int>(layer) * kBlockTensors + tensor; }
  int final_norm() const { return TensorOf(config_.num_hidden_layers, kQ); }

  void Launch(const Kernel& kernel) { backend_->Launch(Queue::kCompute, kernel); }
  void EmbeddingBackwardWeight(float* gradients);
  typename GpuHead<T>::Gradients HeadGradients(float* gradients) const;

  const core::LlamaConfig config_;
  const LlamaShape shape_;
  const Options options_;
  const StageRange range_;
  ComputeBackend* const backend_;
  GpuLayers<T> layers_;
  const std::vector<int64_t> firsts_;  // of each tensor in the flat arrays
  Arena arena_;
  GpuBatch batch_;
  GpuRope<T> rope_;
  GpuBlocks<T> shared_;
  std::vector<GpuBlock<T>> blocks_;
  Places places_;
  std::optional<GpuHead<T>> head_;
  // In the order in which backward is queued: gradients from the tensor on are final when the event is done.
  std::vector<std::pair<int, offload::Device::Event>> final_from_;
};

template <typename T>
LlamaOf<T>::LlamaOf(const core::LlamaConfig& config, const Options& options, ComputeBackend* backend)
    : config_(config),
      shape_(config, options.batch_rows, options.sequence),
      options_(options),
      range_(options.stage ? options.stage->range : StageRange::Whole(config)),
      backend_(backend),
      layers_({shape_.rows(), shape_.hidden, shape_.norm_epsilon}, backend),
      firsts_(options.stage ? options.stage->firsts : core::FlatOffsets(core::LlamaManifest(config))),
      batch_(shape_.rows(), &arena_, backend),
      rope_(config, shape_.attention, &arena_, backend),
      shared_{.shape = shape_,
              .recompute = options_.recompute,
              .apart = options_.stage.has_value(),
              .layers = &layers_,
              .rope = &rope_,
              .attention = options_.attention.get(),
              .arena = &arena_,
              .backend = backend} {
  const auto add = [&](int tensor) { final_from_.emplace_back(tensor, backend->device().MakeEvent()); };
  if (range_.head) add(final_norm());
  for (int64_t layer = range_.last; layer >= range_.first; --layer) add(TensorOf(layer, BlockTensor{}));
  if (range_.embedding) add(0);
  Plan();
}

template <typename T>
absl::Status LlamaOf<T>::Allocate() {
  RETURN_IF_ERROR(arena_.Allocate(backend_->device()));
  options_.attention->SetBuffer(arena_.At<char>(places_.attention_buffer));
  layers_.SetBuffer(Floats(places_.norm_buffer));
  rope_.Fill();
  return absl::OkStatus();
}

// ---- Memory ----

template <typename T>
void LlamaOf<T>::Plan() {
  const int64_t rows = shape_.rows(), hidden = shape_.hidden, width = shape_.intermediate;
  const auto values = [&](const char* name, int64_t count) {
    return arena_.Add(name, count * static_cast<int64_t>(sizeof(T)));
  };
  const auto floats = [&](const char* name, int64_t count) { return arena_.Add(name, count * kFloatBytes); };
  constexpr char kGradients[] = "gradients of activations";
  for (Arena::Place* place : {&places_.dstream, &shared_.dnormed, &shared_.dattended}) {
    *place = values(kGradients, rows * hidden);
  }
  shared_.dqkv = values(kGradients, rows * shared_.qkv_size());
  shared_.dgate_up = values(kGradients, rows * 2 * width);
  shared_.dactivated = values(kGradients, rows * width);
  const Arena::Place dnormed = options_.stage && range_.head ? values(kGradients, rows * hidden) : shared_.dnormed;
  places_.norm_buffer = floats(kGradients, GpuLayers<T>::kNormShares * hidden);
  if (range_.embedding) places_.embedding_buffer = floats(kGradients, MostEmbeddingPartials(rows) * hidden);
  places_.attention_buffer = arena_.Add("attention", options_.attention->buffer_bytes());
  if (options_.recompute == Recompute::kBlock) shared_.remade = values("activations", rows * hidden);

  // From here on in the order of forward, so that later memory dies first in backward: rooms() are at the end.
  blocks_.reserve(static_cast<size_t>(range_.layers()));
  for (int64_t layer = range_.first; layer <= range_.last; ++layer) {
    typename GpuBlock<T>::Firsts firsts;
    for (int tensor = 0; tensor < kBlockTensors; ++tensor) {
      firsts[tensor] = firsts_[TensorOf(layer, static_cast<BlockTensor>(tensor))];
    }
    blocks_.emplace_back(&shared_, firsts, blocks_.empty() ? nullptr : &blocks_.front());
  }
  places_.output = values("activations", rows * hidden);
  if (range_.head) {
    const int64_t head = firsts_[config_.tie_word_embeddings ? 0 : final_norm() + 1];
    head_.emplace(typename GpuHead<T>::Settings{.rows = rows,
                                                .hidden = hidden,
                                                .vocab = config_.vocab_size,
                                                .norm = firsts_[final_norm()],
                                                .weight = head,
                                                .apart = options_.stage.has_value(),
                                                .logits_bytes = options_.logits_bytes},
                  dnormed, &layers_, &arena_, backend_);
  }
  const int64_t dead = arena_.bytes() - arena_.offset(blocks_.empty() ? places_.output : blocks_[0].input());
  const int64_t missing = static_cast<int64_t>(std::tuple_size_v<Rooms>) * options_.room_bytes - dead;
  if (missing > 0) arena_.Add("update", missing);
}

template <typename T>
GpuLlama::Rooms LlamaOf<T>::rooms() const {
  Rooms rooms;
  for (size_t i = 0; i < rooms.size() && options_.room_bytes > 0; ++i) {
    const int64_t offset = arena_.bytes() - static_cast<int64_t>(i + 1) * options_.room_bytes;
    if (options_.stage) {  // others are in flight until all gradients are final
      rooms[i] = {arena_.begin() + offset, 0};
      continue;
    }
    int64_t layer = config_.num_hidden_layers;  // the first that has something in it; after them the output
    while (layer > 0 &&
           offset < arena_.offset(layer == config_.num_hidden_layers ? places_.output : blocks_[layer].input())) {
      --layer;
    }
    const int64_t tensor = layer == config_.num_hidden_layers ? final_norm() : TensorOf(layer, BlockTensor{});
    rooms[i] = {arena_.begin() + offset, firsts_[tensor]};
  }
  return rooms;
}

// ---- The model ----

template <typename T>
void LlamaOf<T>::Forward(const void* given) {
  const T* const parameters = static_cast<const T*>(given);
  const int64_t rows = shape_.rows(), hidden = shape_.hidden;
  if (range_.embedding) {
    Launch(EmbeddingKernel<T>{.tokens = batch_.tokens(),
                              .w = parameters + firsts_[0],
                              .y = static_cast<T*>(input()),
                              .rows = rows,
                              .size = hidden});
  }
  for (size_t i = 0; i < blocks_.size(); ++i) {
    blocks_[i].Forward(parameters, At(i + 1 < blocks_.size() ? blocks_[i + 1].input() : places_.output));
  }
  if (head_) head_->Forward(parameters, At(places_.output));
}

template <typename T>
void LlamaOf<T>::EmbeddingBackwardWeight(float* gradients) {
  const GpuBatch::Counts& counts = batch_.counts();
  float* const dw = gradients + firsts_[0];
  Launch(EmbeddingBackwardKernel<T>{.order = batch_.order(),
                                    .tokens = batch_.share_tokens(),
                                    .begins = batch_.share_begins(),
                                    .ends = batch_.share_ends(),
                                    .dy = At(places_.dstream),
                                    .dw = dw,
                                    .partials = Floats(places_.embedding_buffer),
                                    .shares = counts.shares,
                                    .partial = counts.partial,
                                    .size = shape_.hidden});
  Launch(EmbeddingPartialsKernel{.tokens = batch_.share_tokens(),
                                 .split = batch_.split(),
                                 .partials = Floats(places_.embedding_buffer),
                                 .dw = dw,
                                 .split_tokens = counts.split_tokens,
                                 .size = shape_.hidden});
}

// A tied head's are apart from the embedding's, after all others.
template <typename T>
typename GpuHead<T>::Gradients LlamaOf<T>::HeadGradients(float* gradients) const {
  const int64_t own = config_.tie_word_embeddings ? firsts_.back() : firsts_[final_norm() + 1];
  return {.norm = gradients + firsts_[final_norm()], .weight = gradients + own};
}

template <typename T>
void LlamaOf<T>::Backward(const void* given, float* gradients, float scale, const OnFinal& queued) {
  const T* const parameters = static_cast<const T*>(given);
  size_t part = 0;
  const auto is_final = [&] {
    const auto& [tensor, event] = final_from_[part++];
    backend_->device().Record(event, Queue::kCompute);
    if (queued != nullptr) queued(tensor);
  };
  if (head_) {
    head_->BackwardInput(parameters, At(places_.output), batch_.targets(), scale, HeadGradients(gradients),
                         At(places_.dstream));
    is_final();
  }
  for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block) {
    block->BackwardInput(parameters, gradients, At(places_.dstream));
    is_final();
  }
  if (range_.embedding) {
    EmbeddingBackwardWeight(gradients);
    is_final();
  }
}

template <typename T>
void LlamaOf<T>::BackwardInput(const void* given, float scale) {
  const T* const parameters = static_cast<const T*>(given);
  if (head_) {
    head_->BackwardInput(parameters, At(places_.output), batch_.targets(), scale, {}, At(places_.dstream));
  }
  for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block) {
    block->BackwardInput(parameters, nullptr, At(places_.dstream));
  }
}

template <typename T>
void LlamaOf<T>::BackwardWeight(const void* given, float* gradients) {
  const T* const parameters = static_cast<const T*>(given);
  if (head_) head_->BackwardWeight(At(places_.output), HeadGradients(gradients));
  for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block) block->BackwardWeight(parameters, gradients);
  if (range_.embedding) EmbeddingBackwardWeight(gradients);
}

template <typename T>
absl::Status LlamaOf<T>::AwaitGradients(const OnFinal& final) {
  for (const auto& [tensor, event] : final_from_) {
    backend_->device().AwaitOnHost(event);
    RETURN_IF_ERROR(backend_->device().status());
    final(tensor);
  }
  return absl::OkStatus();
}

template <typename T>
absl::StatusOr<std::unique_ptr<LlamaOf<T>>> PlanOf(const core::LlamaConfig& config, GpuLlama::Options options,
                                                   ComputeBackend* backend) {
  if (options.attention == nullptr) {
    const AttentionShape shape = LlamaShape(config, options.batch_rows, options.sequence).attention;
    ASSIGN_OR_RETURN(options.attention, backend->MakeAttention(shape, options.type));
  }
  return std::make_unique<LlamaOf<T>>(config, options, backend);
}

template <typename T>
absl::StatusOr<std::unique_ptr<GpuLlama>> MakeOf(const core::LlamaConfig& config, const GpuLlama::Options& options,
                                                 ComputeBackend* backend) {
  ASSIGN_OR_RETURN(auto llama, PlanOf<T>(config, options, backend));
  RETURN_IF_ERROR(llama->Allocate());
  return llama;
}

template <typename T>
absl::StatusOr<int64_t> BytesOf(const core::LlamaConfig& config, const GpuLlama::Options& options,
                                ComputeBackend* backend) {
  ASSIGN_OR_RETURN(const auto llama, PlanOf<T>(config, options, backend));
  return llama->arena().bytes();
}

}  // namespace

absl::StatusOr<std::unique_ptr<GpuLlama>> GpuLlama::Make(const core::LlamaConfig& config, const Options& options,
                                                         ComputeBackend* backend) {
  return options.type == ValueType::kFloat32 ? MakeOf<float>(config, options, backend)
                                             : MakeOf<Bfloat16>(config, options, backend);
}

absl::StatusOr<int64_t> GpuLlama::Bytes(const core::LlamaConfig& config, const Options& options,
                                        ComputeBackend* backend) {
  return options.type == ValueType::kFloat32 ? BytesOf<float>(config, options, backend)
                                             : BytesOf<Bfloat16>(config, options, backend);
}

}  // namespace causeway::worker
