#include "worker/model/gpu_layers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "worker/model/llama_block.h"

namespace causeway::worker {
namespace {

using offload::Queue;

template <typename Value>
DeviceMatrix MatrixOf(const Value* data, int64_t stride, bool transposed = false) {
  return {const_cast<Value*>(data), stride, kTypeOf<Value>, transposed};
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

template <typename T>
void GpuLayers<T>::Linear(const Map& map, const T* x, const T* w, T* y, const T* addend) const {
  backend_->Gemm(Queue::kCompute, {.m = RowsOf(map),
                                   .n = map.out,
                                   .k = map.in,
                                   .a = MatrixOf(x, map.in),
                                   .b = MatrixOf(w, map.in, true),
                                   .c = MatrixOf(y, map.stride),
                                   .beta = addend == nullptr ? 0.0f : 1.0f,
                                   .addend = addend});
}

template <typename T>
void GpuLayers<T>::LinearBackwardInput(const Map& map, const T* dy, const T* w, T* dx) const {
  backend_->Gemm(Queue::kCompute, {.m = RowsOf(map),
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
                                   .k = RowsOf(map),
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
int64_t GpuLayers<T>::NormShares() const {
  return std::clamp<int64_t>(shape_.rows / kRowsPerShare, 1, kNormShares);
}

template <typename T>
template <int kPacks>
bool GpuLayers<T>::NormBackwardIn(const PassedNorm& norm, const T* addend, T* dx) const {
  if (!RmsNormBackwardBothKernel<T, kPacks>::Takes(shape_.hidden)) return false;
  backend_->Launch(Queue::kCompute, RmsNormBackwardBothKernel<T, kPacks>{.dy = norm.dy,
                                                                         .x = norm.x,
                                                                         .w = norm.w,
                                                                         .addend = addend,
                                                                         .scale = norm.scale,
                                                                         .dx = dx,
                                                                         .partials = partials_,
                                                                         .rows = shape_.rows,
                                                                         .size = shape_.hidden,
                                                                         .shares = NormShares()});
  return true;
}

template <typename T>
void GpuLayers<T>::NormBackward(const PassedNorm& norm, const T* addend, T* dx, float* dw) const {
  if (dw != nullptr && (NormBackwardIn<1>(norm, addend, dx) || NormBackwardIn<2>(norm, addend, dx) ||
                        NormBackwardIn<4>(norm, addend, dx))) {
    AddNormPartials(dw);
    return;
  }
  if (dw != nullptr) NormBackwardWeight(norm, dw);
  backend_->Launch(Queue::kCompute, RmsNormBackwardKernel<T>{.dy = norm.dy,
                                                             .x = norm.x,
                                                             .w = norm.w,
                                                             .addend = addend,
                                                             .scale = norm.scale,
                                                             .dx = dx,
                                                             .rows = shape_.rows,
                                                             .size = shape_.hidden});
}

template <typename T>
void GpuLayers<T>::NormBackwardWeight(const PassedNorm& norm, float* dw) const {
  backend_->Launch(Queue::kCompute, RmsNormWeightKernel<T>{.dy = norm.dy,
                                                           .x = norm.x,
                                                           .scale = norm.scale,
                                                           .partials = partials_,
                                                           .rows = shape_.rows,
                                                           .size = shape_.hidden,
                                                           .shares = NormShares()});
  AddNormPartials(dw);
}

template <typename T>
void GpuLayers<T>::AddNormPartials(float* dw) const {
  backend_->Launch(Queue::kCompute,
                   AddPartialsKernel{.partials = partials_, .dw = dw, .size = shape_.hidden, .shares = NormShares()});
}

template class GpuLayers<float>;
template class GpuLayers<Bfloat16>;

}  // namespace causeway::worker
