#include "worker/loop/exports.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/clock.h"
#include "formats/model_export.h"
#include "formats/posix_file.h"

namespace causeway::worker {
namespace {

constexpr char kPrefix[] = "round-";

absl::Status Move(const std::string& from, const std::string& to) {
  std::error_code error;
  std::filesystem::remove_all(to, error);  // of the same run and rounds, by an earlier process or another site
  if (!error) std::filesystem::rename(from, to, error);
  // Another site has put the same there meanwhile.
  if (error == std::errc::directory_not_empty || error == std::errc::file_exists)
    std::filesystem::remove_all(from, error);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot move ", from, " to ", to, ": ", error.message()));
}

std::set<std::string> NamesOf(const std::string& folder) {
  const auto names = formats::NamesIn(folder).value_or(std::vector<std::string>());
  return {names.begin(), names.end()};
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
    : options_(std::move(options)),
      manifest_(manifest),
      written_(std::move(written)),
      before_(NamesOf(options_.directory)) {}

bool Exports::Due(core::Version rounds) {
  if (!enabled() || options_.every_rounds <= 0) return false;
  if (rounds / options_.every_rounds <= exported_ / options_.every_rounds) return false;
  exported_ = rounds;
  return true;
}

void Exports::WriteNow(const AnchorCopy& copy) const {
  const core::Clock::TimePoint begin = core::SystemClock().Now();
  const core::Version rounds = copy.versions.empty() ? 0 : *std::ranges::min_element(copy.versions);
  const std::string name = absl::StrFormat("%s%06d", kPrefix, rounds);
  const std::string unfinished =
      absl::StrCat(options_.directory, "/", options_.form.run_id, "-", options_.site, ".partial");
  absl::Status status = formats::WriteExport(
      unfinished, options_.form, manifest_,
      std::vector<std::span<const float>>(copy.tensors.begin(), copy.tensors.end()), copy.versions);
  std::string path;
  if (status.ok()) {
    const absl::StatusOr<std::string> place = PlaceOf(name);
    status = place.ok() ? Move(unfinished, *place) : place.status();
    path = place.value_or("");
  }
  const double seconds = core::SystemClock().SecondsSince(begin);
  if (!status.ok()) {
    spdlog::error("no export of round {}, goes on without: {}", rounds, status.ToString());
    return;
  }
  spdlog::info("exported round {} to {}, in {:.1f} s", rounds, path, seconds);
  RemoveOld(path, rounds);
  written_(path, seconds);
}

absl::StatusOr<std::string> Exports::PlaceOf(const std::string& name) const {
  std::string path = options_.directory + "/" + name;
  for (const std::string& place : {path, absl::StrCat(path, "-", options_.form.run_id)}) {
    std::error_code error;
    const bool taken = std::filesystem::exists(std::filesystem::symlink_status(place, error));
    const auto found = taken ? formats::FindExport(place) : std::nullopt;
    if (!taken || (found && found->run_id == options_.form.run_id)) return place;
    path = place;
  }
  return absl::UnavailableError(absl::StrCat(path, " is there, and no export of run ", options_.form.run_id));
}

void Exports::RemoveOld(const std::string& latest, core::Version rounds) const {
  // By the time of writing: after a rollback, or in a new run of that name, the rounds begin anew.
  std::set<std::pair<std::filesystem::file_time_type, std::string>> whole;
  std::error_code error;
  for (const std::string& folder : formats::NamesIn(options_.directory).value_or(std::vector<std::string>())) {
    const std::string path = absl::StrCat(options_.directory, "/", folder);
    const auto found = formats::FindExport(path);
    if (path == latest || !found || found->run_id != options_.form.run_id) continue;
    // A copy by another name stays.
    const std::string name = absl::StrFormat("%s/%s%06d", options_.directory, kPrefix, found->rounds);
    if (path != name && path != absl::StrCat(name, "-", found->run_id)) continue;
    if (found->rounds > rounds && !before_.contains(folder)) continue;  // of a site that is ahead
    const auto written = std::filesystem::last_write_time(path + "/model.safetensors", error);
    whole.emplace(written, path);
  }
  while (std::ssize(whole) > options_.keep - 1) {
    std::filesystem::remove_all(whole.begin()->second, error);
    whole.erase(whole.begin());
  }
}

}  // namespace causeway::worker
