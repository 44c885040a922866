#include "plan/partition.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "codecs/chunk_plan.h"
#include "core/check.h"

namespace causeway::plan {
namespace {

constexpr double kInt8Bytes = 1, kInt4Bytes = 0.5;

double RanksWithin(const core::LinkLevels& levels, int level) {
  double ranks = 1;
  for (int l = 0; l <= level; ++l) ranks *= static_cast<double>(levels.site[static_cast<size_t>(l)].of);
  return ranks;
}

// Adds an all-gather or a reduce-scatter of `bytes` between the groups of level `from` within those of level `to`.
void Add(const core::LinkLevels& levels, double bytes, int from, int to, double LevelBytes::*when,
         PartitionPlan& plan) {
  double within = 1;
  int slowest = -1;
  for (int l = from + 1; l <= to; ++l) {
    const core::LinkLevel& level = levels.site[static_cast<size_t>(l)];
    const auto of = static_cast<double>(level.of);
    plan.hierarchical[static_cast<size_t>(l)].*when += bytes * (of - 1) / (of * within);
    within *= of;
    const bool slower = slowest < 0 || level.bytes_per_s <= levels.site[static_cast<size_t>(slowest)].bytes_per_s;
    if (of > 1 && slower) slowest = l;
  }
  if (slowest >= 0) plan.flat[static_cast<size_t>(slowest)].*when += bytes * (within - 1) / within;
}

absl::Status CheckNested(const core::LinkLevels& levels, const PartitionStrategy& s) {
  const int top = static_cast<int>(levels.site.size()) - 1;
  for (const auto& [state, level] : {std::pair("weights", s.weights), std::pair("gradients", s.gradients),
                                     std::pair("optimizer", s.optimizer), std::pair("secondary", s.secondary)}) {
    if (level >= kWhole && level <= top) continue;
    return absl::InvalidArgumentError(absl::StrCat(state, ": expected a level below ", top + 1, ", got ", level));
  }
  if (s.weights > s.gradients || s.gradients > s.optimizer) {
    if (s.weights > s.gradients && s.gradients == kWhole && s.optimizer == kWhole) {
      return absl::InvalidArgumentError(
          absl::StrCat("weights: expected rank, as gradients and optimizer are, got ", LevelName(levels, s.weights)));
    }
    return absl::InvalidArgumentError(
        absl::StrCat("expected weights within gradients within optimizer, got weights ", LevelName(levels, s.weights),
                     ", gradients ", LevelName(levels, s.gradients), ", optimizer ", LevelName(levels, s.optimizer)));
  }
  if (s.secondary > s.weights) {
    return absl::InvalidArgumentError(absl::StrCat("secondary: expected a level within that of weights, ",
                                                   LevelName(levels, s.weights), ", got ",
                                                   LevelName(levels, s.secondary)));
  }
  return absl::OkStatus();
}

}  // namespace

double PartitionPlan::LinkSeconds(const core::LinkLevels& levels, int micro_batches, bool as_flat) const {
  double seconds = 0;
  for (size_t l = 0; l < levels.site.size(); ++l) {
    const LevelBytes& bytes = Counted(as_flat)[l];
    seconds += (bytes.micro_batch * micro_batches + bytes.step) / levels.site[l].bytes_per_s;
  }
  return seconds;
}

absl::StatusOr<PartitionPlan> PlanPartition(const PartitionInput& input, const PartitionStrategy& strategy) {
  const core::LinkLevels& levels = input.levels;
  RETURN_IF_ERROR(CheckNested(levels, strategy));
  const double weights = input.parameters * input.bytes.weights, gradients = input.parameters * input.bytes.gradients;
  const double sent_forward = strategy.quantized ? input.parameters * kInt8Bytes : weights;
  const double sent_gradients = strategy.quantized ? input.parameters * kInt4Bytes : gradients;
  const int top = static_cast<int>(levels.site.size()) - 1;
  PartitionPlan plan{.strategy = strategy,
                     .weights = weights / RanksWithin(levels, strategy.weights),
                     .gradients = gradients / RanksWithin(levels, strategy.gradients),
                     .optimizer = input.parameters * input.bytes.optimizer / RanksWithin(levels, strategy.optimizer),
                     .secondary = strategy.secondary == kWhole ? 0 : weights / RanksWithin(levels, strategy.secondary),
                     .flat = std::vector<LevelBytes>(levels.site.size()),
                     .hierarchical = std::vector<LevelBytes>(levels.site.size())};
  const auto add = [&](double bytes, int from, int to, double LevelBytes::*when) {
    Add(levels, bytes, from, to, when, plan);
  };
  add(sent_forward, kWhole, strategy.weights, &LevelBytes::micro_batch);
  add(weights - input.gathered_once * input.bytes.weights, kWhole,
      strategy.secondary == kWhole ? strategy.weights : strategy.secondary, &LevelBytes::micro_batch);
  add(sent_gradients, kWhole, strategy.gradients, &LevelBytes::micro_batch);
  add(sent_gradients / RanksWithin(levels, strategy.gradients), strategy.gradients, strategy.optimizer,
      &LevelBytes::step);
  // Groups of the optimizer's level hold the same: an all-reduce, which is both operations.
  for (int both = 0; both < 2; ++both) {
    add(sent_gradients / RanksWithin(levels, strategy.optimizer), strategy.optimizer, top, &LevelBytes::step);
  }
  add(sent_forward / RanksWithin(levels, strategy.weights), strategy.weights, strategy.optimizer, &LevelBytes::step);
  return plan;
}

std::vector<PartitionStrategy> KnownStrategies(const core::LinkLevels& levels) {
  const int top = static_cast<int>(levels.site.size()) - 1;
  std::vector<PartitionStrategy> known{
      {.name = "data parallel"},
      {.name = "ZeRO-1", .optimizer = top},
      {.name = "ZeRO-2", .gradients = top, .optimizer = top},
      {.name = "ZeRO-3", .weights = top, .gradients = top, .optimizer = top},
  };
  if (top >= 1) {
    known.push_back({.name = "ZeRO++",
                     .weights = top,
                     .gradients = top,
                     .optimizer = top,
                     .secondary = top - 1,
                     .quantized = true});
    known.push_back({.name = "two levels", .weights = top - 1, .gradients = top - 1, .optimizer = top});
  }
  if (top >= 2) {
    const PartitionStrategy three{.name = "three levels", .weights = top - 2, .gradients = top - 1, .optimizer = top};
    known.push_back(three);
    known.push_back(three);
    known.back().name = "three levels q";  // with ZeRO++'s codecs
    known.back().quantized = true;
  }
  return known;
}

absl::StatusOr<int> LevelOf(const core::LinkLevels& levels, const std::string& name) {
  if (name == "rank") return kWhole;
  std::vector<std::string> names{"rank"};
  for (size_t l = 0; l < levels.site.size(); ++l) {
    if (levels.site[l].name == name) return static_cast<int>(l);
    names.push_back(levels.site[l].name);
  }
  if (name == "site") return static_cast<int>(levels.site.size()) - 1;
  if (levels.site.empty() || levels.site.back().name != "site") names.push_back("site");
  return absl::InvalidArgumentError(absl::StrCat("expected one of ", absl::StrJoin(names, ", "), ", got ", name));
}

std::string LevelName(const core::LinkLevels& levels, int level) {
  return level == kWhole ? "rank" : levels.site[static_cast<size_t>(level)].name;
}

double WanBytes(double parameters, core::CodecId codec) {
  // A fragment of one matrix, whose chunks are all alike but the last.
  const auto values = static_cast<int64_t>(parameters);
  const core::Fragment fragment{.tensors = {{.values = values}}, .units = core::UnitsFor(values), .parameters = values};
  return static_cast<double>(codecs::EncodedBytes(fragment, {.codec = codec}));
}

}  // namespace causeway::plan
