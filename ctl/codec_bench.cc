#include "ctl/codec_bench.h"

#include <algorithm>
#include <cstdio>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "codecs/speed_bench.h"
#include "core/check.h"
#include "ctl/standard_streams.h"

namespace causeway::ctl {
namespace {

constexpr int64_t kDefaultMegabytes[] = {16, 256};
constexpr int64_t kMaxMegabytes = 16'384;
constexpr int64_t kMaxThreads = 1024;

absl::StatusOr<std::vector<int64_t>> Numbers(const char* flag, const std::vector<std::string>& texts, int64_t most) {
  std::vector<int64_t> numbers;
  for (const std::string& text : texts) {
    int64_t number = 0;
    if (!absl::SimpleAtoi(text, &number) || number < 1 || number > most) {
      return absl::InvalidArgumentError(
          absl::StrCat("codec-bench: --", flag, ": expected numbers from 1 to ", most, ", got '", text, "'"));
    }
    numbers.push_back(number);
  }
  return numbers;
}

absl::StatusOr<codecs::SpeedOptions> OptionsOf(const CodecBenchFlags& flags) {
  codecs::SpeedOptions options;
  ASSIGN_OR_RETURN(options.megabytes, Numbers("sizes", flags.sizes, kMaxMegabytes));
  ASSIGN_OR_RETURN(const std::vector<int64_t> threads, Numbers("threads", flags.threads, kMaxThreads));
  options.threads.assign(threads.begin(), threads.end());
  for (const std::string& name : flags.codecs) {
    const std::optional<core::CodecId> codec = core::CodecFromName(name);
    if (!codec.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("codec-bench: --codecs: expected some of ", core::AllCodecNames(), ", got '", name, "'"));
    }
    options.codecs.push_back(*codec);
  }
  std::string supported;
  for (codecs::Target target : codecs::kAllTargets) {
    if (!codecs::Supported(target)) continue;
    const std::string name = codecs::TargetName(target);
    absl::StrAppend(&supported, supported.empty() ? "" : ", ", name);
    if (flags.targets.empty() || std::ranges::count(flags.targets, name) > 0) options.targets.push_back(target);
  }
  for (const std::string& name : flags.targets) {
    const auto is_named = [&](codecs::Target target) { return name == codecs::TargetName(target); };
    if (std::ranges::none_of(options.targets, is_named)) {
      return absl::InvalidArgumentError(
          absl::StrCat("codec-bench: --targets: expected some of ", supported, " here, got '", name, "'"));
    }
  }
  if (options.megabytes.empty()) options.megabytes.assign(std::begin(kDefaultMegabytes), std::end(kDefaultMegabytes));
  if (options.threads.empty()) options.threads = {1, 2};
  if (options.codecs.empty()) options.codecs.assign(std::begin(core::kAllCodecs), std::end(core::kAllCodecs));
  return options;
}

void PrintJson(const codecs::SpeedRow& row) {
  std::printf("%s\n",
              absl::StrFormat(R"({"megabytes": %d, "threads": %d, "codec": "%s", "target": "%s", )"
                              R"("operation": "%s", "pairs": %d, "ratio": %.4f, "gigavalues_per_s": %.4f, )"
                              R"("gigabytes_per_s": %.3f, "ceiling_gigabytes_per_s": %.3f})",
                              row.megabytes, row.threads, core::CodecName(row.codec), codecs::TargetName(row.target),
                              codecs::SpeedOperationName(row.operation), row.pairs, row.ratio, row.gigavalues_per_s,
                              row.gigabytes_per_s, row.ceiling_gigabytes_per_s)
                  .c_str());
}

void PrintRow(const codecs::SpeedRow& row) {
  std::printf("%5d %7d %-16s %-7s %-15s %6.2f %8.2f %8.2f %10.3f\n", static_cast<int>(row.megabytes), row.threads,
              core::CodecName(row.codec), codecs::TargetName(row.target), codecs::SpeedOperationName(row.operation),
              row.ratio, row.gigabytes_per_s, row.ceiling_gigabytes_per_s, row.gigavalues_per_s);
}

}  // namespace

absl::Status RunCodecBench(const CodecBenchFlags& flags) {
  ASSIGN_OR_RETURN(const codecs::SpeedOptions options, OptionsOf(flags));
  if (!flags.json) {
    std::printf("%d processors, best codecs: %s\n", static_cast<int>(std::thread::hardware_concurrency()),
                codecs::TargetName(codecs::ActiveTarget()));
    std::printf("%5s %7s %-16s %-7s %-15s %6s %8s %8s %10s\n", "MB", "threads", "codec", "target", "operation", "ratio",
                "GB/s", "ceiling", "Gvalues/s");
  }
  codecs::MeasureSpeed(options, [&](const codecs::SpeedRow& row) {
    flags.json ? PrintJson(row) : PrintRow(row);
    (void)FlushStandardOutput();  // EndOutput has what it says
  });
  return absl::OkStatus();
}

}  // namespace causeway::ctl
