// server/merge/radial_directional.h written a second time: over whole tensors, value by value.
#pragma once

#include <span>
#include <vector>

namespace causeway::server {

// w_m of one tensor that is no embedding, from λ_m and what each contribution holds of it in its codec's domain.
std::vector<float> RadialBySpecification(const std::vector<std::vector<float>>& d, std::span<const float> lambda);

// The formula without a thought for roundings, in double: (Σ λ‖d_m‖) · φ(Σ λ φ(d_m)). No degenerate cases.
std::vector<double> RadialMean(const std::vector<std::vector<float>>& d, std::span<const float> lambda);

double Norm(std::span<const float> values);
double Norm(std::span<const double> values);

}  // namespace causeway::server
