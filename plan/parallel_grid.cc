#include "plan/parallel_grid.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/check.h"

namespace causeway::plan {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

// A device of a pipeline: its stages together.
struct DeviceLoad {
  int layers = 0;
  double compute_s = 0;  // of a micro-batch, on one rank
  double parameters = 0;
};

std::vector<DeviceLoad> LoadsOf(const PipelineCosts& costs, const std::vector<StageLayers>& split, int devices) {
  std::vector<DeviceLoad> loads(static_cast<size_t>(devices));
  for (size_t s = 0; s < split.size(); ++s) {
    DeviceLoad& load = loads[s % loads.size()];
    const StageTimes times = TimesOfStage(costs, split[s]);
    load.layers += split[s].last - split[s].first + 1;
    load.compute_s += 1e-9 * static_cast<double>(times.forward + times.input + times.weight);
    load.parameters += ParametersOfStage(costs, split[s]);
  }
  return loads;
}

// Micro-batches that device d of interleaved 1F1B keeps at most, in whole devices.
double PeakOf(int device, int pipeline, int chunks, int micro_batches) {
  if (chunks == 1) return std::min(micro_batches, pipeline - device);
  const int most = 2 * (pipeline - device - 1) + (chunks - 1) * pipeline + 1;
  return static_cast<double>(std::min(chunks * micro_batches, most)) / chunks;
}

class Grid {
 public:
  explicit Grid(const GridInput& input) : input_(input) {}

  absl::StatusOr<std::vector<GridRow>> Plan();

 private:
  absl::Status Check() const;
  const core::LinkLevel& Level(int stride, int size) const;
  void OfferCuts(const PipelineCosts& costs, int tensor, int pipeline);
  GridRow RowOf(const PipelineCosts& costs, const std::vector<DeviceLoad>& loads, int tensor, int chunks) const;

  const GridInput& input_;
  std::vector<GridRow> rows_;
  double least_bytes_ = kInfinite;
};

absl::Status Grid::Check() const {
  if (input_.ranks < 1 || input_.ranks > input_.levels.ranks()) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected 1 to ", input_.levels.ranks(), " ranks, as the levels hold, got ", input_.ranks));
  }
  if (input_.batch < 1)
    return absl::InvalidArgumentError(absl::StrCat("expected a batch from 1 on, got ", input_.batch));
  for (const PipelineCosts& costs : input_.costs) {
    const auto missing = [](const char* key) {
      return absl::InvalidArgumentError(absl::StrCat("expected costs with ", key, ", got costs without"));
    };
    if (costs.sequences == 0) return missing("sequences");
    if (costs.heads == 0) return missing("heads");
    if (costs.layer_parameters == 0) return missing("layer_parameters");
  }
  return absl::OkStatus();
}

const core::LinkLevel& Grid::Level(int stride, int size) const {
  static const core::LinkLevel kNone{.bytes_per_s = kInfinite};
  const int level = SpannedLevel(input_.levels, input_.ranks, stride, size);
  return level < 0 ? kNone : input_.levels.site[static_cast<size_t>(level)];
}

