// The inner optimizers' arithmetic on host memory, in an order that every other implementation must match bit for bit.
//
//   gradient g (float32 or bfloat16) ──┐
//   moments m, v                       ┼─► AdamWStep ─► m, v, p in place, and p in bfloat16 for the device
//   parameters p                       ┘                    in one pass over memory: 28 bytes a parameter, 30 with it
//
// AdamW (arXiv 1711.05101, with bias correction), t counted from 1, every line one rounding where it says fma:
//
//   m ← fma(g, 1−β1, m·β1)             d = fma(√v, 1/√(1−β2^t), ε)      p ← fma(p, −lr·wd, p)
//   v ← fma(g², 1−β2, v·β2)            u = m / d                        p ← fma(u, −lr/(1−β1^t), p)
//
// 1-bit Adam (arXiv 2102.02888, algorithm 1) ends v's line at a step T: from then on MomentumStep makes m of each
// rank's own gradient, the ranks average it, and AdamWStep without a gradient moves p by it, with β2^T in d. Values
// whose v is 0 at T, which no gradient had reached, keep m = 0.
//
// g, g², m and v below 2⁻¹⁰⁰ in magnitude become 0 by an explicit compare, before and after they are computed with:
// denormal operands and results make CPUs 12 to 15 times slower, and a processor mode would not give the same bits
// elsewhere. Moments start at zero, which the caller provides. Values are not checked: a NaN in g spreads. Thread-safe
// on disjoint arrays. Source: Deep Optimizer States (arXiv 2410.21316).
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/anywhere.h"

namespace causeway::offload {

// Parts of flat parameters with one rule each, in order and without gaps: weight decay applies only to matrices.
struct DecaySegment {
  int64_t count = 0;
  bool decays = true;
};

class DecaySegments {
 public:
  explicit DecaySegments(std::vector<DecaySegment> segments) : segments_(std::move(segments)) {
    for (const DecaySegment& segment : segments_) ends_.push_back(count() + segment.count);
  }

  int64_t count() const { return ends_.empty() ? 0 : ends_.back(); }

  // Calls apply(decays, first, count) for each stretch of [first, first + count) with one rule.
  template <typename Apply>
  void ForEach(int64_t first, int64_t count, const Apply& apply) const {
    auto segment = std::ranges::upper_bound(ends_, first) - ends_.begin();
    for (const int64_t end = first + count; first < end; ++segment) {
      const int64_t size = std::min(end, ends_[segment]) - first;
      if (size > 0) apply(segments_[segment].decays, first, size);
      first += size;
    }
  }

