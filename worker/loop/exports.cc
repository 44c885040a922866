#include "worker/loop/exports.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "core/clock.h"
#include "formats/model_export.h"

namespace causeway::worker {
namespace {

constexpr char kPrefix[] = "round-";
constexpr char kUnfinished[] = ".partial";

absl::Status Move(const std::string& from, const std::string& to) {
  std::error_code error;
  std::filesystem::remove_all(to, error);  // of the same rounds, by an earlier process
  if (!error) std::filesystem::rename(from, to, error);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot move ", from, " to ", to, ": ", error.message()));
}

}  // namespace

absl::Status CheckExportFlags(const ExportFlags& flags) {
  if (flags.every_rounds < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--export_every_rounds: expected 0 or more rounds, got ", flags.every_rounds));
  }
  if (flags.keep < 1) {
    return absl::InvalidArgumentError(absl::StrCat("--export_keep: expected 1 or more, got ", flags.keep));
  }
  if (flags.directory.empty()) {
    for (const auto& [flag, given] :
         {std::pair("--export_every_rounds", flags.every_rounds != 0),
          std::pair("--export_assets", !flags.assets.empty()), std::pair("--export_dtype", flags.dtype != "float32")}) {
      if (!given) continue;
      return absl::InvalidArgumentError(absl::StrCat(flag, ": expected --export_dir=DIR with it, got none"));
    }
    return absl::OkStatus();
  }
  std::error_code error;
  std::filesystem::create_directories(flags.directory, error);
  if (!error && access(flags.directory.c_str(), W_OK) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--export_dir: expected a directory to write to, got ",
                                                 flags.directory, ": ",
                                                 error ? error.message() : std::strerror(errno)));
}

Exports::Exports(ExportOptions options, const core::Manifest& manifest,
                 std::function<void(const std::string&, double)> written)
    : options_(std::move(options)), manifest_(manifest), written_(std::move(written)) {}

bool Exports::Due(core::Version rounds) {
  if (!enabled() || options_.every_rounds <= 0) return false;
  if (rounds / options_.every_rounds <= exported_ / options_.every_rounds) return false;
  exported_ = rounds;
  return true;
}

void Exports::WriteNow(const AnchorCopy& copy) const {
  const core::Clock::TimePoint begin = core::SystemClock().Now();
  const core::Version rounds = copy.versions.empty() ? 0 : *std::ranges::min_element(copy.versions);
  const std::string path = absl::StrFormat("%s/%s%06d", options_.directory, kPrefix, rounds);
  const std::string unfinished = path + kUnfinished;
  absl::Status status = formats::WriteExport(
      unfinished, options_.form, manifest_,
      std::vector<std::span<const float>>(copy.tensors.begin(), copy.tensors.end()), copy.versions);
  if (status.ok()) status = Move(unfinished, path);
  const double seconds = core::SystemClock().SecondsSince(begin);
  if (!status.ok()) {
    spdlog::error("no export of round {}, goes on without: {}", rounds, status.ToString());
    return;
  }
  spdlog::info("exported round {} to {}, in {:.1f} s", rounds, path, seconds);
  RemoveOld();
  written_(path, seconds);
}

void Exports::RemoveOld() const {
  std::error_code error;
  std::map<int64_t, std::filesystem::path> whole;  // by rounds; folders with other names are not ours
  for (const auto& entry : std::filesystem::directory_iterator(options_.directory, error)) {
    const std::string name = entry.path().filename();
    absl::string_view digits = name;
    int64_t rounds = 0;
    const bool ours = absl::ConsumePrefix(&digits, kPrefix) && absl::c_all_of(digits, absl::ascii_isdigit) &&
                      absl::SimpleAtoi(digits, &rounds);
    if (ours) whole[rounds] = entry.path();
  }
  while (std::ssize(whole) > options_.keep) {
    std::filesystem::remove_all(whole.begin()->second, error);
    whole.erase(whole.begin());
  }
}

}  // namespace causeway::worker
