#include "worker/gpu/gpu_head.h"

namespace causeway::worker {

using offload::Queue;

template <typename T>
GpuHead<T>::GpuHead(const Settings& settings, Arena::Place dnormed, const GpuLayers<T>* layers, Arena* arena,
                    ComputeBackend* backend)
    : settings_(settings),
      layers_(layers),
      arena_(arena),
      backend_(backend),
      dnormed_(dnormed),
      loss_rows_(&backend->device()) {
  constexpr auto kValueBytes = static_cast<int64_t>(sizeof(T)), kFloatBytes = static_cast<int64_t>(sizeof(float));
  normed_ = arena->Add("activations", settings.rows * settings.hidden * kValueBytes);
  scale_ = arena->Add("activations", settings.rows * kFloatBytes);
  logits_ = arena->Add("logits", settings.rows * stride() * kValueBytes);
  losses_ = arena->Add("logits", settings.rows * kFloatBytes);
}

template <typename T>
int64_t GpuHead<T>::stride() const {
  constexpr int64_t kLineValues = 64;
  return (settings_.vocab + kLineValues - 1) / kLineValues * kLineValues;
}

template <typename T>
auto GpuHead<T>::Norm(const T* parameters, const T* x) const -> typename GpuLayers<T>::PassedNorm {
  return {.dy = At(dnormed_),
          .x = x,
          .w = parameters == nullptr ? nullptr : parameters + settings_.norm,
          .scale = Floats(scale_)};
}

template <typename T>
void GpuHead<T>::Forward(const T* parameters, const T* x) {
  layers_->Norm(x, parameters + settings_.norm, At(normed_), Floats(scale_));
  layers_->Linear({settings_.hidden, settings_.vocab, stride()}, At(normed_), parameters + settings_.weight,
                  At(logits_));
}

template <typename T>
void GpuHead<T>::BackwardInput(const T* parameters, const T* x, const int32_t* targets, float scale, float* gradients,
                               T* dx) {
  backend_->Launch(Queue::kCompute, ClassifierKernel<T>{.logits = At(logits_),
                                                        .targets = targets,
                                                        .losses = Floats(losses_),
                                                        .rows = settings_.rows,
                                                        .vocab = static_cast<int32_t>(settings_.vocab),
                                                        .stride = static_cast<int32_t>(stride()),
                                                        .factor = scale / static_cast<float>(settings_.rows)});
  loss_rows_.Copy(Floats(losses_), settings_.rows);
  layers_->LinearBackwardInput({settings_.hidden, settings_.vocab, stride()}, At(logits_),
                               parameters + settings_.weight, At(dnormed_));
  if (gradients != nullptr) HeadWeight(gradients);
  layers_->NormBackward(Norm(parameters, x), nullptr, dx, gradients == nullptr ? nullptr : gradients + settings_.norm);
}

template <typename T>
void GpuHead<T>::BackwardWeight(const T* x, float* gradients) {
  HeadWeight(gradients);
  layers_->NormBackwardWeight(Norm(nullptr, x), gradients + settings_.norm);
}

template <typename T>
void GpuHead<T>::HeadWeight(float* gradients) {
  layers_->LinearBackwardWeight({settings_.hidden, settings_.vocab, stride()}, At(logits_), At(normed_),
                                gradients + settings_.weight_gradient);
}

template class GpuHead<float>;
template class GpuHead<Bfloat16>;

}  // namespace causeway::worker