GridRow Grid::RowOf(const PipelineCosts& costs, const std::vector<DeviceLoad>& loads, int tensor, int chunks) const {
  GridRow row{
      .tensor = tensor, .pipeline = static_cast<int>(loads.size()), .chunks = chunks, .sequences = costs.sequences};
  row.data = input_.ranks / (tensor * row.pipeline);
  row.micro_batches = input_.batch / (row.data * row.sequences);
  const double m = row.micro_batches, t = tensor, d = row.data, waits = row.pipeline - 1;
  const core::LinkLevel& tensor_link = Level(1, tensor);
  const core::LinkLevel& data_link = Level(tensor, row.data);
  const core::LinkLevel& pipeline_link = Level(tensor * row.data, row.pipeline);

  // Per layer: four all-reduces, each in 2·(t−1) steps.
  const double layer_bytes = 8 * costs.message_bytes * (t - 1) / t;
  const double layer_reduce_s = layer_bytes / tensor_link.bytes_per_s + 4 * 2 * (t - 1) * tensor_link.latency_s;
  double work_s = -1;  // of a micro-batch, on the slowest device
  double parameters = 0;
  for (size_t i = 0; i < loads.size(); ++i) {
    const DeviceLoad& load = loads[i];
    const double compute_s = load.compute_s / t, reduce_s = load.layers * layer_reduce_s;
    if (compute_s + reduce_s > work_s) {
      work_s = compute_s + reduce_s;
      row.compute_s = m * compute_s;
      row.tensor_s = m * reduce_s;
      row.tensor_bytes = m * load.layers * layer_bytes;
    }
    parameters = std::max(parameters, load.parameters);
    row.memory_bytes = std::max(
        row.memory_bytes,
        (costs.parameter_bytes * load.parameters +
         costs.layer_bytes * load.layers * PeakOf(static_cast<int>(i), row.pipeline, chunks, row.micro_batches)) /
            t);
  }
  if (row.pipeline > 1) {
    const double message_bytes = costs.message_bytes / t, message_s = message_bytes / pipeline_link.bytes_per_s;
    const double beyond_work_s = std::max(0.0, 2 * chunks * message_s - work_s);
    row.message_bytes = m * 2 * chunks * message_bytes;
    row.message_s = m * beyond_work_s + 2 * waits * (message_s + pipeline_link.latency_s);
    row.bubble_s = waits / chunks * (work_s + beyond_work_s);
  }
  row.gradient_bytes = 2 * (d - 1) / d * costs.gradient_bytes * parameters / t;
  row.gradient_s = row.gradient_bytes / data_link.bytes_per_s + 2 * (d - 1) * data_link.latency_s;
  return row;
}

void Grid::OfferCuts(const PipelineCosts& costs, int tensor, int pipeline) {
  const int data = input_.ranks / (tensor * pipeline);
  if (costs.heads % tensor != 0 || input_.batch % (data * int64_t{costs.sequences}) != 0) return;
  const int micro_batches = input_.batch / (data * costs.sequences);
  for (int chunks = 1; chunks <= (pipeline > 1 ? kMostGridChunks : 1); ++chunks) {
    if (chunks > 1 && micro_batches % pipeline != 0) continue;
    const auto split = SplitLayers(costs, pipeline * chunks);
    if (!split.ok()) continue;
    const GridRow row = RowOf(costs, LoadsOf(costs, *split, pipeline), tensor, chunks);
    least_bytes_ = std::min(least_bytes_, row.memory_bytes);
    if (input_.memory_bytes == 0 || row.memory_bytes <= input_.memory_bytes) rows_.push_back(row);
  }
}

absl::StatusOr<std::vector<GridRow>> Grid::Plan() {
  RETURN_IF_ERROR(Check());
  for (const PipelineCosts& costs : input_.costs) {
    for (int tensor = 1; tensor <= input_.ranks; ++tensor) {
      if (input_.ranks % tensor != 0) continue;
      for (int pipeline = 1; pipeline <= input_.ranks / tensor; ++pipeline) {
        if (input_.ranks / tensor % pipeline == 0) OfferCuts(costs, tensor, pipeline);
      }
    }
  }
  if (rows_.empty() && least_bytes_ == kInfinite) {
    return absl::InvalidArgumentError(absl::StrCat("expected ranks that divide heads, layers and a batch of ",
                                                   input_.batch, " sequences, got ", input_.ranks,
                                                   " ranks, none of whose cuts does"));
  }
  if (rows_.empty()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("expected memory of a rank for parameters and layers, of which the smallest cut needs %.3g GB, "
                        "got %.3g GB",
                        least_bytes_ / 1e9, input_.memory_bytes / 1e9));
  }
  std::ranges::stable_sort(rows_, [](const GridRow& a, const GridRow& b) { return a.step_s() < b.step_s(); });
  return rows_;
}

}  // namespace

int SpannedLevel(const core::LinkLevels& levels, int ranks, int stride, int size) {
  if (size == 1) return -1;
  int64_t held = 1;
  for (size_t i = 0; i < levels.site.size(); ++i) {
    held *= levels.site[i].of;
    bool within = true;
    const int block = stride * size;
    for (int first = 0; within && first + block <= ranks; first += block) {
      for (int o = 0; within && o < stride; ++o) {
        const int64_t a = first + o, b = a + int64_t{stride} * (size - 1);
        within = a / held == b / held;
      }
    }
    if (within) return static_cast<int>(i);
  }
  return static_cast<int>(levels.site.size()) - 1;
}

absl::StatusOr<std::vector<GridRow>> PlanGrid(const GridInput& input) { return Grid(input).Plan(); }

}  // namespace causeway::plan
