// Random inputs of the shapes that gradients have: Gauss, Laplace, and Student's t with 3 degrees of freedom, whose
// fourth moment is infinite. For statistics only: the mathematics library's last bits differ between systems.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "core/random.h"

namespace causeway::codecs {

enum class Shape { kGauss, kLaplace, kStudentT3 };

inline const char* ShapeName(Shape shape) {
  constexpr const char* kNames[] = {"Gauss", "Laplace", "StudentT3"};
  return kNames[static_cast<size_t>(shape)];
}

// Random numbers in a row from one seed.
class Draws {
 public:
  explicit Draws(uint64_t seed) : seed_(core::SplitMix64(seed)) {}

  double Uniform() { return core::UnitInterval(core::SplitMix64(seed_ + 0x9e3779b97f4a7c15 * next_++)) + 0x1p-54; }
  double Exponential() { return -std::log(Uniform()); }
  double Gauss() {
    const double radius = std::sqrt(2 * Exponential());
    return radius * std::cos(2 * M_PI * Uniform());
  }
  double Laplace() { return Uniform() < 0.5 ? Exponential() : -Exponential(); }
  // Gauss over the root of a mean of three squares, of which two together are exponential.
  double StudentT3() {
    const double radius = std::sqrt(2 * Exponential()), angle = 2 * M_PI * Uniform();
    const double third = radius * std::sin(angle);
    return radius * std::cos(angle) / std::sqrt((2 * Exponential() + third * third) / 3);
  }
  double Of(Shape shape) {
    if (shape == Shape::kGauss) return Gauss();
    return shape == Shape::kLaplace ? Laplace() : StudentT3();
  }

 private:
  const uint64_t seed_;
  uint64_t next_ = 0;
};

inline std::vector<float> ValuesOf(Shape shape, size_t count, uint64_t seed) {
  Draws draws(seed);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(draws.Of(shape));
  return values;
}

inline double Norm(std::span<const float> values) {
  double square = 0;
  for (float value : values) square += static_cast<double>(value) * value;
  return std::sqrt(square);
}

// ‖a − b‖ / ‖b‖
inline double RelativeDistance(std::span<const float> a, std::span<const float> b) {
  double error = 0;
  for (size_t i = 0; i < a.size(); ++i)
    error += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
  return std::sqrt(error) / Norm(b);
}

}  // namespace causeway::codecs
