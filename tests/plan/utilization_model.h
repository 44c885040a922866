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
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

}  // namespace causeway::plan
