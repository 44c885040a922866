#include "worker/gpu/gpu_llama.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/model_manifest.h"
#include "worker/gpu/gpu_batch.h"
#include "worker/gpu/gpu_layers.h"
#include "worker/gpu/gpu_rope.h"
#include "worker/gpu/loss_rows.h"
#include "worker/train/llama_block.h"

namespace causeway::worker {
namespace {

using offload::Queue;

constexpr int64_t kFloatBytes = sizeof(float);
constexpr int64_t kRowValues = 64;

// Computes with values of T.
template <typename T>
class LlamaOf final : public GpuLlama {
 public:
  LlamaOf(const core::LlamaConfig& config, const Options& options, ComputeBackend* backend);

  absl::Status Allocate();
  void Begin(const Batch& batch) override { batch_.Copy(batch); }
  void Forward(const void* parameters) override;
  void Backward(const void* parameters, float* gradients, float scale, const OnFinal& queued) override;
  absl::Status AwaitGradients(const OnFinal& final) override;
  absl::StatusOr<double> Loss() override { return loss_rows_.Mean(); }
  Rooms rooms() const override;
  const Arena& arena() const override { return arena_; }

 private:
  struct Block {
    Arena::Place input = 0, normed_input = 0, input_scale = 0, qkv = 0, attended = 0, statistics = 0, middle = 0,
                 normed_middle = 0, middle_scale = 0, gate_up = 0, activated = 0;
  };

  void Plan();
  Block PlanBlock(int64_t layer);

  T* At(Arena::Place place) const { return arena_.At<T>(place); }
  float* Floats(Arena::Place place) const { return arena_.At<float>(place); }
  int TensorOf(int64_t layer, BlockTensor tensor) const { return 1 + static_cast<int>(layer) * kBlockTensors + tensor; }
  int final_norm() const { return TensorOf(config_.num_hidden_layers, kQ); }
  int head() const { return config_.tie_word_embeddings ? 0 : final_norm() + 1; }
  // Rows of logits that begin on whole lines, for any vocabulary.
  int64_t logits_stride() const { return (config_.vocab_size + kRowValues - 1) / kRowValues * kRowValues; }
  int64_t qkv_size() const { return shape_.hidden + 2 * shape_.kv_hidden; }

  void Launch(const Kernel& kernel) { backend_->Launch(Queue::kCompute, kernel); }
  void Norm(Arena::Place x, const T* w, Arena::Place y, Arena::Place scale) {
    layers_.Norm(At(x), w, At(y), Floats(scale));
  }
  void SwiGlu(const Block& block);
  void BlockForward(int64_t layer, const T* parameters, T* output);
  // Makes again what the forward pass did not keep.
  void Remake(int64_t layer, const T* parameters);
  // `dstream` holds the gradient of the block's output, and then of its input.
  void BlockBackward(int64_t layer, const T* parameters, float* gradients, T* dstream);

