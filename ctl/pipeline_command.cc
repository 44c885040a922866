#include "ctl/pipeline_command.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/check.h"
#include "formats/atomic_file.h"
#include "formats/named_file.h"
#include "formats/yaml_message.h"
#include "plan/pipeline_check.h"
#include "plan/pipeline_file.h"
#include "plan/pipeline_generators.h"
#include "plan/pipeline_planner.h"
#include "plan/pipeline_svg.h"
#include "plan/pipeline_time.h"
#include "plan/pipeline_trace.h"

ABSL_FLAG(std::string, schedule, "",
          "plan pipeline: gpipe, 1f1b, interleaved, breadth_first, zb_h1, zb_v, chimera, dualpipe, "
          "bitpipe, bitpipe_looped or zeropp");
ABSL_FLAG(int, devices, 0, "plan pipeline: how many");
ABSL_FLAG(int, micro_batches, 0, "plan pipeline: of a step, of all copies together");
ABSL_FLAG(int, chunks, 2, "plan pipeline: stages of a device, of interleaved, breadth_first and zeropp");
ABSL_FLAG(int, unit, 0, "plan pipeline: micro-batches of a unit of zeropp; 0: as many as devices");
ABSL_FLAG(bool, late_sync, false, "plan pipeline: chimera, dualpipe and bitpipe reduce gradients at the end");
ABSL_FLAG(double, latency, 0, "plan pipeline: of a message, in units of a forward of 1/D of the model");
ABSL_FLAG(std::string, torch_csv, "",
          "plan pipeline: writes the schedule to this file, for PyTorch's pipeline runtime");
ABSL_FLAG(std::string, svg, "", "plan pipeline: draws the schedule to this file");
ABSL_FLAG(
    std::string, costs, "unit",
    "plan pipeline: unit, or a file of measured costs: with --schedule or --check for that one, else the best for "
    "them; with --ranks files A,B,…, one for each size of a micro-batch");
ABSL_FLAG(double, memory_gb, 0, "plan pipeline, with --costs: of a device; 0: any");
ABSL_FLAG(double, latency_us, 0, "plan pipeline, with --costs: of a message");
ABSL_FLAG(double, bandwidth_gbit, 0, "plan pipeline, with --costs: between two devices; 0: no bound");
ABSL_FLAG(
    std::string, check, "",
    "plan pipeline: a schedule's file, instead of --schedule; status: alone, one line for a monitor, and exit status "
    "0 (fine), 1 (a warning), 2 (critical) or 3 (no answer)");
ABSL_FLAG(std::string, trace, "",
          "plan pipeline: what causeway-worker --trace measured of this schedule, to compare and to draw below");
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

using plan::Operation;
using plan::OperationKind;
using plan::PipelineSchedule;

constexpr int64_t kUnit = 720'720;  // nanoseconds of a unit: every number of chunks up to 16 divides it
constexpr int64_t kMaxFileBytes = int64_t{64} << 20;
constexpr int kMostDevices = 1024;
constexpr int kMostMicroBatches = 4096;

template <typename... Parts>
absl::Status BadFlag(const char* flag, const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("plan pipeline: --", flag, ": expected ", parts...));
}

// "33/2" units.
std::string Fraction(int64_t nanoseconds) {
  const int64_t divisor = std::gcd(nanoseconds, kUnit);
  const int64_t over = nanoseconds / divisor, under = kUnit / divisor;
  return under == 1 ? absl::StrCat(over) : absl::StrCat(over, "/", under);
}

std::string Quoted(const std::string& text) { return absl::StrCat("\"", text, "\""); }

template <typename Range, typename Text>
std::string Array(const Range& range, const Text& text) {
  std::vector<std::string> parts;
  for (const auto& one : range) parts.push_back(text(one));
  return absl::StrCat("[", absl::StrJoin(parts, ", "), "]");
}

std::string OperationJson(const Operation& operation) {
  return absl::StrCat(std::string(1, plan::kOperationLetters[static_cast<int>(operation.kind)]),
                      plan::IsCompute(operation.kind) ? absl::StrCat(operation.micro_batch) : "", "@", operation.stage,
                      "/", operation.copy);
}

std::string ListJson(const std::vector<plan::ScheduleStep>& list, bool compute) {
  std::vector<std::string> parts;
  for (const plan::ScheduleStep& step : list) {
    if (plan::IsCompute(step.first.kind) != compute) continue;
    parts.push_back(Quoted(OperationJson(step.first) + (step.second ? "+" + OperationJson(*step.second) : "")));
  }
  return absl::StrCat("[", absl::StrJoin(parts, ", "), "]");
}

