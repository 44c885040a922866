// The arithmetic that coordinator and sites share: from the same W, v and g, each gets the same bits.
//
//   outer optimizer (PyTorch's Nesterov, dampening 0)   v ← fma(μ, v, g);  s = γ · fma(μ, v, g);  W ← fma(−η, s, W)
//   mix an update into live parameters                  θ ← fma(α, θ, (1−α)·W);  α = 0 copies W, α = 1 leaves θ
//     where θ is bfloat16                               θ if it is round(W), else the mix, stochastically rounded
//   move live parameters with the anchor (rebase)       θ ← fma(−η, s, θ)
//
// All float32, every rounding named here; `-ffp-contract=off` holds for the whole project. Spans have equal sizes.
// Thread-safe on disjoint spans. Source: docs/architecture.md (arXiv 2311.08105, 2501.18512, 2604.21428).
#pragma once

#include <cmath>
#include <span>

#include "core/anywhere.h"

namespace causeway::core {

// One value of core::OuterStep, core::MixAnchor and core::Rebase, for loops that do other work at the same time, and
// for GPUs: the arithmetic is defined in one place. Pure.
inline float DirectionValue(float mu, float gain, float g, float v) { return gain * std::fma(mu, v, g); }

inline void StepValue(float mu, float minus_eta, float gain, float g, float& v, float& w) {
  v = std::fma(mu, v, g);
  const float s = DirectionValue(mu, gain, g, v);
  w = std::fma(minus_eta, s, w);
}

// θ ← fma(α, θ, (1 − α) W), where `anchor_weight` is 1 − α.
CAUSEWAY_ANYWHERE float MixedValue(float alpha, float anchor_weight, float anchor, float local) {
  const float share = anchor_weight * anchor;
  return std::fma(alpha, local, share);
}

// θ ← fma(−η, s, θ).
CAUSEWAY_ANYWHERE float RebasedValue(float minus_eta, float step, float local) {
  return std::fma(minus_eta, step, local);
}

struct OuterParameters {
  float lr = 0.7f;        // η
  float momentum = 0.9f;  // μ; 0 makes it plain SGD
  float gain = 1;         // γ of the round's codecs (core/codec_id.h); 1 changes no bit

  friend bool operator==(const OuterParameters&, const OuterParameters&) = default;
};

// Takes the outer step on `anchor` (W) and `momentum` (v) with the decoded mean outer gradient g.
void OuterStep(const OuterParameters& outer, std::span<const float> gradient, std::span<float> momentum,
               std::span<float> anchor);

// After OuterStep: replaces g by the step s that the anchor took, computed from the v of that step.
void OuterDirection(const OuterParameters& outer, std::span<const float> momentum, std::span<float> gradient);

// Moves `local` (θ) by the step that the anchor took, with the learning rate `lr`.
void Rebase(float lr, std::span<const float> step, std::span<float> local);

// Mixes the anchor into `local` (θ) with the weight `alpha` of the local value.
void MixAnchor(float alpha, std::span<const float> anchor, std::span<float> local);

// The same where θ is bfloat16: rounds `mixed`, which MixAnchor made from `anchor` and `local`. With rounding to
// nearest, θ would not follow moves of W below half the distance to its next number. A θ equal to W rounded to nearest
// stays, so that without training the outer gradient, which counts from there, stays zero.
void RoundMix(std::span<const float> anchor, std::span<const float> local, std::span<float> mixed);

// Δ = W − θ: positive is the direction to subtract (invariant 2).
void OuterGradient(std::span<const float> anchor, std::span<const float> local, std::span<float> gradient);

// The version of the arithmetic of merges: in a journal with each decided round, and a replay with another is refused,
// since the sites hold other bits. Raised with every change that can give other bits for the same contributions: the
// order or rounding of the merge, of the outer step or of a codec's decoding.
inline constexpr int kNumericsVersion = 1;

}  // namespace causeway::core
