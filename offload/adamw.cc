#include "offload/adamw.h"

#include <atomic>
#include <cstring>
#include <type_traits>

#include "core/aligned.h"
#include "core/bfloat16.h"
#include "core/check.h"
#include "core/multiversion.h"
#include "offload/round_copy.h"

namespace causeway::offload {
namespace {

// Values at a time: four vectors of each stream at most, all loops over them unrolled.
constexpr int64_t kBlock = 64;
// Values from what is computed to what is fetched, further than memory is away. The processor's own prefetching ends
// with each page, and begins anew for each of the four streams.
constexpr int64_t kAhead = 256;

constexpr uint8_t kFetchesAhead = 1, kStreamsCopy = 2;
std::atomic<uint8_t> current_walk = kFetchesAhead | kStreamsCopy;

template <int64_t kValueBytes>
[[gnu::always_inline]] inline void PrefetchBlock(const void* values, int64_t first) {
  const char* from = static_cast<const char*>(values) + first * kValueBytes;  // beyond the end it is no fault
  for (int64_t at = 0; at < kBlock * kValueBytes; at += core::kCacheLineBytes) __builtin_prefetch(from + at);
}

template <typename Gradient>
float ToFloat(Gradient g) {
  if constexpr (std::is_same_v<Gradient, float>) return g;
  return core::FromBfloat16(g);
}

// Where the copy is not the parameter rounded, the parameter takes its value. True: one has.
[[gnu::always_inline]] inline bool FollowCopy(const uint16_t* __restrict copy, float* __restrict parameters,
                                              int64_t count) {
  uint32_t differ = 0;
  for (int64_t i = 0; i < count; ++i) {  // as ToBfloat16, but for NaN, which the slow way looks at again
    const auto bits = __builtin_bit_cast(uint32_t, parameters[i]);
    differ |= ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16) ^ copy[i];
  }
  if (differ == 0) [[likely]]
    return false;
  bool followed = false;
  for (int64_t i = 0; i < count; ++i) {
    if (core::ToBfloat16(parameters[i]) == copy[i]) continue;
    parameters[i] = core::FromBfloat16(copy[i]);
    followed = true;
  }
  return followed;
}

// `count` values from `first` on: one block, or what is left of one. __restrict, or else the compiler asks for each
// block whether arrays overlap.
template <typename Gradient>
[[gnu::always_inline]] inline void UpdateBlock(const AdamWConstants& c, const Gradient* __restrict gradients,
                                               float* __restrict first_moments, float* __restrict second_moments,
                                               float* __restrict parameters, uint16_t* __restrict copy, int64_t first,
                                               int64_t count, bool streams) {
  for (int64_t i = first; i < first + count; ++i) {
    UpdateValue(c, ToFloat(gradients[i]), first_moments[i], second_moments[i], parameters[i]);
  }
  if (copy == nullptr) return;
  alignas(core::kCacheLineBytes) uint16_t narrowed[kBlock];
  for (int64_t i = 0; i < count; ++i) narrowed[i] = core::ToBfloat16(parameters[first + i]);
  if (streams) return StreamCopy(narrowed, copy + first, count);
  std::memcpy(copy + first, narrowed, static_cast<size_t>(count) * sizeof(uint16_t));
}

template <typename Gradient>
[[gnu::always_inline]] inline bool UpdateBlocks(const AdamWConstants& constants, const Gradient* __restrict gradients,
                                                float* __restrict first_moments, float* __restrict second_moments,
                                                float* __restrict parameters, uint16_t* __restrict copy, bool follows,
                                                int64_t count) {
  const AdamWConstants c = constants;  // a copy, so that the compiler knows that no store below changes it
  const AdamWWalk walk = CurrentWalk();
  bool followed = false;
  int64_t first = 0;
  for (; first + kBlock <= count; first += kBlock) {
    if (walk.fetches_ahead) {
      PrefetchBlock<sizeof(Gradient)>(gradients, first + kAhead);
      PrefetchBlock<sizeof(float)>(first_moments, first + kAhead);
      PrefetchBlock<sizeof(float)>(second_moments, first + kAhead);
      PrefetchBlock<sizeof(float)>(parameters, first + kAhead);
      if (follows) PrefetchBlock<sizeof(uint16_t)>(copy, first + kAhead);
    }
    if (follows) followed |= FollowCopy(copy + first, parameters + first, kBlock);
    UpdateBlock(c, gradients, first_moments, second_moments, parameters, copy, first, kBlock, walk.streams_copy);
  }
  if (follows) followed |= FollowCopy(copy + first, parameters + first, count - first);
  UpdateBlock(c, gradients, first_moments, second_moments, parameters, copy, first, count - first, walk.streams_copy);
  return followed;
}

CAUSEWAY_MULTIVERSION
bool UpdateFloat32(const AdamWConstants& c, const float* __restrict gradients, float* __restrict first_moments,
                   float* __restrict second_moments, float* __restrict parameters, uint16_t* __restrict copy,
                   bool follows, int64_t count) {
  return UpdateBlocks(c, gradients, first_moments, second_moments, parameters, copy, follows, count);
}

CAUSEWAY_MULTIVERSION
bool UpdateBfloat16(const AdamWConstants& c, const uint16_t* __restrict gradients, float* __restrict first_moments,
                    float* __restrict second_moments, float* __restrict parameters, uint16_t* __restrict copy,
                    bool follows, int64_t count) {
  return UpdateBlocks(c, gradients, first_moments, second_moments, parameters, copy, follows, count);
}

// `size` values, in loops of one size of value each, which compilers turn into vectors.
template <typename Gradient>
[[gnu::always_inline]] inline void UpdateNarrowBlock(const AdamWConstants& c, const Gradient* __restrict gradients,
                                                     uint16_t* __restrict first_moments,
                                                     uint16_t* __restrict second_moments, float* __restrict parameters,
                                                     uint16_t* __restrict copy, uint32_t seed, uint32_t index,
                                                     int size) {
  alignas(core::kCacheLineBytes) float m[kBlock], v[kBlock];
  alignas(core::kCacheLineBytes) uint32_t bits[kBlock];
  for (int i = 0; i < size; ++i) m[i] = core::FromBfloat16(first_moments[i]);
  for (int i = 0; i < size; ++i) v[i] = core::FromBfloat16(second_moments[i]);
  for (int i = 0; i < size; ++i) UpdateValue(c, ToFloat(gradients[i]), m[i], v[i], parameters[i]);
  for (int i = 0; i < size; ++i) bits[i] = RoundingBits(seed, index + static_cast<uint32_t>(i));
  for (int i = 0; i < size; ++i) first_moments[i] = RoundStochastically(m[i], bits[i] & 0xFFFF);
  for (int i = 0; i < size; ++i) second_moments[i] = RoundStochastically(v[i], bits[i] >> 16);
  for (int i = 0; copy != nullptr && i < size; ++i) copy[i] = core::ToBfloat16(parameters[i]);
}

template <typename Gradient>
[[gnu::always_inline]] inline bool UpdateNarrow(const AdamWConstants& constants, const Gradient* __restrict gradients,
                                                uint16_t* __restrict first_moments, uint16_t* __restrict second_moments,
                                                float* __restrict parameters, uint16_t* __restrict copy, bool follows,
                                                uint32_t seed, uint32_t index, int64_t count) {
  const AdamWConstants c = constants;
  bool followed = false;
  const auto block = [&](int64_t first, int size) __attribute__((always_inline)) {
    if (follows) followed |= FollowCopy(copy + first, parameters + first, size);
    UpdateNarrowBlock(c, gradients + first, first_moments + first, second_moments + first, parameters + first,
                      copy == nullptr ? nullptr : copy + first, seed, index + static_cast<uint32_t>(first), size);
  };
  int64_t first = 0;
  for (; first + kBlock <= count; first += kBlock) block(first, static_cast<int>(kBlock));
  block(first, static_cast<int>(count - first));
  return followed;
}

CAUSEWAY_MULTIVERSION
bool UpdateNarrowFloat32(const AdamWConstants& c, const float* __restrict gradients, uint16_t* __restrict first_moments,
                         uint16_t* __restrict second_moments, float* __restrict parameters, uint16_t* __restrict copy,
                         bool follows, uint32_t seed, uint32_t index, int64_t count) {
  return UpdateNarrow(c, gradients, first_moments, second_moments, parameters, copy, follows, seed, index, count);
}

CAUSEWAY_MULTIVERSION
bool UpdateNarrowBfloat16(const AdamWConstants& c, const uint16_t* __restrict gradients,
                          uint16_t* __restrict first_moments, uint16_t* __restrict second_moments,
                          float* __restrict parameters, uint16_t* __restrict copy, bool follows, uint32_t seed,
                          uint32_t index, int64_t count) {
  return UpdateNarrow(c, gradients, first_moments, second_moments, parameters, copy, follows, seed, index, count);
}

CAUSEWAY_MULTIVERSION
void UpdateParameters(const AdamWConstants& constants, const float* __restrict first_moments,
                      const float* __restrict second_moments, float* __restrict parameters, uint16_t* __restrict copy,
                      int64_t count) {
  const AdamWConstants c = constants;
  for (int64_t i = 0; i < count; ++i) {
    parameters[i] = NextParameter(c, first_moments[i], second_moments[i], parameters[i]);
  }
  for (int64_t i = 0; copy != nullptr && i < count; ++i) copy[i] = core::ToBfloat16(parameters[i]);
}

}  // namespace

