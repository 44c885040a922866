#include "worker/model/gpu_rope.h"

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

}  // namespace causeway::worker