  const core::LlamaConfig config_;
  const LlamaShape shape_;
  const Options options_;
  ComputeBackend* const backend_;
  GpuLayers<T> layers_;
  const std::vector<int64_t> firsts_;  // of each tensor in the flat arrays
  Arena arena_;
  GpuBatch batch_;
  GpuRope<T> rope_;
  std::vector<Block> blocks_;
  Arena::Place output_ = 0, normed_output_ = 0, output_scale_ = 0, logits_ = 0, losses_ = 0, remade_ = 0;
  Arena::Place dstream_ = 0, dnormed_ = 0, dqkv_ = 0, dattended_ = 0, dgate_up_ = 0, dactivated_ = 0, partials_ = 0,
               attention_buffer_ = 0;
  LossRows loss_rows_;
  // In the order of backward, as it is queued: gradients from the value on are final when the event has come.
  std::vector<std::pair<int64_t, offload::Device::Event>> final_from_;
};

template <typename T>
LlamaOf<T>::LlamaOf(const core::LlamaConfig& config, const Options& options, ComputeBackend* backend)
    : config_(config),
      shape_(config, options.batch_rows, options.sequence),
      options_(options),
      backend_(backend),
      layers_({shape_.rows(), shape_.hidden, shape_.norm_epsilon}, backend),
      firsts_(core::FlatOffsets(core::LlamaManifest(config))),
      batch_(shape_.rows(), &arena_, backend),
      rope_(config, shape_.attention, &arena_, backend),
      loss_rows_(&backend->device()) {
  const auto add = [&](int64_t tensor) { final_from_.emplace_back(firsts_[tensor], backend->device().MakeEvent()); };
  add(final_norm());
  for (int64_t layer = config_.num_hidden_layers - 1; layer >= 0; --layer) add(TensorOf(layer, BlockTensor{}));
  add(0);
  Plan();
}

template <typename T>
absl::Status LlamaOf<T>::Allocate() {
  RETURN_IF_ERROR(arena_.Allocate(backend_->device()));
  options_.attention->SetBuffer(arena_.At<char>(attention_buffer_));
  layers_.SetBuffer(Floats(partials_));
  rope_.Fill();
  return absl::OkStatus();
}

// ---- Memory ----

template <typename T>
typename LlamaOf<T>::Block LlamaOf<T>::PlanBlock(int64_t layer) {
  constexpr char kName[] = "activations";
  const int64_t rows = shape_.rows(), hidden = shape_.hidden, width = shape_.intermediate;
  const auto values = [&](int64_t count) { return arena_.Add(kName, count * static_cast<int64_t>(sizeof(T))); };
  const auto floats = [&](int64_t count) { return arena_.Add(kName, count * kFloatBytes); };
  if (layer > 0 && options_.recompute == Recompute::kBlock) {
    Block block = blocks_[0];  // one block's values at a time
    block.input = values(rows * hidden);
    return block;
  }
  const bool shares = layer > 0 && options_.recompute == Recompute::kNormSwiglu;
  const Block* const first = shares ? &blocks_[0] : nullptr;
  return {.input = values(rows * hidden),
          .normed_input = shares ? first->normed_input : values(rows * hidden),
          .input_scale = floats(rows),
          .qkv = values(rows * qkv_size()),
          .attended = values(rows * hidden),
          .statistics = floats(options_.attention->statistics()),
          .middle = values(rows * hidden),
          .normed_middle = shares ? first->normed_middle : values(rows * hidden),
          .middle_scale = floats(rows),
          .gate_up = values(rows * 2 * width),
          .activated = shares ? first->activated : values(rows * width)};
}

template <typename T>
void LlamaOf<T>::Plan() {
  const int64_t rows = shape_.rows(), hidden = shape_.hidden, width = shape_.intermediate;
  const auto values = [&](const char* name, int64_t count) {
    return arena_.Add(name, count * static_cast<int64_t>(sizeof(T)));
  };
  const auto floats = [&](const char* name, int64_t count) { return arena_.Add(name, count * kFloatBytes); };
  constexpr char kGradients[] = "gradients of activations";
  for (Arena::Place* place : {&dstream_, &dnormed_, &dattended_}) *place = values(kGradients, rows * hidden);
  dqkv_ = values(kGradients, rows * qkv_size());
  dgate_up_ = values(kGradients, rows * 2 * width);
  dactivated_ = values(kGradients, rows * width);
  partials_ = floats(kGradients, GpuLayers<T>::kNormShares * hidden);
  attention_buffer_ = arena_.Add("attention", options_.attention->buffer_bytes());
  if (options_.recompute == Recompute::kBlock) remade_ = values("activations", rows * hidden);

  // From here on in the order of forward, so that what lies behind dies first in backward: rooms() are at the end.
  for (int64_t layer = 0; layer < config_.num_hidden_layers; ++layer) blocks_.push_back(PlanBlock(layer));
  output_ = values("activations", rows * hidden);
  normed_output_ = values("activations", rows * hidden);
  output_scale_ = floats("activations", rows);
  logits_ = values("logits", rows * logits_stride());
  losses_ = floats("logits", rows);
  const int64_t dead = arena_.bytes() - arena_.offset(blocks_.empty() ? output_ : blocks_[0].input);
  const int64_t missing = static_cast<int64_t>(std::tuple_size_v<Rooms>) * options_.room_bytes - dead;
  if (missing > 0) arena_.Add("update", missing);
}

template <typename T>
GpuLlama::Rooms LlamaOf<T>::rooms() const {
  Rooms rooms;
  for (size_t i = 0; i < rooms.size() && options_.room_bytes > 0; ++i) {
    const int64_t offset = arena_.bytes() - static_cast<int64_t>(i + 1) * options_.room_bytes;
    int64_t layer = config_.num_hidden_layers;  // the first of which something lies in it; behind them the output
    while (layer > 0 && offset < arena_.offset(layer == config_.num_hidden_layers ? output_ : blocks_[layer].input)) {
      --layer;
    }
    const int64_t tensor = layer == config_.num_hidden_layers ? final_norm() : TensorOf(layer, BlockTensor{});
    rooms[i] = {arena_.begin() + offset, firsts_[tensor]};
  }
  return rooms;
}

// ---- Parts of a block ----

template <typename T>
void LlamaOf<T>::SwiGlu(const Block& block) {
  Launch(SwiGluKernel<T>{
      .gate_up = At(block.gate_up), .y = At(block.activated), .rows = shape_.rows(), .size = shape_.intermediate});
}

// ---- Blocks ----

template <typename T>
void LlamaOf<T>::BlockForward(int64_t layer, const T* parameters, T* output) {
  const Block& block = blocks_[layer];
  const auto w = [&](BlockTensor tensor) { return parameters + firsts_[TensorOf(layer, tensor)]; };
  const int64_t rows = shape_.rows(), hidden = shape_.hidden, width = shape_.intermediate;
  const auto copy = [&](const T* from, T* to) { Launch(CopyKernel<T, T>{from, to, rows * hidden}); };

  Norm(block.input, w(kInputNorm), block.normed_input, block.input_scale);
  layers_.Linear({hidden, qkv_size()}, At(block.normed_input), w(kQ), At(block.qkv), 0);
  rope_.Rotate(At(block.qkv), 1);
  options_.attention->Forward(At(block.qkv), At(block.attended), Floats(block.statistics));
  copy(At(block.input), At(block.middle));
  layers_.Linear({hidden, hidden}, At(block.attended), w(kO), At(block.middle), 1);

  Norm(block.middle, w(kMiddleNorm), block.normed_middle, block.middle_scale);
  layers_.Linear({hidden, 2 * width}, At(block.normed_middle), w(kGate), At(block.gate_up), 0);
  SwiGlu(block);
  copy(At(block.middle), output);
  layers_.Linear({width, hidden}, At(block.activated), w(kDown), output, 1);
}

template <typename T>
void LlamaOf<T>::Remake(int64_t layer, const T* parameters) {
  const Block& block = blocks_[layer];
  const auto w = [&](BlockTensor tensor) { return parameters + firsts_[TensorOf(layer, tensor)]; };
  if (options_.recompute == Recompute::kBlock) BlockForward(layer, parameters, At(remade_));
  if (options_.recompute != Recompute::kNormSwiglu) return;
  Norm(block.input, w(kInputNorm), block.normed_input, block.input_scale);
  Norm(block.middle, w(kMiddleNorm), block.normed_middle, block.middle_scale);
  SwiGlu(block);
}

template <typename T>
void LlamaOf<T>::BlockBackward(int64_t layer, const T* parameters, float* gradients, T* dstream) {
  const Block& block = blocks_[layer];
  const auto w = [&](BlockTensor tensor) { return parameters + firsts_[TensorOf(layer, tensor)]; };
  const auto dw = [&](BlockTensor tensor) { return gradients + firsts_[TensorOf(layer, tensor)]; };
  const int64_t rows = shape_.rows(), hidden = shape_.hidden, width = shape_.intermediate;
  Remake(layer, parameters);

  layers_.LinearBackwardInput({width, hidden}, dstream, w(kDown), At(dactivated_));
  layers_.LinearBackwardWeight({width, hidden}, dstream, At(block.activated), dw(kDown));
  Launch(SwiGluBackwardKernel<T>{
      .dy = At(dactivated_), .gate_up = At(block.gate_up), .dgate_up = At(dgate_up_), .rows = rows, .size = width});
  layers_.LinearBackwardInput({hidden, 2 * width}, At(dgate_up_), w(kGate), At(dnormed_));
  layers_.LinearBackwardWeight({hidden, 2 * width}, At(dgate_up_), At(block.normed_middle), dw(kGate));
  layers_.NormBackward(At(dnormed_), At(block.middle), w(kMiddleNorm), Floats(block.middle_scale), dstream,
                       dw(kMiddleNorm));

  layers_.LinearBackwardInput({hidden, hidden}, dstream, w(kO), At(dattended_));
  layers_.LinearBackwardWeight({hidden, hidden}, dstream, At(block.attended), dw(kO));
  options_.attention->Backward(At(block.qkv), At(block.attended), Floats(block.statistics), At(dattended_), At(dqkv_));
  rope_.Rotate(At(dqkv_), -1);
  layers_.LinearBackwardInput({hidden, qkv_size()}, At(dqkv_), w(kQ), At(dnormed_));
  layers_.LinearBackwardWeight({hidden, qkv_size()}, At(dqkv_), At(block.normed_input), dw(kQ));
  layers_.NormBackward(At(dnormed_), At(block.input), w(kInputNorm), Floats(block.input_scale), dstream,
                       dw(kInputNorm));
}

// ---- The model ----

template <typename T>
void LlamaOf<T>::Forward(const void* given) {
  const T* const parameters = static_cast<const T*>(given);
  const int64_t rows = shape_.rows(), hidden = shape_.hidden, layers = config_.num_hidden_layers;
  Launch(EmbeddingKernel<T>{.tokens = batch_.tokens(),
                            .w = parameters,
                            .y = At(layers > 0 ? blocks_[0].input : output_),
                            .rows = rows,
                            .size = hidden});
  for (int64_t layer = 0; layer < layers; ++layer) {
    BlockForward(layer, parameters, At(layer + 1 < layers ? blocks_[layer + 1].input : output_));
  }
  Norm(output_, parameters + firsts_[final_norm()], normed_output_, output_scale_);
  layers_.Linear({hidden, config_.vocab_size, logits_stride()}, At(normed_output_), parameters + firsts_[head()],
                 At(logits_), 0);
}

template <typename T>
void LlamaOf<T>::Backward(const void* given, float* gradients, float scale, const OnFinal& queued) {
  const T* const parameters = static_cast<const T*>(given);
  const int64_t rows = shape_.rows(), hidden = shape_.hidden, vocab = config_.vocab_size;
  Launch(ClassifierKernel<T>{.logits = At(logits_),
                             .targets = batch_.targets(),
                             .losses = Floats(losses_),
                             .rows = rows,
                             .vocab = static_cast<int32_t>(vocab),
                             .stride = static_cast<int32_t>(logits_stride()),
                             .factor = scale / static_cast<float>(rows)});
  loss_rows_.Copy(Floats(losses_), rows);

  size_t stage = 0;
  const auto is_final = [&] {
    const auto& [first, event] = final_from_[stage++];
    backend_->device().Record(event, Queue::kCompute);
    if (queued != nullptr) queued(first);
  };
  T* const dstream = At(dstream_);
  layers_.LinearBackwardInput({hidden, vocab, logits_stride()}, At(logits_), parameters + firsts_[head()],
                              At(dnormed_));
  layers_.LinearBackwardWeight({hidden, vocab, logits_stride()}, At(logits_), At(normed_output_),
                               gradients + firsts_[head()]);
  Launch(FillKernel<T>{dstream, rows * hidden, 0});
  layers_.NormBackward(At(dnormed_), At(output_), parameters + firsts_[final_norm()], Floats(output_scale_), dstream,
                       gradients + firsts_[final_norm()]);
  is_final();
  for (int64_t layer = config_.num_hidden_layers - 1; layer >= 0; --layer) {
    BlockBackward(layer, parameters, gradients, dstream);
    is_final();
  }
  Launch(EmbeddingBackwardKernel<T>{.order = batch_.order(),
                                    .begins = batch_.begins(),
                                    .tokens = batch_.occurring(),
                                    .dy = dstream,
                                    .dw = gradients,
                                    .occurring = batch_.num_occurring(),
                                    .size = hidden});
  is_final();
}

template <typename T>
absl::Status LlamaOf<T>::AwaitGradients(const OnFinal& final) {
  for (const auto& [first, event] : final_from_) {
    backend_->device().AwaitOnHost(event);
    RETURN_IF_ERROR(backend_->device().status());
    final(first);
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

absl::Status CheckGpuShape(const core::LlamaConfig& config, ValueType type) {
  constexpr int64_t kMultiple = 8;
  if (type == ValueType::kFloat32) return absl::OkStatus();
  const LlamaShape shape(config, 1, 1);
  for (const auto& [key, value] :
       {std::pair("hidden_size", shape.hidden), std::pair("intermediate_size", shape.intermediate),
        std::pair("hidden_size · num_key_value_heads / num_attention_heads", shape.kv_hidden)}) {
    if (value % kMultiple == 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("model.", key, ": expected a multiple of ", kMultiple,
                     ", so that rows of bfloat16 begin on 16 bytes of a GPU's memory, got ", value,
                     "; use --compute_dtype=float32"));
  }
  return absl::OkStatus();
}

const char* RecomputeName(Recompute recompute) {
  constexpr const char* kNames[] = {"none", "norm_swiglu", "block"};
  return kNames[static_cast<int>(recompute)];
}

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