AdamWWalk CurrentWalk() {
  const uint8_t walk = current_walk.load(std::memory_order_relaxed);
  return {.fetches_ahead = (walk & kFetchesAhead) != 0, .streams_copy = (walk & kStreamsCopy) != 0};
}

void SetWalk(AdamWWalk walk) {
  current_walk.store(
      static_cast<uint8_t>((walk.fetches_ahead ? kFetchesAhead : 0) | (walk.streams_copy ? kStreamsCopy : 0)),
      std::memory_order_relaxed);
}

AdamWConstants MakeConstants(const AdamWParameters& parameters, int64_t t) {
  CHECK(t >= 1);
  const auto power = static_cast<double>(t);
  const auto steps_of_v = parameters.frozen_at > 0 ? static_cast<double>(parameters.frozen_at) : power;
  return {.gradient_scale = parameters.gradient_scale,
          .beta1 = static_cast<float>(parameters.beta1),
          .one_minus_beta1 = static_cast<float>(1 - parameters.beta1),
          .beta2 = static_cast<float>(parameters.beta2),
          .one_minus_beta2 = static_cast<float>(1 - parameters.beta2),
          .root_scale = static_cast<float>(1 / std::sqrt(1 - std::pow(parameters.beta2, steps_of_v))),
          .epsilon = static_cast<float>(parameters.epsilon),
          .minus_decay = static_cast<float>(-parameters.lr * parameters.weight_decay),
          .minus_lr = static_cast<float>(-parameters.lr / (1 - std::pow(parameters.beta1, power)))};
}

