#include "offload/adamw.h"

#include <algorithm>
#include <cmath>

#include "core/aligned.h"
#include "core/check.h"
#include "core/multiversion.h"
#include "offload/stream_copy.h"

namespace causeway::offload {
namespace {

// Values at a time: what is widened before and narrowed after them stays in the first cache.
constexpr int64_t kTile = 1024;

CAUSEWAY_MULTIVERSION
void UpdateTile(const AdamWConstants& constants, const float* gradients, float* first_moments, float* second_moments,
                float* parameters, int64_t count) {
  const AdamWConstants c = constants;  // a copy, so that the compiler knows that no store below changes it
  for (int64_t i = 0; i < count; ++i) {
    UpdateValue(c, gradients[i], first_moments[i], second_moments[i], parameters[i]);
  }
}

CAUSEWAY_MULTIVERSION
void Widen(const uint16_t* from, float* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = FromBfloat16(from[i]);
}

CAUSEWAY_MULTIVERSION
void Narrow(const float* from, uint16_t* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = ToBfloat16(from[i]);
}

}  // namespace

AdamWConstants MakeConstants(const AdamWParameters& parameters, int64_t t) {
  CHECK(t >= 1);
  const auto power = static_cast<double>(t);
  return {.gradient_scale = parameters.gradient_scale,
          .beta1 = static_cast<float>(parameters.beta1),
          .one_minus_beta1 = static_cast<float>(1 - parameters.beta1),
          .beta2 = static_cast<float>(parameters.beta2),
          .one_minus_beta2 = static_cast<float>(1 - parameters.beta2),
          .root_scale = static_cast<float>(1 / std::sqrt(1 - std::pow(parameters.beta2, power))),
          .epsilon = static_cast<float>(parameters.epsilon),
          .minus_decay = static_cast<float>(-parameters.lr * parameters.weight_decay),
          .minus_lr = static_cast<float>(-parameters.lr / (1 - std::pow(parameters.beta1, power)))};
}

AdamWArrays AdamWArrays::Part(int64_t first, int64_t size) const {
  return {.gradient = static_cast<const char*>(gradient) + first * BytesOf(gradient_type),
          .gradient_type = gradient_type,
          .first_moment = first_moment + first,
          .second_moment = second_moment + first,
          .parameters = parameters + first,
          .bfloat16_copy = bfloat16_copy == nullptr ? nullptr : bfloat16_copy + first,
          .count = size};
}

void AdamWStep(const AdamWConstants& constants, const AdamWArrays& arrays) {
  alignas(core::kCacheLineBytes) float widened[kTile];
  alignas(core::kCacheLineBytes) uint16_t narrowed[kTile];
  for (int64_t first = 0; first < arrays.count; first += kTile) {
    const AdamWArrays tile = arrays.Part(first, std::min(kTile, arrays.count - first));
    const float* gradients = static_cast<const float*>(tile.gradient);
    if (tile.gradient_type == GradientType::kBfloat16) {
      Widen(static_cast<const uint16_t*>(tile.gradient), widened, tile.count);
      gradients = widened;
    }
    UpdateTile(constants, gradients, tile.first_moment, tile.second_moment, tile.parameters, tile.count);
    if (tile.bfloat16_copy == nullptr) continue;
    Narrow(tile.parameters, narrowed, tile.count);
    StreamCopy(narrowed, tile.bfloat16_copy, tile.count);
  }
  FinishStreamCopies();
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
