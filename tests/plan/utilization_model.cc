#include "tests/plan/utilization_model.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_format.h"
#include "core/check.h"
#include "core/schedule.h"

namespace causeway::plan {
namespace {

constexpr int kLayersPerFragment = 3;
constexpr int kIntervals = 2;  // of H steps: what is simulated
constexpr int kGridPoints = 50;
// The share of a layer's bits that its reduction moves. The paper does not give it; the table requires it.
constexpr double kReducedShare = 0.84;

bool Overlaps(ReductionMethod method) {
  return method == ReductionMethod::kStreamingOverlap || method == ReductionMethod::kStreamingOverlapFp4;
}

bool Streams(ReductionMethod method) {
  return method != ReductionMethod::kDataParallel && method != ReductionMethod::kDiloco;
}

constexpr struct {
  ReductionMethod method;
  const char* name;
} kNames[] = {{ReductionMethod::kDataParallel, "data-parallel"},
              {ReductionMethod::kDiloco, "diloco"},
              {ReductionMethod::kStreaming, "streaming"},
              {ReductionMethod::kStreamingOverlap, "streaming-overlap"},
              {ReductionMethod::kStreamingOverlapFp4, "streaming-overlap-fp4"}};

}  // namespace

const char* ReductionMethodName(ReductionMethod method) {
  for (const auto& entry : kNames) {
    if (entry.method == method) return entry.name;
  }
  CHECK(false);
}

std::optional<ReductionMethod> ReductionMethodFromName(std::string_view name) {
  for (const auto& entry : kNames) {
    if (entry.name == name) return entry.method;
  }
  return std::nullopt;
}

int LeastSyncEvery(const UtilizationCase& that) {
  return Streams(that.method) ? (that.layers + kLayersPerFragment - 1) / kLayersPerFragment : 1;
}

double ComputeUtilization(const UtilizationCase& that, double bandwidth_gbit_per_s) {
  CHECK(that.layers >= 1 && that.step_s > 0 && bandwidth_gbit_per_s > 0);
  const int fragments = LeastSyncEvery(that);  // layer i is in fragment i mod fragments
  const int interval = that.method == ReductionMethod::kDataParallel ? 1 : that.sync_every;
  const core::FragmentSchedule schedule(interval, fragments, 0);
  const double part_s = that.step_s / (3.0 * that.layers);
  const double bits = that.method == ReductionMethod::kStreamingOverlapFp4 ? 4 : 16;
  const double reduction_s = bits * that.parameters / that.layers * kReducedShare / (bandwidth_gbit_per_s * 1e9);
  const int delay = Overlaps(that.method) ? 1 : 0;
  const int64_t steps = int64_t{kIntervals} * that.sync_every;

  double compute_s = 0, network_s = 0;  // when each is free
  // When the reduction of an even and of an odd step ends, of each layer: τ is at most 1, so no more are waited for.
  std::array<std::vector<double>, 2> reduced_s;
  reduced_s.fill(std::vector<double>(that.layers, 0));
  for (int64_t t = 1; t <= steps; ++t) {
    const std::vector<double>& due_s = reduced_s[(t + 1 + delay) % 2];
    for (int layer = 0; layer < that.layers; ++layer) compute_s = std::max(compute_s, due_s[layer]) + part_s;
    for (int layer = that.layers; layer-- > 0;) {
      compute_s += 2 * part_s;
      if ((t - schedule.Offset(layer % fragments)) % interval != 0) continue;
      network_s = std::max(network_s, compute_s) + reduction_s;
      reduced_s[t % 2][layer] = network_s;
    }
  }
  return that.step_s * static_cast<double>(steps) / std::max(compute_s, network_s);
}

const std::vector<double>& BandwidthGrid() {
  static const auto* const grid = [] {
    auto* points = new std::vector<double>;
    for (int i = 0; i < kGridPoints; ++i) points->push_back(std::pow(10, -1 + 4.0 * i / (kGridPoints - 1)));
    return points;
  }();
  return *grid;
}

std::optional<double> LeastBandwidthGbit(const UtilizationCase& that, double utilization) {
  const auto least = std::ranges::partition_point(
      BandwidthGrid(), [&](double gbit) { return ComputeUtilization(that, gbit) < utilization; });
  if (least == BandwidthGrid().end()) return std::nullopt;
  return *least;
}

std::string PaperGbit(double gbit_per_s) { return absl::StrFormat("%.1f", std::round(gbit_per_s * 100) / 100); }

}  // namespace causeway::plan