AdamWArrays AdamWArrays::Part(int64_t first, int64_t size) const {
  const auto from = [](auto* array, int64_t at) { return array == nullptr ? nullptr : array + at; };
  return {.gradient = from(static_cast<const char*>(gradient), first * BytesOf(gradient_type)),
          .gradient_type = gradient_type,
          .first_moment = from(first_moment, first),
          .second_moment = from(second_moment, first),
          .parameters = from(parameters, first),
          .bfloat16_copy = from(bfloat16_copy, first),
          .follows_copy = follows_copy,
          .count = size};
}

bool AdamWStep(const AdamWConstants& constants, const AdamWArrays& arrays) {
  const AdamWArrays& a = arrays;
  if (a.gradient == nullptr) {
    UpdateParameters(constants, a.first_moment, a.second_moment, a.parameters, a.bfloat16_copy, a.count);
    return false;
  }
  const auto update = [&](const auto* gradients, auto kernel) {
    return kernel(constants, gradients, a.first_moment, a.second_moment, a.parameters, a.bfloat16_copy, a.follows_copy,
                  a.count);
  };
  const bool followed = a.gradient_type == GradientType::kFloat32
                            ? update(static_cast<const float*>(a.gradient), UpdateFloat32)
                            : update(static_cast<const uint16_t*>(a.gradient), UpdateBfloat16);
  if (a.bfloat16_copy != nullptr) FinishStreamCopies();
  return followed;
}

bool AdamWStep(const AdamWConstants& constants, const AdamWArrays& a, const NarrowMoments& moments) {
  CHECK(a.gradient != nullptr);
  // Blocks that the first level of cache keeps, because the copy is a pass of its own.
  constexpr int64_t kValues = 2048;
  bool followed = false;
  for (int64_t first = 0; first < a.count; first += kValues) {
    const int64_t count = std::min(kValues, a.count - first), at = moments.index + first;
    uint16_t* const copy = a.bfloat16_copy == nullptr ? nullptr : a.bfloat16_copy + first;
    const auto index = static_cast<uint32_t>(at);
    const uint32_t seed = moments.seed ^ static_cast<uint32_t>(at >> 32);
    const auto update = [&](auto* gradients, auto kernel) {
      followed |= kernel(constants, gradients + first, moments.first + first, moments.second + first,
                         a.parameters + first, copy, a.follows_copy, seed, index, count);
    };
    if (a.gradient_type == GradientType::kFloat32) {
      update(static_cast<const float*>(a.gradient), UpdateNarrowFloat32);
    } else {
      update(static_cast<const uint16_t*>(a.gradient), UpdateNarrowBfloat16);
    }
  }
  return followed;
}

CAUSEWAY_MULTIVERSION
void MomentumStep(const AdamWConstants& constants, std::span<const float> gradient,
                  std::span<const float> second_moment, std::span<float> first_moment) {
  CHECK(gradient.size() == first_moment.size() && second_moment.size() == first_moment.size());
  const AdamWConstants c = constants;
  const float* __restrict g = gradient.data();
  const float* __restrict v = second_moment.data();
  float* __restrict m = first_moment.data();
  for (size_t i = 0; i < first_moment.size(); ++i) {
    const float next = NextFirstMoment(c, ScaledGradient(c, g[i]), m[i]);
    m[i] = v[i] == 0 ? 0.0f : next;
  }
}

CAUSEWAY_MULTIVERSION
void SgdStep(const SgdParameters& sgd, std::span<const float> gradient, std::span<float> parameters) {
  CHECK(gradient.size() == parameters.size());
  const float minus_lr = static_cast<float>(-sgd.lr);
  const float minus_decay = static_cast<float>(-sgd.lr * sgd.weight_decay);
  const float scale = sgd.gradient_scale;
  float* ps = parameters.data();
  if (sgd.weight_decay != 0) {
    for (size_t i = 0; i < parameters.size(); ++i) ps[i] = std::fma(ps[i], minus_decay, ps[i]);
  }
  for (size_t i = 0; i < parameters.size(); ++i) ps[i] = std::fma(gradient[i] * scale, minus_lr, ps[i]);
}

}  // namespace causeway::offload
