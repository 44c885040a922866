#include "tests/server/merge/radial_by_specification.h"

#include <algorithm>
#include <cmath>

namespace causeway::server {
namespace {

// A block's sum of squares: sixteen lanes take every sixteenth value, then halves are added on halves.
double BlockSquares(std::span<const float> block) {
  std::vector<double> lanes(16, 0.0);
  for (size_t i = 0; i < block.size(); ++i) lanes[i % 16] += static_cast<double>(block[i]) * block[i];
  while (lanes.size() > 1) {
    const size_t half = lanes.size() / 2;
    for (size_t i = 0; i < half; ++i) lanes[i] += lanes[half + i];
    lanes.resize(half);
  }
  return lanes[0];
}

double NormInBlockOrder(std::span<const float> values) {
  double squares = 0;
  for (size_t at = 0; at < values.size(); at += 256) {
    squares += BlockSquares(values.subspan(at, std::min<size_t>(256, values.size() - at)));
  }
  return std::sqrt(squares);
}

template <typename Number>
double PlainNorm(std::span<const Number> values) {
  long double squares = 0;
  for (Number value : values) squares += static_cast<long double>(value) * value;
  return std::sqrt(static_cast<double>(squares));
}

}  // namespace

double Norm(std::span<const float> values) { return PlainNorm(values); }
double Norm(std::span<const double> values) { return PlainNorm(values); }

std::vector<float> RadialBySpecification(const std::vector<std::vector<float>>& d, std::span<const float> lambda) {
  const std::vector<float> average(lambda.begin(), lambda.end());
  std::vector<double> n;
  double weight = 0, length = 0;
  int counted = 0;
  for (size_t m = 0; m < d.size(); ++m) {
    n.push_back(NormInBlockOrder(d[m]));
    if (lambda[m] == 0 || n[m] < 0x1p-100) n[m] = 0;
    if (n[m] == 0) continue;
    ++counted;
    weight += lambda[m];
    length += lambda[m] * n[m];
  }
  if (counted < 2) return average;
  std::vector<float> direction(d[0].size(), 0.0f);
  for (size_t m = 0; m < d.size(); ++m) {
    if (n[m] == 0) continue;
    const auto a = static_cast<float>(lambda[m] / weight / n[m]);
    for (size_t i = 0; i < direction.size(); ++i) direction[i] = std::fma(a, d[m][i], direction[i]);
  }
  const double r = NormInBlockOrder(direction);
  if (r < 0x1p-10 || length / r >= 0x1p100) return average;
  std::vector<float> result;
  for (size_t m = 0; m < d.size(); ++m) {
    const double w = n[m] == 0 ? 0 : length / r * (lambda[m] / weight / n[m]);
    if (w >= 0x1p100) return average;
    result.push_back(static_cast<float>(w));
  }
  return result;
}

std::vector<double> RadialMean(const std::vector<std::vector<float>>& d, std::span<const float> lambda) {
  double length = 0;
  std::vector<double> mean(d[0].size(), 0.0);
  for (size_t m = 0; m < d.size(); ++m) {
    const double norm = Norm(d[m]);
    length += lambda[m] * norm;
    for (size_t i = 0; i < mean.size(); ++i) mean[i] += lambda[m] * d[m][i] / norm;
  }
  const double r = Norm(mean);
  for (double& value : mean) value *= length / r;
  return mean;
}

}  // namespace causeway::server
