// The speed of the codecs on this machine, beside that of its memory: a line for each size, number of threads, codec,
// instruction set and operation. tests/bench/codecs runs it.
#include <algorithm>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/check.h"
#include "tests/bench/bench_run/bench_run.h"
#include "tests/bench/bench_run/codec_speed.h"

namespace causeway::bench {
namespace {

constexpr int64_t kDefaultMegabytes[] = {16, 256};
constexpr int64_t kMaxMegabytes = 16'384;
constexpr int64_t kMaxThreads = 1024;

// The words of a setting; none where it is empty.
std::vector<std::string> Listed(const char* name) {
  return absl::StrSplit(Given<std::string>(name), ',', absl::SkipEmpty());
}

absl::StatusOr<std::vector<int64_t>> Numbers(const char* flag, int64_t most) {
  std::vector<int64_t> numbers;
  for (const std::string& text : Listed(flag)) {
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
  const std::vector<std::string> targets = Listed("targets");
  codecs::SpeedOptions options;
  ASSIGN_OR_RETURN(options.megabytes, Numbers("sizes", kMaxMegabytes));
  ASSIGN_OR_RETURN(const std::vector<int64_t> threads, Numbers("threads", kMaxThreads));
  options.threads.assign(threads.begin(), threads.end());
  for (const std::string& name : Listed("codecs")) {
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

}  // namespace

absl::Status Codecs() {
  ASSIGN_OR_RETURN(const codecs::SpeedOptions options, OptionsOf());
  codecs::MeasureSpeed(options, [](const codecs::SpeedRow& row) {
    Print({{"megabytes", row.megabytes},
           {"threads", row.threads},
           {"codec", core::CodecName(row.codec)},
           {"target", codecs::TargetName(row.target)},
           {"operation", codecs::SpeedOperationName(row.operation)},
           {"pairs", row.pairs},
           {"ratio", row.ratio},
           {"gigavalues_per_s", row.gigavalues_per_s},
           {"gigabytes_per_s", row.gigabytes_per_s},
           {"ceiling_gigabytes_per_s", row.ceiling_gigabytes_per_s}});
  });
  return absl::OkStatus();
}

}  // namespace causeway::bench