bool HasPairs(const PipelineSchedule& schedule) {
  for (const auto& list : schedule.lists) {
    for (const plan::ScheduleStep& step : list) {
      if (step.second) return true;
    }
  }
  return false;
}

plan::PipelineTimes TimesOf(const PipelineSchedule& schedule, double latency_units) {
  plan::PipelineTimes times = UnitTimes(schedule, kUnit * schedule.devices / schedule.stages);
  times.message_ns = std::llround(latency_units * kUnit);
  return times;
}

absl::Status CheckCounts(int devices, int micro_batches) {
  if (devices < 1 || devices > kMostDevices) return BadFlag("devices", "1 to ", kMostDevices, ", got ", devices);
  if (micro_batches >= 1 && micro_batches <= kMostMicroBatches) return absl::OkStatus();
  return BadFlag("micro_batches", "1 to ", kMostMicroBatches, ", got ", micro_batches);
}

// By its name or its file.
absl::StatusOr<plan::PipelineFile> FromFlags() {
  if (const std::string path = absl::GetFlag(FLAGS_check); !path.empty()) {
    ASSIGN_OR_RETURN(const std::string text, formats::ReadTextFile(path, kMaxFileBytes));
    ASSIGN_OR_RETURN(const plan::PipelineFile file, plan::ParsePipelineFile(text, path));
    const absl::Status valid = CheckPipeline(file.schedule);
    if (!valid.ok()) return absl::InvalidArgumentError(absl::StrCat(path, ": ", valid.message()));
    return file;
  }
  if (absl::GetFlag(FLAGS_schedule).empty()) return BadFlag("schedule", "a schedule's name, got none");
  const int devices = absl::GetFlag(FLAGS_devices), micro_batches = absl::GetFlag(FLAGS_micro_batches);
  RETURN_IF_ERROR(CheckCounts(devices, micro_batches));
  const int chunks = absl::GetFlag(FLAGS_chunks);
  if (chunks < 1 || chunks > 16) return BadFlag("chunks", "1 to 16, got ", chunks);
  plan::PipelineFile file;
  ASSIGN_OR_RETURN(file.schedule,
                   plan::Generate(absl::GetFlag(FLAGS_schedule), {.devices = devices,
                                                                  .micro_batches = micro_batches,
                                                                  .chunks = chunks,
                                                                  .unit = absl::GetFlag(FLAGS_unit),
                                                                  .late_sync = absl::GetFlag(FLAGS_late_sync)}));
  return file;
}

bool OneIsAsked() { return !absl::GetFlag(FLAGS_check).empty() || !absl::GetFlag(FLAGS_schedule).empty(); }

std::string NameOfAsked() {
  const std::string check = std::filesystem::path(absl::GetFlag(FLAGS_check)).filename();
  return check.empty() ? absl::GetFlag(FLAGS_schedule) : check;
}

absl::Status WriteFiles(const plan::PipelineFile& file, const plan::PlayedPipeline& played, const std::string& title,
                        const std::string& out, const plan::PlayedPipeline* measured = nullptr) {
  if (!out.empty()) RETURN_IF_ERROR(formats::WriteFileAtomically(out, plan::WritePipelineFile(file)));
  if (const std::string path = absl::GetFlag(FLAGS_torch_csv); !path.empty()) {
    ASSIGN_OR_RETURN(const std::string csv, plan::TorchCsv(file.schedule));
    RETURN_IF_ERROR(formats::WriteFileAtomically(path, csv));
  }
  if (const std::string path = absl::GetFlag(FLAGS_svg); !path.empty()) {
    RETURN_IF_ERROR(formats::WriteFileAtomically(path, plan::PipelineSvg(file.schedule, played, title, measured)));
  }
  return absl::OkStatus();
}

absl::StatusOr<double> MemoryFlag() {
  const double gb = absl::GetFlag(FLAGS_memory_gb);
  if (!(gb >= 0 && gb < 1e9)) return BadFlag("memory_gb", "0 or more, got ", gb);
  return 1e9 * gb;
}

std::string WhyItWon(const std::vector<plan::PlannedPipeline>& plans) {
  const plan::PlannedPipeline& best = plans.front();
  std::string text = best.name + ": the least p90 of 200 draws of 10 % on each operation";
  if (plans.size() == 1) return text + "; no other fits";
  const plan::PlannedPipeline& next = plans[1];
  const double less = 100 * (1 - static_cast<double>(best.p90) / static_cast<double>(next.p90));
  return absl::StrCat(
      text, absl::StrFormat(", %.1f %% less than %s: the device that waits most waits %.1f %% of a step "
                            "instead of %.1f %%, the fullest holds %.3g GB instead of %.3g GB, %d "
                            "messages instead of %d",
                            less, next.name, 100 * best.worst_bubble, 100 * next.worst_bubble, 1e-9 * best.peak_bytes,
                            1e-9 * next.peak_bytes, best.messages, next.messages));
}

