#include "worker/model/gpu_layers.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "worker/device/kernels/embedding_kernels.h"
#include "worker/model/llama_block.h"

namespace causeway::worker {
namespace {

constexpr int64_t kLine = 64;  // values

int64_t LinesOf(int64_t values) { return (values + kLine - 1) / kLine * kLine; }

using offload::Queue;

template <typename Value>
DeviceMatrix MatrixOf(const Value* data, int64_t stride, bool transposed = false) {
  return {const_cast<Value*>(data), stride, kTypeOf<Value>, transposed};
}

}  // namespace

void EmbeddingShares::Assign(std::span<const int32_t> of_rows) {
  constexpr auto kMost = static_cast<int32_t>(kEmbeddingShareRows);
  order.resize(of_rows.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](int32_t row) { return of_rows[row]; });
  for (std::vector<int32_t>* part : {&tokens, &begins, &ends, &split}) part->clear();
  const auto rows = static_cast<int32_t>(order.size());
  for (const bool several : {true, false}) {
    for (int32_t begin = 0, end = 0; begin < rows; begin = end) {
      const int32_t token = of_rows[order[begin]];
      while (end < rows && of_rows[order[end]] == token) ++end;
      if ((end - begin > kMost) != several) continue;
      if (several) split.push_back(static_cast<int32_t>(count()));
      for (int32_t first = begin; first < end; first += kMost) {
        tokens.push_back(token);
        begins.push_back(first);
        ends.push_back(std::min(first + kMost, end));
      }
    }
    if (several) split.push_back(static_cast<int32_t>(count()));
  }
}

GpuBatch::GpuBatch(int64_t rows, Arena* arena, ComputeBackend* backend)
    : arena_(arena),
      device_(&backend->device()),
      most_rows_(rows),
      stride_(LinesOf(rows + 1)),
      place_(arena->Add("batch", kParts * stride_ * static_cast<int64_t>(sizeof(int32_t)))),
      pool_(device_) {}

absl::Status GpuBatch::Copy(const PreparedBatch& prepared) {
  const auto& [batch, shares] = prepared;
  CHECK(std::ssize(batch.tokens) <= most_rows_ && batch.targets.size() == batch.tokens.size());
  Staged& staged = staged_[copies_++ % 2];
  if (staged.memory.data() == nullptr) {
    ASSIGN_OR_RETURN(staged.memory, pool_.Take(static_cast<size_t>(kParts * stride_) * sizeof(int32_t)));
    staged.copied = device_->MakeEvent();
  }
  device_->AwaitOnHost(staged.copied);
  const std::vector<int32_t>* const parts[kParts] = {&batch.tokens,  &batch.targets, &shares.order, &shares.tokens,
                                                     &shares.begins, &shares.ends,   &shares.split};
  const std::span<int32_t> values = staged.memory.Values<int32_t>();
  for (int part = 0; part < kParts; ++part) std::ranges::copy(*parts[part], values.begin() + part * stride_);
  device_->CopyToDevice(offload::Queue::kCompute, At(kTokens), values.data(), values.size_bytes());
  device_->Record(staged.copied, offload::Queue::kCompute);
  counts_ = {shares.count(), shares.partial(), shares.split_tokens()};
  return device_->status();
}

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
