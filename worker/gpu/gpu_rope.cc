#include "worker/gpu/gpu_rope.h"

#include <cmath>

#include "worker/train/llama_layers.h"

namespace causeway::worker {

using offload::Queue;

template <typename T>
GpuRope<T>::GpuRope(const core::LlamaConfig& config, const AttentionShape& shape, Arena* arena, ComputeBackend* backend)
    : shape_(shape), arena_(arena), backend_(backend) {
  const std::vector<double> frequencies = RopeFrequencies(shape.head_size, config.rope_theta, config.rope_scaling);
  for (int64_t position = 0; position < shape.sequence; ++position) {
    for (const double frequency : frequencies) {
      cosines_.push_back(static_cast<float>(std::cos(static_cast<double>(position) * frequency)));
      sines_.push_back(static_cast<float>(std::sin(static_cast<double>(position) * frequency)));
    }
  }
  cosines_place_ = arena->Add("tables", static_cast<int64_t>(cosines_.size() * sizeof(float)));
  sines_place_ = arena->Add("tables", static_cast<int64_t>(sines_.size() * sizeof(float)));
}

template <typename T>
void GpuRope<T>::Fill() {
  offload::Device& device = backend_->device();
  device.CopyToDevice(Queue::kCompute, arena_->At<float>(cosines_place_), cosines_.data(),
                      cosines_.size() * sizeof(float));
  device.CopyToDevice(Queue::kCompute, arena_->At<float>(sines_place_), sines_.data(), sines_.size() * sizeof(float));
}

template <typename T>
void GpuRope<T>::Rotate(T* qkv, float sign) const {
  backend_->Launch(Queue::kCompute, RopeKernel<T>{.x = qkv,
                                                  .cosines = arena_->At<float>(cosines_place_),
                                                  .sines = arena_->At<float>(sines_place_),
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
