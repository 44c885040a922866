#include "offload/calibration_file.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/clock.h"
#include "core/json_text.h"

namespace causeway::offload {
namespace {

using Json = nlohmann::json;

constexpr int kFormat = 2;  // rises when the same key would mean something else

}  // namespace

std::string ProcessorName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown processor";
}

int64_t MeasuredValues(int64_t parameters) {
  constexpr uint64_t kMostValues = uint64_t{32} << 20;
  return static_cast<int64_t>(std::bit_floor(std::clamp<uint64_t>(static_cast<uint64_t>(parameters), 1, kMostValues)));
}

double BestSeconds(const std::function<void()>& pass) {
  constexpr int kPasses = 3;
  double best = 0;
  for (int i = 0; i < kPasses; ++i) {
    const core::Clock::TimePoint begin = core::SystemClock().Now();
    pass();
    const double seconds = core::SystemClock().SecondsSince(begin);
    best = i == 0 ? seconds : std::min(best, seconds);
  }
  return std::max(best, 1e-9);
}

nlohmann::json ReadCalibrations(const std::string& path) {
  std::error_code error;  // reading a folder would throw
  std::ifstream file(std::filesystem::is_regular_file(path, error) ? path : "");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  std::optional<Json> json = core::TryParseJson<Json>(text);
  if (json && json->is_object() && json->contains("format") && (*json)["format"] == kFormat &&
      (*json)["machines"].is_object()) {
    return *std::move(json);
  }
  return {{"format", kFormat}, {"machines", Json::object()}};
}

std::string WriteCalibrations(const std::string& given, const nlohmann::json& json) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(given).parent_path(), error);
  const std::filesystem::path behind = std::filesystem::weakly_canonical(given, error);
  const std::string path = error ? given : behind.string();
  const bool replaces = !std::filesystem::exists(path, error) || std::filesystem::is_regular_file(path, error);
  if (!replaces) return (std::ofstream(path) << json.dump(1) << "\n").flush() ? "" : path + " cannot be written";
  const std::string partial = absl::StrCat(path, ".", getpid());
  if (!(std::ofstream(partial) << json.dump(1) << "\n").flush()) return absl::StrCat(path, " cannot be written");
  std::filesystem::rename(partial, path, error);
  return error ? absl::StrCat(path, ": ", error.message()) : "";
}

std::string DefaultCalibrationPath() {
  const auto folder = [](const char* variable, const char* below) {
    const char* value = std::getenv(variable);
    return value == nullptr || *value == '\0' ? "" : absl::StrCat(value, below, "/causeway/bandwidths.json");
  };
  const std::string path = folder("XDG_CACHE_HOME", "");
  return path.empty() ? folder("HOME", "/.cache") : path;
}

}  // namespace causeway::offload
