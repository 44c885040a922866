#include "worker/model/gpu_block.h"

namespace causeway::worker {

using offload::Queue;

template <typename T>
GpuRope<T>::GpuRope(const core::LlamaConfig& config, const AttentionShape& shape, Arena* arena, ComputeBackend* backend)
    : shape_(shape),
      arena_(arena),
      backend_(backend),
      tables_(shape.sequence, RopeFrequencies(shape.head_size, config.rope_theta, config.rope_scaling)) {
  cosines_ = arena->Add("tables", static_cast<int64_t>(tables_.cosines().size() * sizeof(float)));
  sines_ = arena->Add("tables", static_cast<int64_t>(tables_.sines().size() * sizeof(float)));
}

template <typename T>
void GpuRope<T>::Fill() {
  const auto copy = [this](Arena::Place to, const std::vector<float>& from) {
    backend_->device().CopyToDevice(Queue::kCompute, arena_->At<float>(to), from.data(), from.size() * sizeof(float));
  };
  copy(cosines_, tables_.cosines());
  copy(sines_, tables_.sines());
}

template <typename T>
void GpuRope<T>::Rotate(T* qkv, float sign) const {
  backend_->Launch(Queue::kCompute, RopeKernel<T>{.x = qkv,
                                                  .cosines = arena_->At<float>(cosines_),
                                                  .sines = arena_->At<float>(sines_),
                                                  .rows = shape_.batch * shape_.sequence,
                                                  .stride = (shape_.heads + 2 * shape_.kv_heads) * shape_.head_size,
                                                  .heads = shape_.heads + shape_.kv_heads,
                                                  .half = shape_.head_size / 2,
                                                  .sequence = shape_.sequence,
                                                  .sign = sign});
}

template class GpuRope<float>;
template class GpuRope<Bfloat16>;

template <typename T>
GpuBlock<T>::GpuBlock(const GpuBlocks<T>* blocks, const Firsts& firsts, const GpuBlock* first)
    : blocks_(blocks), firsts_(firsts) {
  constexpr char kName[] = "activations";
  const int64_t rows = blocks->shape.rows(), hidden = blocks->shape.hidden, width = blocks->shape.intermediate;
  const auto values = [&](int64_t count) { return blocks->arena->Add(kName, count * static_cast<int64_t>(sizeof(T))); };
  const auto floats = [&](int64_t count) {
    return blocks->arena->Add(kName, count * static_cast<int64_t>(sizeof(float)));
  };
  between_ = {.dgate_up = blocks->dgate_up,
              .dnormed_middle = blocks->dnormed,
              .dqkv = blocks->dqkv,
              .dnormed_input = blocks->dnormed};
  if (blocks->apart) {
    between_ = {.doutput = values(rows * hidden),
                .dgate_up = values(rows * 2 * width),
                .dnormed_middle = values(rows * hidden),
                .dmiddle = values(rows * hidden),
                .dqkv = values(rows * blocks->qkv_size()),
                .dnormed_input = values(rows * hidden)};
  }
  if (first != nullptr && blocks->recompute == Recompute::kBlock) {
    kept_ = first->kept_;  // one block's values at a time
    kept_.input = values(rows * hidden);
    return;
  }
  const Kept* const shared = blocks->recompute == Recompute::kNormSwiglu && first != nullptr ? &first->kept_ : nullptr;
  kept_ = {.input = values(rows * hidden),
           .normed_input = shared != nullptr ? shared->normed_input : values(rows * hidden),
           .input_scale = floats(rows),
           .qkv = values(rows * blocks->qkv_size()),
           .attended = values(rows * hidden),
           .statistics = floats(blocks->attention->statistics()),
           .middle = values(rows * hidden),
           .normed_middle = shared != nullptr ? shared->normed_middle : values(rows * hidden),
           .middle_scale = floats(rows),
           .gate_up = values(rows * 2 * width),
           .activated = shared != nullptr ? shared->activated : values(rows * width)};
}

template <typename T>
void GpuBlock<T>::SwiGlu() {
  Launch(SwiGluKernel<T>{.gate_up = At(kept_.gate_up),
                         .y = At(kept_.activated),
                         .rows = blocks_->shape.rows(),
                         .size = blocks_->shape.intermediate});
}

template <typename T>
void GpuBlock<T>::Forward(const T* parameters, T* output) {
  const auto w = [&](BlockTensor tensor) { return parameters + firsts_[tensor]; };
  const int64_t hidden = blocks_->shape.hidden, width = blocks_->shape.intermediate;
  const GpuLayers<T>& layers = *blocks_->layers;

  layers.Norm(At(kept_.input), w(kInputNorm), At(kept_.normed_input), Floats(kept_.input_scale));
  layers.Linear({hidden, blocks_->qkv_size()}, At(kept_.normed_input), w(kQ), At(kept_.qkv));
  blocks_->rope->Rotate(At(kept_.qkv), 1);
  blocks_->attention->Forward(At(kept_.qkv), At(kept_.attended), Floats(kept_.statistics));
  layers.Linear({hidden, hidden}, At(kept_.attended), w(kO), At(kept_.middle), At(kept_.input));

  layers.Norm(At(kept_.middle), w(kMiddleNorm), At(kept_.normed_middle), Floats(kept_.middle_scale));
  layers.Linear({hidden, 2 * width}, At(kept_.normed_middle), w(kGate), At(kept_.gate_up));
  SwiGlu();
  layers.Linear({width, hidden}, At(kept_.activated), w(kDown), output, At(kept_.middle));
}

template <typename T>
void GpuBlock<T>::Remake(const T* parameters) {
  if (blocks_->recompute == Recompute::kBlock) Forward(parameters, At(blocks_->remade));
  if (blocks_->recompute != Recompute::kNormSwiglu) return;
  const GpuLayers<T>& layers = *blocks_->layers;
  layers.Norm(At(kept_.input), parameters + firsts_[kInputNorm], At(kept_.normed_input), Floats(kept_.input_scale));
  layers.Norm(At(kept_.middle), parameters + firsts_[kMiddleNorm], At(kept_.normed_middle), Floats(kept_.middle_scale));
  SwiGlu();
}

template <typename T>
void GpuBlock<T>::BackwardInput(const T* parameters, float* gradients, T* dstream) {
  const auto w = [&](BlockTensor tensor) { return parameters + firsts_[tensor]; };
  const int64_t hidden = blocks_->shape.hidden, width = blocks_->shape.intermediate;
  const GpuLayers<T>& layers = *blocks_->layers;
  Remake(parameters);

  layers.LinearBackwardInput({width, hidden}, dstream, w(kDown), At(blocks_->dactivated));
  Launch(SwiGluBackwardKernel<T>{.dy = At(blocks_->dactivated),
                                 .gate_up = At(kept_.gate_up),
                                 .dgate_up = At(between_.dgate_up),
                                 .rows = blocks_->shape.rows(),
                                 .size = width});
  layers.LinearBackwardInput({hidden, 2 * width}, At(between_.dgate_up), w(kGate), At(between_.dnormed_middle));
  if (gradients != nullptr) {
    FeedForwardWeight(gradients, dstream);
  } else {
    Copy(dstream, At(between_.doutput));
  }
  layers.NormBackward(MiddleNorm(parameters), dstream, dstream, gradients ? gradients + firsts_[kMiddleNorm] : nullptr);

  layers.LinearBackwardInput({hidden, hidden}, dstream, w(kO), At(blocks_->dattended));
  blocks_->attention->Backward(At(kept_.qkv), At(kept_.attended), Floats(kept_.statistics), At(blocks_->dattended),
                               At(between_.dqkv));
  blocks_->rope->Rotate(At(between_.dqkv), -1);
  layers.LinearBackwardInput({hidden, blocks_->qkv_size()}, At(between_.dqkv), w(kQ), At(between_.dnormed_input));
  if (gradients != nullptr) {
    AttentionWeight(gradients, dstream);
  } else {
    Copy(dstream, At(between_.dmiddle));
  }
  layers.NormBackward(InputNorm(parameters), dstream, dstream, gradients ? gradients + firsts_[kInputNorm] : nullptr);
}

template <typename T>
void GpuBlock<T>::BackwardWeight(const T* parameters, float* gradients) {
  Remake(parameters);  // other blocks, or micro-batches, have used the memory since I
  FeedForwardWeight(gradients, At(between_.doutput));
  blocks_->layers->NormBackwardWeight(MiddleNorm(nullptr), gradients + firsts_[kMiddleNorm]);
  AttentionWeight(gradients, At(between_.dmiddle));
  blocks_->layers->NormBackwardWeight(InputNorm(nullptr), gradients + firsts_[kInputNorm]);
}

template <typename T>
void GpuBlock<T>::FeedForwardWeight(float* gradients, const T* doutput) {
  const int64_t hidden = blocks_->shape.hidden, width = blocks_->shape.intermediate;
  const GpuLayers<T>& layers = *blocks_->layers;
  layers.LinearBackwardWeight({width, hidden}, doutput, At(kept_.activated), gradients + firsts_[kDown]);
  layers.LinearBackwardWeight({hidden, 2 * width}, At(between_.dgate_up), At(kept_.normed_middle),
                              gradients + firsts_[kGate]);
}

template <typename T>
void GpuBlock<T>::AttentionWeight(float* gradients, const T* dmiddle) {
  const int64_t hidden = blocks_->shape.hidden;
  const GpuLayers<T>& layers = *blocks_->layers;
  layers.LinearBackwardWeight({hidden, hidden}, dmiddle, At(kept_.attended), gradients + firsts_[kO]);
  layers.LinearBackwardWeight({hidden, blocks_->qkv_size()}, At(between_.dqkv), At(kept_.normed_input),
                              gradients + firsts_[kQ]);
}

template class GpuBlock<float>;
template class GpuBlock<Bfloat16>;

}  // namespace causeway::worker
