// Prints Table 4 of the Streaming DiLoCo paper (arXiv 2501.18512) as its simulator, built again here, has it: Gbit/s as
// the paper rounds them, "more" beyond its grid.
//
// The compute-utilization simulator of Streaming DiLoCo (arXiv 2501.18512, section 3.3 and Table 4): how much bandwidth
// a method of data parallelism needs to keep the accelerators computing.
//
//   compute   f f f … f | b w b w … b w |     per layer forward, backward for inputs, backward for weights: equal times
//   network                 [r][r]…[r]        a layer's reduction after its backward for weights, one after the other
//
// Forward of layer l in step t + 1 + τ waits for its reduction of step t. Utilization counts the drain of the network
// at the end. The model has no round trip, no coordinator, no codec time and no return leg; what was measured in the
// field needs 1.08 to 1.92 times its bandwidth (plan/round_time.h has what it leaves out). The paper does not print how
// long it simulates and which backward comes first: 2 H steps and inputs first reproduce most of its table.
// Pure, thread-safe.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_format.h"
#include "core/check.h"
#include "core/schedule.h"

namespace causeway::plan {

enum class ReductionMethod { kDataParallel, kDiloco, kStreaming, kStreamingOverlap, kStreamingOverlapFp4 };

inline constexpr ReductionMethod kAllReductionMethods[] = {
    ReductionMethod::kDataParallel, ReductionMethod::kDiloco, ReductionMethod::kStreaming,
    ReductionMethod::kStreamingOverlap, ReductionMethod::kStreamingOverlapFp4};

const char* ReductionMethodName(ReductionMethod method);  // "streaming-overlap-fp4"
std::optional<ReductionMethod> ReductionMethodFromName(std::string_view name);

struct UtilizationCase {
  double parameters = 0;
  int layers = 0;
  double step_s = 0;
  ReductionMethod method = ReductionMethod::kDataParallel;
  int sync_every = 100;  // H
};

// The number of a method's fragments, ceil(layers / 3) where it streams: H must not be less.
int LeastSyncEvery(const UtilizationCase& that);

// Computing ÷ wall time with that bandwidth.
double ComputeUtilization(const UtilizationCase& that, double bandwidth_gbit_per_s);

// The least of the paper's 50 bandwidths, 0.1 … 1000 Gbit/s in even ratios, that reaches the utilization; none if
// 1000 Gbit/s does not.
std::optional<double> LeastBandwidthGbit(const UtilizationCase& that, double utilization);
const std::vector<double>& BandwidthGrid();

// As the paper prints it: two decimals, of which the second is then rounded away (6.2506 → 6.25 → "6.2").
std::string PaperGbit(double gbit_per_s);

// Table 4: three models by five methods, each at five utilizations.
struct UtilizationModelSize {
  const char* name;
  double parameters;
  int layers;
  double step_s;
};
inline constexpr UtilizationModelSize kTable4Models[] = {
    {"1B", 1e9, 24, 0.1}, {"10B", 1e10, 48, 0.8}, {"100B", 1e11, 108, 4.9}};
inline constexpr double kTable4Utilizations[] = {0.50, 0.80, 0.90, 0.95, 0.99};

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

int main() {
  using namespace causeway::plan;
  std::printf("Gbit/s to reach a compute utilization (H = 100, 3 layers a fragment, overlap of 1 step).\n\n");
  std::printf("%-6s%8s%8s  %-24s", "model", "layers", "step s", "method");
  for (const double utilization : kTable4Utilizations) std::printf("%7.0f%%", 100 * utilization);
  for (const UtilizationModelSize& model : kTable4Models) {
    for (const ReductionMethod method : kAllReductionMethods) {
      std::printf("\n%-6s%8d%8.1f  %-24s", model.name, model.layers, model.step_s, ReductionMethodName(method));
      for (const double utilization : kTable4Utilizations) {
        const auto gbit = LeastBandwidthGbit({model.parameters, model.layers, model.step_s, method}, utilization);
        std::printf("%8s", gbit ? PaperGbit(*gbit).c_str() : "more");
      }
    }
  }
  std::printf("\n");
}
