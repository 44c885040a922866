// Threads of a CPU as the threads of a GPU: what device code needs of CUDA, so that a kernel's own text can be tested
// where there is no GPU. One CTA at a time; shuffles, ballots and __syncthreads wait for each other as on the device.
//
//   RunGrid(ctas, threads, body)     body() in each thread of each CTA, with threadIdx and blockIdx
//
// Include before the device code. Slow (each collective is a barrier of 32 threads): for small inputs.
#pragma once

#include <atomic>
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#define __global__
#define __shared__ static
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(threads)

struct Dim {
  unsigned x = 0;
};
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};

inline thread_local Dim threadIdx, blockIdx;

namespace simt {

inline constexpr int kWarp = 32;

struct Warp {
  std::barrier<> barrier{kWarp};
  uint64_t slots[kWarp];
};
struct Cta {
  explicit Cta(int threads) : barrier(threads), warps(threads / kWarp) {}
  std::barrier<> barrier;
  std::vector<Warp> warps;
};
inline Cta* current = nullptr;

// Everyone's value, by lane of the warp.
template <typename T, typename Read>
auto Collective(T value, Read read) {
  Warp& warp = current->warps[threadIdx.x / kWarp];
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(value));
  warp.slots[threadIdx.x % kWarp] = bits;
  warp.barrier.arrive_and_wait();
  const auto result = read([&](int lane) {
    T of_lane;
    std::memcpy(&of_lane, &warp.slots[lane], sizeof(of_lane));
    return of_lane;
  });
  warp.barrier.arrive_and_wait();  // no lane writes the next value before all have read this one
  return result;
}

inline void RunGrid(int ctas, int threads, const std::function<void()>& body) {
  for (int cta = 0; cta < ctas; ++cta) {
    Cta of_grid(threads);
    current = &of_grid;
    std::vector<std::thread> running;
    for (int thread = 0; thread < threads; ++thread) {
      running.emplace_back([&, thread] {
        threadIdx.x = static_cast<unsigned>(thread);
        blockIdx.x = static_cast<unsigned>(cta);
        body();
      });
    }
    for (std::thread& thread : running) thread.join();
  }
}

}  // namespace simt

inline void __syncthreads() { simt::current->barrier.arrive_and_wait(); }
template <typename T>
T __shfl_sync(unsigned, T value, int lane, int width) {
  const int first = static_cast<int>(threadIdx.x) % simt::kWarp / width * width;
  return simt::Collective(value, [&](auto of_lane) { return of_lane(first + lane % width); });
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask, int) {
  const int lane = (static_cast<int>(threadIdx.x) % simt::kWarp) ^ mask;
  return simt::Collective(value, [&](auto of_lane) { return of_lane(lane); });
}
inline unsigned __ballot_sync(unsigned, bool value) {
  return simt::Collective(value, [&](auto of_lane) {
    unsigned bits = 0;
    for (int lane = 0; lane < simt::kWarp; ++lane) bits |= static_cast<unsigned>(of_lane(lane)) << lane;
    return bits;
  });
}
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
inline void atomicAdd(int* at, int value) { std::atomic_ref<int>(*at).fetch_add(value); }
inline void atomicMin(unsigned long long* at, unsigned long long value) {
  std::atomic_ref<unsigned long long> target(*at);
  unsigned long long seen = target;
  while (value < seen && !target.compare_exchange_weak(seen, value)) {
  }
}