// Without devices and micro-batches.
absl::StatusOr<plan::PlannerInput> ReadInput(const std::string& path) {
  plan::PlannerInput input;
  ASSIGN_OR_RETURN(const std::string text, formats::ReadTextFile(path, kMaxFileBytes));
  ASSIGN_OR_RETURN(input.costs, plan::ReadPipelineCosts(text, path));
  const double latency = absl::GetFlag(FLAGS_latency_us), bandwidth = absl::GetFlag(FLAGS_bandwidth_gbit);
  if (!(latency >= 0 && latency < 1e9)) return BadFlag("latency_us", "0 or more, got ", latency);
  if (!(bandwidth >= 0 && bandwidth < 1e9)) return BadFlag("bandwidth_gbit", "0 or more, got ", bandwidth);
  ASSIGN_OR_RETURN(input.memory_bytes, MemoryFlag());
  input.latency_ns = std::llround(1e3 * latency);
  input.bytes_per_s = 1e9 / 8 * bandwidth;
  return input;
}

// The best schedule for measured costs, beside the others.
absl::Status PlanForCosts(const std::string& path, const std::string& out) {
  ASSIGN_OR_RETURN(plan::PlannerInput input, ReadInput(path));
  input.devices = absl::GetFlag(FLAGS_devices);
  input.micro_batches = absl::GetFlag(FLAGS_micro_batches);
  RETURN_IF_ERROR(CheckCounts(input.devices, input.micro_batches));
  ASSIGN_OR_RETURN(const std::vector<plan::PlannedPipeline> plans, PlanPipeline(input));
  std::printf("%-16s %10s %10s %8s %10s %9s\n", "schedule", "p90 ms", "mean ms", "bubble", "holds GB", "messages");
  for (const plan::PlannedPipeline& one : plans) {
    std::printf("%-16s %10.3f %10.3f %7.1f%% %10.3f %9ld\n", one.name.c_str(), 1e-6 * static_cast<double>(one.p90),
                1e-6 * static_cast<double>(one.makespan), 100 * one.worst_bubble, 1e-9 * one.peak_bytes,
                static_cast<long>(one.messages));
  }
  const plan::PlannedPipeline& best = plans.front();
  std::printf("%s\n", WhyItWon(plans).c_str());
  ASSIGN_OR_RETURN(const plan::PlayedPipeline played, Play(best.file.schedule, best.times));
  return WriteFiles(best.file, played, best.name, out);
}

// One schedule by measured costs, and beside it how long its operations took, where they were traced.
absl::Status PlayForCosts(plan::PipelineFile file, const std::string& path, const std::string& out) {
  ASSIGN_OR_RETURN(const plan::PlannerInput input, ReadInput(path));
  if (file.split.empty()) {
    ASSIGN_OR_RETURN(file.split, plan::SplitLayers(input.costs, file.schedule.stages));
  }
  ASSIGN_OR_RETURN(const plan::PlayedPipeline played, Play(file.schedule, PlannedTimes(input, file.split)));
  const double predicted_ms = 1e-6 * static_cast<double>(played.makespan);
  std::printf("%s: a step takes %.3f ms by %s\n", NameOfAsked().c_str(), predicted_ms, path.c_str());
  const std::string trace = absl::GetFlag(FLAGS_trace);
  if (trace.empty()) return WriteFiles(file, played, NameOfAsked(), out);
  ASSIGN_OR_RETURN(const std::string text, formats::ReadTextFile(trace, kMaxFileBytes));
  ASSIGN_OR_RETURN(const plan::PlayedPipeline measured, plan::ReadPipelineTrace(text, trace, file.schedule));
  const double measured_ms = 1e-6 * static_cast<double>(measured.makespan);
  std::printf("measured in %s: %.3f ms, the median of its steps; predicted ÷ measured %.3f\n", trace.c_str(),
              measured_ms, predicted_ms / measured_ms);
  return WriteFiles(file, played, NameOfAsked(), out, &measured);
}

