#include "tests/worker/device/cuda/device_math_probe.h"
#include "worker/device/kernels/device_math.h"

namespace causeway::worker {
namespace {

__global__ void Probe(const float* x, int count, float* exponentials, float* reciprocals, uint32_t* pairs) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) return;
  exponentials[i] = Exponential(x[i]);
  reciprocals[i] = Reciprocal(x[i]);
  pairs[i] = Bfloat16Pair(x[i], -x[i]);
}

}  // namespace

DeviceMath ProbeDeviceMath(const std::vector<float>& x) {
  const size_t count = x.size(), bytes = count * sizeof(float);
  float* memory = nullptr;
  if (cudaMalloc(&memory, 4 * bytes) != cudaSuccess) return {};
  DeviceMath math{std::vector<float>(count), std::vector<float>(count), std::vector<uint32_t>(count)};
  constexpr int kThreads = 256;
  cudaMemcpy(memory, x.data(), bytes, cudaMemcpyDefault);
  Probe<<<static_cast<unsigned>(count / kThreads + 1), kThreads>>>(memory, static_cast<int>(count), memory + count,
                                                                   memory + 2 * count,
                                                                   reinterpret_cast<uint32_t*>(memory + 3 * count));
  cudaMemcpy(math.exponentials.data(), memory + count, bytes, cudaMemcpyDefault);
  cudaMemcpy(math.reciprocals.data(), memory + 2 * count, bytes, cudaMemcpyDefault);
  cudaMemcpy(math.pairs.data(), memory + 3 * count, bytes, cudaMemcpyDefault);
  cudaFree(memory);
  return math;
}

}  // namespace causeway::worker
