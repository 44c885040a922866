// The AdamW kernel. Each thread takes 4 values at a time where all arrays are aligned for it, which a part of a
// subgroup need not be: values before and after the aligned ones are processed one by one.
//
//   |..|4 4 4 4 4 … 4|.|      head, vectors, tail; all by the same threads, in strides of the grid
//
// Only for .cu files.
#pragma once

#include <cstdint>

#include "core/bfloat16.h"
#include "offload/adamw.h"

namespace causeway::offload {

inline constexpr int64_t kVector = 4;

struct AdamWTask {
  AdamWConstants constants;
  AdamWArrays arrays;
  int64_t head = 0;     // values before the first that is aligned; all of them, if arrays are not aligned alike
  int64_t vectors = 0;  // number of vectors, each of kVector values
};

inline AdamWTask MakeAdamWTask(const AdamWConstants& constants, const AdamWArrays& arrays) {
  const auto aligned = [](const void* pointer, int64_t value_bytes) {
    return reinterpret_cast<uintptr_t>(pointer) % (kVector * value_bytes) == 0;
  };
  for (int64_t head = 0; head < kVector && head < arrays.count; ++head) {
    const AdamWArrays rest = arrays.Part(head, arrays.count - head);
    if (aligned(rest.parameters, sizeof(float)) && aligned(rest.first_moment, sizeof(float)) &&
        aligned(rest.second_moment, sizeof(float)) && aligned(rest.gradient, BytesOf(rest.gradient_type)) &&
        aligned(rest.bfloat16_copy, sizeof(uint16_t))) {
      return {constants, arrays, head, rest.count / kVector};
    }
  }
  return {constants, arrays, arrays.count, 0};
}

template <GradientType kType>
__device__ float LoadGradient(const AdamWArrays& arrays, int64_t i) {
  if constexpr (kType == GradientType::kFloat32) return static_cast<const float*>(arrays.gradient)[i];
  return core::FromBfloat16(static_cast<const uint16_t*>(arrays.gradient)[i]);
}

template <GradientType kType>
__device__ float4 LoadGradients(const AdamWArrays& arrays, int64_t i) {
  if constexpr (kType == GradientType::kFloat32) {
    return *reinterpret_cast<const float4*>(static_cast<const float*>(arrays.gradient) + i);
  }
  const ushort4 g = *reinterpret_cast<const ushort4*>(static_cast<const uint16_t*>(arrays.gradient) + i);
  return make_float4(core::FromBfloat16(g.x), core::FromBfloat16(g.y), core::FromBfloat16(g.z),
                     core::FromBfloat16(g.w));
}

template <GradientType kType>
__device__ void UpdateOne(const AdamWTask& task, int64_t i) {
  const AdamWArrays& a = task.arrays;
  UpdateValue(task.constants, LoadGradient<kType>(a, i), a.first_moment[i], a.second_moment[i], a.parameters[i]);
  if (a.bfloat16_copy != nullptr) a.bfloat16_copy[i] = core::ToBfloat16(a.parameters[i]);
}

template <GradientType kType>
__device__ void UpdateFour(const AdamWTask& task, int64_t i) {
  const AdamWArrays& a = task.arrays;
  const float4 g = LoadGradients<kType>(a, i);
  float4* const ms = reinterpret_cast<float4*>(a.first_moment + i);
  float4* const vs = reinterpret_cast<float4*>(a.second_moment + i);
  float4* const ps = reinterpret_cast<float4*>(a.parameters + i);
  float4 m = *ms, v = *vs, p = *ps;
  UpdateValue(task.constants, g.x, m.x, v.x, p.x);
  UpdateValue(task.constants, g.y, m.y, v.y, p.y);
  UpdateValue(task.constants, g.z, m.z, v.z, p.z);
  UpdateValue(task.constants, g.w, m.w, v.w, p.w);
  *ms = m;
  *vs = v;
  *ps = p;
  if (a.bfloat16_copy == nullptr) return;
  *reinterpret_cast<ushort4*>(a.bfloat16_copy + i) =
      make_ushort4(core::ToBfloat16(p.x), core::ToBfloat16(p.y), core::ToBfloat16(p.z), core::ToBfloat16(p.w));
}

template <GradientType kType>
__global__ void AdamWKernel(const AdamWTask task) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (int64_t i = thread; i < task.vectors; i += stride) UpdateFour<kType>(task, task.head + i * kVector);
  for (int64_t i = thread; i < task.head; i += stride) UpdateOne<kType>(task, i);
  for (int64_t i = task.head + task.vectors * kVector + thread; i < task.arrays.count; i += stride) {
    UpdateOne<kType>(task, i);
  }
}

}  // namespace causeway::offload