 private:
  const std::vector<DecaySegment> segments_;
  std::vector<int64_t> ends_;
};

// Rounding of float32 to bfloat16 by random bits that are a function of seed and index, so that it repeats itself.

// 32 random bits, a function of seed and index alone (the finalizer of MurmurHash3).
inline uint32_t RoundingBits(uint32_t seed, uint32_t index) {
  uint32_t bits = index * 0x9E3779B1u + seed;
  bits = (bits ^ (bits >> 16)) * 0x85EBCA6Bu;
  bits = (bits ^ (bits >> 13)) * 0xC2B2AE35u;
  return bits ^ (bits >> 16);
}

// Rounds x to bfloat16, up with a probability that grows with its nearness: `bits` has 16 random bits. A NaN stays one.
inline uint16_t RoundStochastically(float x, uint32_t bits) {
  const auto exact = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((x == x ? exact + bits : exact | 0x00400000u) >> 16);
}

// One value's share of an AdamW step: the same source text for CPUs and GPUs, so that they give the same bits
// (offload/adamw.h has the formula). Compiled with -ffp-contract=off and --fmad=false: every fused multiply-add is
// written.

inline constexpr float kSmallestState = 0x1p-100f;
inline constexpr float kSmallestRoot = 0x1p-50f;  // its square is the smallest g²

// The constants of a step, each rounded to float once (MakeConstants in offload/adamw.h).
struct AdamWConstants {
  float gradient_scale;  // clipping: 1 where there is none
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float root_scale;  // 1/√(1−β2^t)
  float epsilon;
  float minus_decay;  // −lr·wd
  float minus_lr;     // −lr/(1−β1^t)
};

CAUSEWAY_ANYWHERE float FlushSmall(float x) { return std::fabs(x) < kSmallestState ? 0.0f : x; }

// g, as the moments take it: scaled, and 0 where it is tiny.
CAUSEWAY_ANYWHERE float ScaledGradient(const AdamWConstants& c, float gradient) {
  return FlushSmall(gradient) * c.gradient_scale;
}

CAUSEWAY_ANYWHERE float NextFirstMoment(const AdamWConstants& c, float g, float first_moment) {
  return FlushSmall(std::fma(g, c.one_minus_beta1, FlushSmall(first_moment) * c.beta1));
}

CAUSEWAY_ANYWHERE float NextParameter(const AdamWConstants& c, float m, float v, float parameter) {
  const float u = m / std::fma(std::sqrt(v), c.root_scale, c.epsilon);
  const float decayed = std::fma(parameter, c.minus_decay, parameter);
  return std::fma(u, c.minus_lr, decayed);
}

CAUSEWAY_ANYWHERE void UpdateValue(const AdamWConstants& c, float gradient, float& first_moment, float& second_moment,
                                   float& parameter) {
  const float g = ScaledGradient(c, gradient);
  // Compared before it is squared: a product that is denormal costs as much as a denormal operand.
  const float large = std::fabs(g) < kSmallestRoot ? 0.0f : g;
  const float g2 = large * large;
  first_moment = NextFirstMoment(c, g, first_moment);
  second_moment = FlushSmall(std::fma(g2, c.one_minus_beta2, FlushSmall(second_moment) * c.beta2));
  parameter = NextParameter(c, first_moment, second_moment, parameter);
}

struct AdamWParameters {
  double lr = 3e-3;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double epsilon = 1e-8;
  double weight_decay = 0;
  float gradient_scale = 1;
  int64_t frozen_at = 0;  // 1-bit Adam: T, the last step that changed v; 0: every step does
};

// The constants of step t, from the parameters: computed in double, rounded to float once.
AdamWConstants MakeConstants(const AdamWParameters& parameters, int64_t t);

enum class GradientType { kFloat32, kBfloat16 };
constexpr int64_t BytesOf(GradientType type) { return type == GradientType::kFloat32 ? 4 : 2; }

// `count` values of each array; on a device, pointers are to its memory.
struct AdamWArrays {
  const void* gradient = nullptr;  // null: m and v have their new values already, and p alone changes
  GradientType gradient_type = GradientType::kFloat32;
  float* first_moment = nullptr;
  float* second_moment = nullptr;
  float* parameters = nullptr;
  uint16_t* bfloat16_copy = nullptr;  // p as the model computes with it; null: there is no copy
  bool follows_copy = false;          // if the copy is not p rounded, other code wrote it: p takes its value first
  int64_t count = 0;

  AdamWArrays Part(int64_t first, int64_t size) const;
};

// Returns true if p has taken values of the copy.
bool AdamWStep(const AdamWConstants& constants, const AdamWArrays& arrays);

// How the step goes through memory: which way is fastest depends on the processor (offload/calibration.h). No bit
// depends on it.
struct AdamWWalk {
  bool fetches_ahead = true;  // prefetch instructions, beside what the processor fetches by itself
  bool streams_copy = true;   // the copy is written past the caches

  friend bool operator==(const AdamWWalk&, const AdamWWalk&) = default;
};
AdamWWalk CurrentWalk();
void SetWalk(AdamWWalk walk);  // for all threads' next steps

// Moments in bfloat16, 20 bytes a parameter instead of 28: each is widened, updated, and rounded stochastically, since
// a v near its fixed point would stop moving if it were rounded to nearest. The random bits are a function of seed and
// index alone, so that neither threads nor the cut of the work change one. Each step has a new seed.
struct NarrowMoments {
  uint16_t* first = nullptr;
  uint16_t* second = nullptr;
  uint32_t seed = 0;
  int64_t index = 0;  // index of the first value here
};
// AdamWStep with these moments. REQUIRES: `arrays` has a gradient, and no moments.
bool AdamWStep(const AdamWConstants& constants, const AdamWArrays& arrays, const NarrowMoments& moments);

// m ← fma(g, 1−β1, m·β1), and 0 where v is 0. All spans have one size.
void MomentumStep(const AdamWConstants& constants, std::span<const float> gradient,
                  std::span<const float> second_moment, std::span<float> first_moment);

// Plain SGD: g is scaled, then p ← fma(p, −lr·wd, p) unless wd is 0, then p ← fma(g, −lr, p). No state.
struct SgdParameters {
  double lr = 0;
  double weight_decay = 0;
  float gradient_scale = 1;
};
void SgdStep(const SgdParameters& sgd, std::span<const float> gradient, std::span<float> parameters);

}  // namespace causeway::offload
