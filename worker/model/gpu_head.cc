#include "worker/model/gpu_head.h"

#include <algorithm>

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
      chunk_rows_(ChunkRows()),
      loss_rows_(&backend->device()) {
  constexpr auto kValueBytes = static_cast<int64_t>(sizeof(T)), kFloatBytes = static_cast<int64_t>(sizeof(float));
  normed_ = arena->Add("activations", settings.rows * settings.hidden * kValueBytes);
  scale_ = arena->Add("activations", settings.rows * kFloatBytes);
  logits_ = arena->Add("logits", chunk_rows_ * stride() * kValueBytes);
  losses_ = arena->Add("logits", settings.rows * kFloatBytes);
}

template <typename T>
int64_t GpuHead<T>::stride() const {
  constexpr int64_t kLineValues = 64;
  return (settings_.vocab + kLineValues - 1) / kLineValues * kLineValues;
}

// Even chunks; where the limit has room for 128 rows, of a multiple of them, as matrix products are made of tiles.
template <typename T>
int64_t GpuHead<T>::ChunkRows() const {
  constexpr int64_t kTileRows = 128;
  const int64_t fit = settings_.logits_bytes / (stride() * static_cast<int64_t>(sizeof(T)));
  if (settings_.apart || fit >= settings_.rows) return settings_.rows;
  const int64_t unit = fit >= kTileRows ? kTileRows : 1, most = std::max(fit / unit * unit, unit);
  const int64_t chunks = (settings_.rows + most - 1) / most, even = (settings_.rows + chunks - 1) / chunks;
  return (even + unit - 1) / unit * unit;
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
}

template <typename T>
void GpuHead<T>::Classify(const T* parameters, const int32_t* targets, int64_t first, int64_t rows, float factor) {
  layers_->Linear(HeadOf(rows), At(normed_) + first * settings_.hidden, parameters + settings_.weight, At(logits_));
  backend_->Launch(Queue::kCompute, ClassifierKernel<T>{.logits = At(logits_),
                                                        .targets = targets + first,
                                                        .losses = Floats(losses_) + first,
                                                        .rows = rows,
                                                        .vocab = static_cast<int32_t>(settings_.vocab),
                                                        .stride = static_cast<int32_t>(stride()),
                                                        .factor = factor});
}

template <typename T>
void GpuHead<T>::Evaluate(const T* parameters, const int32_t* targets) {
  for (int64_t first = 0; first < settings_.rows; first += chunk_rows_) {
    Classify(parameters, targets, first, std::min(chunk_rows_, settings_.rows - first), 1);
  }
  loss_rows_.Copy(Floats(losses_), settings_.rows);
}

template <typename T>
void GpuHead<T>::BackwardInput(const T* parameters, const T* x, const int32_t* targets, float scale,
                               const Gradients& gradients, T* dx) {
  const T* const w = parameters + settings_.weight;
  for (int64_t first = 0; first < settings_.rows; first += chunk_rows_) {
    const int64_t rows = std::min(chunk_rows_, settings_.rows - first);
    const T* const normed = At(normed_) + first * settings_.hidden;
    Classify(parameters, targets, first, rows, scale / static_cast<float>(settings_.rows));
    layers_->LinearBackwardInput(HeadOf(rows), At(logits_), w, At(dnormed_) + first * settings_.hidden);
    if (gradients.weight == nullptr) continue;
    layers_->LinearBackwardWeight(HeadOf(rows), At(logits_), normed, gradients.weight);
  }
  loss_rows_.Copy(Floats(losses_), settings_.rows);
  layers_->NormBackward(Norm(parameters, x), nullptr, dx, gradients.norm);
}

template <typename T>
void GpuHead<T>::BackwardWeight(const T* x, const Gradients& gradients) {
  layers_->LinearBackwardWeight(HeadOf(settings_.rows), At(logits_), At(normed_), gradients.weight);
  layers_->NormBackwardWeight(Norm(nullptr, x), gradients.norm);
}

template class GpuHead<float>;
template class GpuHead<Bfloat16>;

}  // namespace causeway::worker
