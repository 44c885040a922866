#include "ctl/grid_command.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/check.h"
#include "formats/levels_yaml.h"
#include "formats/text_file.h"

ABSL_FLAG(int, ranks, 0, "plan pipeline: of a site: how many for tensor, pipeline and data parallelism");
ABSL_FLAG(std::string, levels, "", "plan pipeline, with --ranks: file of the site's link levels");
ABSL_FLAG(int, batch, 0, "plan pipeline, with --ranks: sequences of a step, of all ranks");

namespace causeway::ctl {
namespace {

constexpr int64_t kMaxGridBytes = int64_t{16} << 20;
constexpr int kMostRanks = 4096;
constexpr int kMostBatch = 1'000'000;
constexpr size_t kShown = 5;

struct Term {
  const char* name;
  double plan::GridRow::*seconds;
};
constexpr Term kTerms[] = {{"compute", &plan::GridRow::compute_s},
                           {"tensor-parallel all-reduces", &plan::GridRow::tensor_s},
                           {"messages", &plan::GridRow::message_s},
                           {"the bubble", &plan::GridRow::bubble_s},
                           {"gradients", &plan::GridRow::gradient_s}};

std::string NameOf(const plan::GridRow& row) {
  std::string name = absl::StrCat(row.tensor, " × ", row.pipeline, " × ", row.data);
  if (row.chunks > 1) absl::StrAppend(&name, ", ", row.chunks, " stages a device");
  return absl::StrCat(name, ", micro-batches of ", row.sequences);
}

std::span<const plan::GridRow> Best(const std::vector<plan::GridRow>& rows) {
  return std::span(rows).first(std::min(kShown, rows.size()));
}

std::string RowText(const plan::GridRow& row) {
  return absl::StrFormat("%6d %8d %4d %6d %5d × %-6d %10.3f %9.3f %9.3f %9.3f %9.3f %9.3f %8.3f\n", row.tensor,
                         row.pipeline, row.data, row.chunks, row.micro_batches, row.sequences, 1e3 * row.step_s(),
                         1e3 * row.compute_s, 1e3 * row.tensor_s, 1e3 * row.message_s, 1e3 * row.bubble_s,
                         1e3 * row.gradient_s, row.memory_bytes / 1e9);
}

// "12.3 % less than …: 8 ms less in the bubble, 3 ms more in gradients".
std::string Why(const plan::GridRow& best, const plan::GridRow& next) {
  std::vector<std::string> parts;
  for (const Term& term : kTerms) {
    const double more_ms = 1e3 * (best.*term.seconds - next.*term.seconds);
    if (std::abs(more_ms) < 1e-3) continue;
    parts.push_back(absl::StrFormat("%.3f ms %s in %s", std::abs(more_ms), more_ms < 0 ? "less" : "more", term.name));
  }
  return absl::StrFormat("%s: %.1f %% less than %s: %s\n", NameOf(best), 100 * (1 - best.step_s() / next.step_s()),
                         NameOf(next), parts.empty() ? "nothing apart" : absl::StrJoin(parts, ", "));
}

template <typename... Parts>
absl::Status BadGridFlag(const char* flag, const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("plan pipeline: --", flag, ": expected ", parts...));
}

}  // namespace

bool GridIsAsked() { return absl::GetFlag(FLAGS_ranks) != 0; }

std::string GridText(const plan::GridInput& input, const std::vector<plan::GridRow>& rows) {
  std::string text = absl::StrFormat("%d ranks, %d sequences a step; milliseconds, %d cuts fit\n", input.ranks,
                                     input.batch, rows.size());
  absl::StrAppendFormat(&text, "%6s %8s %4s %6s %14s %10s %9s %9s %9s %9s %9s %8s\n", "tensor", "pipeline", "data",
                        "stages", "micro-batches", "step", "compute", "tensor", "messages", "bubble", "gradients",
                        "GB");
  for (const plan::GridRow& row : Best(rows)) text += RowText(row);
  const auto native = std::ranges::find(rows, 1, &plan::GridRow::tensor);
  if (native != rows.end() && native >= rows.begin() + static_cast<int64_t>(Best(rows).size())) {
    absl::StrAppend(&text, "without tensor parallelism, which is for PyTorch sites:\n", RowText(*native));
  }
  if (rows.size() > 1) text += Why(rows[0], rows[1]);
  return text;
}

std::string GridJson(const std::vector<plan::GridRow>& rows) {
  std::string text;
  for (const plan::GridRow& row : Best(rows)) {
    absl::StrAppend(&text,
                    nlohmann::ordered_json{{"tensor", row.tensor},
                                           {"pipeline", row.pipeline},
                                           {"data", row.data},
                                           {"chunks", row.chunks},
                                           {"sequences", row.sequences},
                                           {"micro_batches", row.micro_batches},
                                           {"step_s", row.step_s()},
                                           {"compute_s", row.compute_s},
                                           {"tensor_s", row.tensor_s},
                                           {"message_s", row.message_s},
                                           {"bubble_s", row.bubble_s},
                                           {"gradient_s", row.gradient_s},
                                           {"bubble_share", row.bubble_share()},
                                           {"tensor_bytes", row.tensor_bytes},
                                           {"message_bytes", row.message_bytes},
                                           {"gradient_bytes", row.gradient_bytes},
                                           {"memory_bytes", row.memory_bytes}}
                        .dump(),
                    "\n");
  }
  return text;
}

absl::Status RunGridCommand(bool json, const std::vector<std::string>& costs_paths, double memory_bytes) {
  plan::GridInput input{
      .ranks = absl::GetFlag(FLAGS_ranks), .batch = absl::GetFlag(FLAGS_batch), .memory_bytes = memory_bytes};
  if (input.ranks < 1 || input.ranks > kMostRanks)
    return BadGridFlag("ranks", "1 to ", kMostRanks, ", got ", input.ranks);
  if (input.batch < 1 || input.batch > kMostBatch)
    return BadGridFlag("batch", "1 to ", kMostBatch, ", got ", input.batch);
  const std::string levels = absl::GetFlag(FLAGS_levels);
  if (levels.empty()) return BadGridFlag("levels", "a file of link levels, got none");
  ASSIGN_OR_RETURN(input.levels, formats::ReadLevelsYaml(levels));
  for (const std::string& path : costs_paths) {
    ASSIGN_OR_RETURN(const std::string text, formats::ReadTextFile(path, kMaxGridBytes));
    ASSIGN_OR_RETURN(plan::PipelineCosts costs, plan::ReadPipelineCosts(text, path));
    input.costs.push_back(std::move(costs));
  }
  ASSIGN_OR_RETURN(const std::vector<plan::GridRow> rows, PlanGrid(input));
  std::printf("%s", (json ? GridJson(rows) : GridText(input, rows)).c_str());
  return absl::OkStatus();
}

}  // namespace causeway::ctl
