#include "ctl/what_if_command.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/check.h"
#include "formats/named_file.h"

ABSL_DECLARE_FLAG(std::string, trace);
ABSL_FLAG(double, factor, 2, "plan what-if: how many times as fast each resource is, alone");
ABSL_FLAG(std::string, faster, "", "plan what-if: RESOURCE=FACTOR,…: then these, one after the other");
ABSL_FLAG(
    std::string, samples, "",
    "plan what-if: instead of a trace, a file of lines SPEED SPEED-UP, of which the first and --through are fitted");
ABSL_FLAG(int, through, 2, "plan what-if, with --samples: which line beside the first is fitted, counted from 0");

namespace causeway::ctl {
namespace {

constexpr int64_t kMaxTraceBytes = int64_t{256} << 20;

template <typename... Parts>
absl::Status BadWhatIfFlag(const char* flag, const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("plan what-if: --", flag, ": expected ", parts...));
}

std::string SharesText(const plan::WhatIf& what_if) {
  std::vector<std::pair<double, std::string>> shares;
  for (const auto& [resource, share] : what_if.shares) shares.emplace_back(-share, resource);
  std::ranges::sort(shares);
  return absl::StrJoin(shares, ", ", [](std::string* out, const auto& share) {
    absl::StrAppendFormat(out, "%s %.1f %%", share.second, -100 * share.first);
  });
}

absl::Status FitFile(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, formats::ReadTextFile(path, kMaxTraceBytes));
  std::vector<plan::Sample> samples;
  int line_number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++line_number;
    const std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar(" \t,"), absl::SkipEmpty());
    if (words.empty() || words[0].starts_with("#")) continue;
    plan::Sample& sample = samples.emplace_back();
    if (words.size() == 2 && absl::SimpleAtod(words[0], &sample.speed) && absl::SimpleAtod(words[1], &sample.speedup)) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat(path, ":", line_number, ": expected a speed and a speed-up, got ", line));
  }
  const int through = absl::GetFlag(FLAGS_through);
  ASSIGN_OR_RETURN(const plan::SampleFit fit, plan::FitSamples(samples, static_cast<size_t>(std::max(0, through))));
  std::printf("T = %.4f + %.4f ÷ speed, through lines 0 and %d: arithmetic of the fit, not a simulation\n", fit.fixed,
              fit.scaled, through);
  std::printf("%10s %10s %10s\n", "speed", "measured", "fit");
  for (size_t i = 0; i < samples.size(); ++i) {
    std::printf("%10.4g %10.3f %10.3f\n", samples[i].speed, samples[i].speedup, fit.predicted[i]);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> WhatIfJson(const plan::Work& work, double factor,
                                       const std::vector<std::pair<std::string, double>>& raised) {
  ASSIGN_OR_RETURN(const plan::WhatIf now, Simulate(work, {}));
  nlohmann::ordered_json json{{"measured_s", work.seconds_per_step}, {"simulated_s", now.seconds_per_step}};
  for (const auto& [resource, share] : now.shares) json["shares"][resource] = share;
  for (const plan::Gain& gain : GainsOfEach(work, factor)) {
    json["alone"].push_back(
        {{"resource", gain.resource}, {"factor", factor}, {"speedup", gain.speedup}, {"then_binds", gain.then_binds}});
  }
  plan::Factors factors;
  for (const auto& [resource, times] : raised) {
    factors[resource] = times;
    ASSIGN_OR_RETURN(const plan::WhatIf faster, Simulate(work, factors));
    json["raised"].push_back({{"resource", resource},
                              {"factor", times},
                              {"step_s", faster.seconds_per_step},
                              {"speedup", now.seconds_per_step / faster.seconds_per_step},
                              {"then_binds", faster.Binds()}});
  }
  return json.dump() + "\n";
}

}  // namespace

absl::StatusOr<std::vector<std::pair<std::string, double>>> ParseFactors(const std::string& text) {
  std::vector<std::pair<std::string, double>> factors;
  for (const absl::string_view part : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const std::vector<std::string> sides = absl::StrSplit(part, absl::MaxSplits('=', 1));
    double factor = 0;
    if (sides.size() != 2 || !absl::SimpleAtod(sides[1], &factor) || !(factor > 0)) {
      return BadWhatIfFlag("faster", "RESOURCE=FACTOR above 0, got ", part);
    }
    factors.emplace_back(sides[0], factor);
  }
  return factors;
}

absl::StatusOr<std::string> WhatIfText(const plan::Work& work, double factor,
                                       const std::vector<std::pair<std::string, double>>& raised) {
  ASSIGN_OR_RETURN(const plan::WhatIf now, Simulate(work, {}));
  std::string text =
      absl::StrFormat("a step takes %.4g ms in %d traced steps, simulated %.4g ms; it is bound by %s\n",
                      1e3 * work.seconds_per_step, work.steps.size(), 1e3 * now.seconds_per_step, SharesText(now));
  absl::StrAppendFormat(&text, "%.4g times as fast, each alone:\n", factor);
  for (const plan::Gain& gain : GainsOfEach(work, factor)) {
    absl::StrAppendFormat(&text, "  %-12s %+6.1f %%, then %s binds\n", gain.resource, 100 * (gain.speedup - 1),
                          gain.then_binds);
  }
  if (!raised.empty()) absl::StrAppend(&text, "one after the other:\n");
  plan::Factors factors;
  double before = now.seconds_per_step;
  for (const auto& [resource, times] : raised) {
    factors[resource] = times;
    const absl::StatusOr<plan::WhatIf> faster = Simulate(work, factors);
    if (!faster.ok()) return BadWhatIfFlag("faster", absl::StripPrefix(faster.status().message(), "expected "));
    absl::StrAppendFormat(&text, "  %-12s × %-6.4g %8.4g ms, %+6.1f %% more speed, then %s binds (%s)\n", resource,
                          times, 1e3 * faster->seconds_per_step, 100 * (before / faster->seconds_per_step - 1),
                          faster->Binds(), SharesText(*faster));
    before = faster->seconds_per_step;
  }
  return text;
}

absl::Status RunWhatIfCommand(bool json) {
  if (const std::string samples = absl::GetFlag(FLAGS_samples); !samples.empty()) return FitFile(samples);
  const std::string path = absl::GetFlag(FLAGS_trace);
  if (path.empty()) return BadWhatIfFlag("trace", "a file of causeway-worker --trace, got none");
  const double factor = absl::GetFlag(FLAGS_factor);
  if (!(factor > 0)) return BadWhatIfFlag("factor", "more than 0, got ", factor);
  ASSIGN_OR_RETURN(const auto raised, ParseFactors(absl::GetFlag(FLAGS_faster)));
  ASSIGN_OR_RETURN(const std::string trace, formats::ReadTextFile(path, kMaxTraceBytes));
  ASSIGN_OR_RETURN(const plan::Work work, plan::ReadWork(trace, path));
  ASSIGN_OR_RETURN(const std::string text, json ? WhatIfJson(work, factor, raised) : WhatIfText(work, factor, raised));
  std::printf("%s", text.c_str());
  return absl::OkStatus();
}

}  // namespace causeway::ctl