void PrintText(const std::string& name, const PipelineSchedule& schedule, const plan::PlayedPipeline& played) {
  const auto units = [](int64_t nanoseconds) { return static_cast<double>(nanoseconds) / kUnit; };
  std::printf("%s: %d devices, %d micro-batches, %d stages, %d %s of the weights\n", name.c_str(), schedule.devices,
              schedule.micro_batches, schedule.stages, schedule.copies, schedule.copies == 1 ? "copy" : "copies");
  std::printf("a step takes %.2f forwards of 1/%d of the model; %ld messages, %d receive buffers for a sender\n",
              units(played.makespan), schedule.devices, static_cast<long>(played.messages), ReceiveSlots(schedule));
  std::printf("%-8s %8s %14s %14s\n", "device", "busy", "bubble", "live at most");
  for (int d = 0; d < schedule.devices; ++d) {
    const auto i = static_cast<size_t>(d);
    std::printf("%-8d %8.2f %6.2f (%4.1f%%) %14d\n", d, units(played.busy[i]), units(played.bubble(d)),
                100.0 * static_cast<double>(played.bubble(d)) / static_cast<double>(played.makespan),
                played.peak_chunks[i]);
  }
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
  if (input.ranks < 1 || input.ranks > kMostRanks) return BadFlag("ranks", "1 to ", kMostRanks, ", got ", input.ranks);
  if (input.batch < 1 || input.batch > kMostBatch) return BadFlag("batch", "1 to ", kMostBatch, ", got ", input.batch);
  const std::string levels = absl::GetFlag(FLAGS_levels);
  if (levels.empty()) return BadFlag("levels", "a file of link levels, got none");
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

absl::StatusOr<std::string> PipelineJson(const std::string& name, const PipelineSchedule& schedule,
                                         double latency_units) {
  ASSIGN_OR_RETURN(const plan::PlayedPipeline played, Play(schedule, TimesOf(schedule, latency_units)));
  const int64_t forward = kUnit * schedule.devices / schedule.stages;
  std::vector<int> devices(static_cast<size_t>(schedule.devices));
  std::iota(devices.begin(), devices.end(), 0);
  const auto list = [&](bool compute) {
    return Array(schedule.lists, [&](const auto& one) { return ListJson(one, compute); });
  };
  return absl::StrCat(
      "{\"schedule\": ", Quoted(name), ", \"D\": ", schedule.devices, ", \"N\": ", schedule.micro_batches,
      ", \"stages\": ", schedule.stages, ", \"cost\": {\"F\": ", Quoted(Fraction(forward)),
      ", \"B\": ", Quoted(Fraction(2 * forward)), ", \"I\": ", Quoted(Fraction(forward)),
      ", \"W\": ", Quoted(Fraction(forward)),
      "}, \"overlap\": ", HasPairs(schedule) ? Quoted(Fraction(3 * forward)) : "null",
      ", \"makespan\": ", Quoted(Fraction(played.makespan)),
      ", \"bubble\": ", Array(devices, [&](int d) { return Quoted(Fraction(played.bubble(d))); }),
      ", \"span_bubble\": ", Array(devices, [&](int d) { return Quoted(Fraction(played.span_bubble(d))); }),
      ", \"peak_chunks\": ", Array(played.peak_chunks, [](int peak) { return absl::StrCat(peak); }),
      ", \"slots\": ", ReceiveSlots(schedule), ", \"messages\": ", played.messages, ", \"order\": ", list(true),
      ", \"sync\": ", list(false), "}");
}

absl::Status RunPipelineCommand(bool json, const std::string& out) {
  const double latency = absl::GetFlag(FLAGS_latency);
  if (!(latency >= 0 && latency <= 1e6)) return BadFlag("latency", "0 or more units, got ", latency);
  const std::string costs = absl::GetFlag(FLAGS_costs);
  if (GridIsAsked()) {
    if (costs == "unit") return BadFlag("costs", "files of measured costs with --ranks, got unit");
    ASSIGN_OR_RETURN(const double memory_bytes, MemoryFlag());
    return RunGridCommand(json, absl::StrSplit(costs, ','), memory_bytes);
  }
  if (costs == "unit" && !absl::GetFlag(FLAGS_trace).empty()) {
    return BadFlag("costs", "a file of measured costs with --trace, got unit");
  }
  if (costs != "unit" && !OneIsAsked()) return PlanForCosts(costs, out);
  ASSIGN_OR_RETURN(const plan::PipelineFile file, FromFlags());
  if (costs != "unit") return PlayForCosts(file, costs, out);
  const PipelineSchedule& schedule = file.schedule;
  ASSIGN_OR_RETURN(const plan::PlayedPipeline played, Play(schedule, TimesOf(schedule, latency)));
  const std::string name = NameOfAsked();
  const std::string title =
      absl::StrCat(name, ", ", schedule.devices, " devices, ", schedule.micro_batches, " micro-batches");
  RETURN_IF_ERROR(WriteFiles(file, played, title, out));
  if (json) {
    ASSIGN_OR_RETURN(const std::string text, PipelineJson(name, schedule, latency));
    std::printf("%s\n", text.c_str());
    return absl::OkStatus();
  }
  PrintText(name, schedule, played);
  return absl::OkStatus();
}

}  // namespace causeway::ctl
