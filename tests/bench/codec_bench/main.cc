// The speed of the codecs on this machine, beside that of its memory: a line for each size, number of threads, codec,
// instruction set and operation. tests/bench/codecs runs it.
#include <algorithm>
#include <cstdio>
#include <thread>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/check.h"
#include "tests/bench/codec_bench/speed_bench.h"

ABSL_FLAG(std::vector<std::string>, sizes, {}, "MB of float32, like 16,256");
ABSL_FLAG(std::vector<std::string>, threads, {}, "numbers of threads, like 1,2");
ABSL_FLAG(std::vector<std::string>, codecs, {}, "names, like int4,rotated_sign; all without");
ABSL_FLAG(std::vector<std::string>, targets, {}, "of scalar, avx2, avx512; all that there are without");
ABSL_FLAG(bool, json, false, "a line of JSON for each row");

namespace causeway::bench {
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
          absl::StrCat("--", flag, ": expected numbers from 1 to ", most, ", got '", text, "'"));
    }
    numbers.push_back(number);
  }
  return numbers;
}

absl::StatusOr<codecs::SpeedOptions> OptionsOf() {
  const std::vector<std::string> targets = absl::GetFlag(FLAGS_targets);
  codecs::SpeedOptions options;
  ASSIGN_OR_RETURN(options.megabytes, Numbers("sizes", absl::GetFlag(FLAGS_sizes), kMaxMegabytes));
  ASSIGN_OR_RETURN(const std::vector<int64_t> threads, Numbers("threads", absl::GetFlag(FLAGS_threads), kMaxThreads));
  options.threads.assign(threads.begin(), threads.end());
  for (const std::string& name : absl::GetFlag(FLAGS_codecs)) {
    const std::optional<core::CodecId> codec = core::CodecFromName(name);
    if (!codec.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--codecs: expected some of ", core::AllCodecNames(), ", got '", name, "'"));
    }
    options.codecs.push_back(*codec);
  }
  std::string supported;
  for (codecs::Target target : codecs::kAllTargets) {
    if (!codecs::Supported(target)) continue;
    const std::string name = codecs::TargetName(target);
    absl::StrAppend(&supported, supported.empty() ? "" : ", ", name);
    if (targets.empty() || std::ranges::count(targets, name) > 0) options.targets.push_back(target);
  }
  for (const std::string& name : targets) {
    const auto is_named = [&](codecs::Target target) { return name == codecs::TargetName(target); };
    if (std::ranges::none_of(options.targets, is_named)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--targets: expected some of ", supported, " here, got '", name, "'"));
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
}  // namespace causeway::bench

int main(int argc, char** argv) {
  using namespace causeway;
  absl::ParseCommandLine(argc, argv);
  const absl::StatusOr<codecs::SpeedOptions> options = bench::OptionsOf();
  if (!options.ok()) {
    std::fprintf(stderr, "codec_bench: %s\n", std::string(options.status().message()).c_str());
    return 2;
  }
  const bool json = absl::GetFlag(FLAGS_json);
  if (!json) {
    std::printf("%d processors, best codecs: %s\n", static_cast<int>(std::thread::hardware_concurrency()),
                codecs::TargetName(codecs::ActiveTarget()));
    std::printf("%5s %7s %-16s %-7s %-15s %6s %8s %8s %10s\n", "MB", "threads", "codec", "target", "operation", "ratio",
                "GB/s", "ceiling", "Gvalues/s");
  }
  codecs::MeasureSpeed(*options, [&](const codecs::SpeedRow& row) {
    json ? bench::PrintJson(row) : bench::PrintRow(row);
    std::fflush(stdout);
  });
}
