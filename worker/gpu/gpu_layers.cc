#include "worker/gpu/gpu_layers.h"

namespace causeway::worker {
namespace {

using offload::Queue;

template <typename Value>
DeviceMatrix MatrixOf(const Value* data, int64_t stride, bool transposed = false) {
  return {const_cast<Value*>(data), stride, kTypeOf<Value>, transposed};
}

}  // namespace

template <typename T>
void GpuLayers<T>::Linear(int64_t in, int64_t out, const T* x, const T* w, T* y, float beta) const {
  backend_->Gemm(Queue::kCompute, {.m = shape_.rows,
                                   .n = out,
                                   .k = in,
                                   .a = MatrixOf(x, in),
                                   .b = MatrixOf(w, in, true),
                                   .c = MatrixOf(y, out),
                                   .beta = beta});
}

template <typename T>
void GpuLayers<T>::LinearBackwardInput(int64_t in, int64_t out, const T* dy, const T* w, T* dx) const {
  backend_->Gemm(
      Queue::kCompute,
      {.m = shape_.rows, .n = in, .k = out, .a = MatrixOf(dy, out), .b = MatrixOf(w, in), .c = MatrixOf(dx, in)});
}

template <typename T>
void GpuLayers<T>::LinearBackwardWeight(int64_t in, int64_t out, const T* dy, const T* x, float* dw) const {
  backend_->Gemm(Queue::kCompute, {.m = out,
                                   .n = in,
                                   .k = shape_.rows,
                                   .a = MatrixOf(dy, out, true),
                                   .b = MatrixOf(x, in),
                                   .c = MatrixOf(dw, in),
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
void GpuLayers<T>::NormBackward(const T* dy, const T* x, const T* w, const float* scale, T* dx, float* dw) const {
  const int64_t rows = shape_.rows, size = shape_.hidden;
  backend_->Launch(
      Queue::kCompute,
      RmsNormBackwardKernel<T>{.dy = dy, .x = x, .w = w, .scale = scale, .dx = dx, .rows = rows, .size = size});
  backend_->Launch(
      Queue::kCompute,
      RmsNormWeightKernel<T>{
          .dy = dy, .x = x, .scale = scale, .partials = partials_, .rows = rows, .size = size, .shares = kNormShares});
  backend_->Launch(Queue::kCompute,
                   AddPartialsKernel{.partials = partials_, .dw = dw, .size = size, .shares = kNormShares});
}

template class GpuLayers<float>;
template class GpuLayers<Bfloat16>;

}  // namespace causeway::worker
