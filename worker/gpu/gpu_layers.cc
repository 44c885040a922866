#include "worker/gpu/gpu_layers.h"

#include <algorithm>

namespace causeway::worker {
namespace {

using offload::Queue;

template <typename Value>
DeviceMatrix MatrixOf(const Value* data, int64_t stride, bool transposed = false) {
  return {const_cast<Value*>(data), stride, kTypeOf<Value>, transposed};
}

}  // namespace

template <typename T>
void GpuLayers<T>::Linear(const Map& map, const T* x, const T* w, T* y, float beta) const {
  backend_->Gemm(Queue::kCompute, {.m = shape_.rows,
                                   .n = map.out,
                                   .k = map.in,
                                   .a = MatrixOf(x, map.in),
                                   .b = MatrixOf(w, map.in, true),
                                   .c = MatrixOf(y, map.stride),
                                   .beta = beta});
}

template <typename T>
void GpuLayers<T>::LinearBackwardInput(const Map& map, const T* dy, const T* w, T* dx) const {
  backend_->Gemm(Queue::kCompute, {.m = shape_.rows,
                                   .n = map.in,
                                   .k = map.out,
                                   .a = MatrixOf(dy, map.stride),
                                   .b = MatrixOf(w, map.in),
                                   .c = MatrixOf(dx, map.in)});
}

template <typename T>
void GpuLayers<T>::LinearBackwardWeight(const Map& map, const T* dy, const T* x, float* dw) const {
  backend_->Gemm(Queue::kCompute, {.m = map.out,
                                   .n = map.in,
                                   .k = shape_.rows,
                                   .a = MatrixOf(dy, map.stride, true),
                                   .b = MatrixOf(x, map.in),
                                   .c = MatrixOf(dw, map.in),
                                   .beta = 1});
}

template <typename T>
void GpuLayers<T>::Norm(const T* x, const T* w, T* y, float* scale) const {
  backend_->Launch(Queue::kCompute, RmsNormKernel<T>{.x = x,
                                                     .w = w,
                                                     .y = y,
                                                     .scale = scale,
                                                     .rows = shape_.rows,
                                                     .size = shape_.hidden,
                                                     .epsilon = static_cast<float>(shape_.norm_epsilon)});
}

template <typename T>
void GpuLayers<T>::NormBackwardInput(const T* dy, const T* x, const T* w, const float* scale, T* dx) const {
  backend_->Launch(Queue::kCompute,
                   RmsNormBackwardKernel<T>{
                       .dy = dy, .x = x, .w = w, .scale = scale, .dx = dx, .rows = shape_.rows, .size = shape_.hidden});
}

template <typename T>
void GpuLayers<T>::NormBackwardWeight(const T* dy, const T* x, const float* scale, float* dw) const {
  const int64_t rows = shape_.rows, size = shape_.hidden;
  const int64_t shares = std::clamp<int64_t>(rows / kRowsPerShare, 1, kNormShares);
  backend_->Launch(
      Queue::kCompute,
      RmsNormWeightKernel<T>{
          .dy = dy, .x = x, .scale = scale, .partials = partials_, .rows = rows, .size = size, .shares = shares});
  backend_->Launch(Queue::kCompute, AddPartialsKernel{.partials = partials_, .dw = dw, .size = size, .shares = shares});
}

template class GpuLayers<float>;
template class GpuLayers<Bfloat16>;

}  // namespace causeway::worker
