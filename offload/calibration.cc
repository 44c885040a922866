#include "offload/calibration.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/json_text.h"
#include "offload/host_array.h"

namespace causeway::offload {
namespace {

using Json = nlohmann::json;

constexpr double kWorth = 0.99;  // another walk is taken if it needs at most this share of the default's time
constexpr int kTurns = 5;
constexpr char kWalks[] = "walks", kFetchesName[] = "fetches_ahead", kStreamsName[] = "streams_copy";

bool Parse(const nlohmann::json& json, AdamWWalk& walk) {
  for (const auto& [name, field] :
       {std::pair(kFetchesName, &AdamWWalk::fetches_ahead), {kStreamsName, &AdamWWalk::streams_copy}}) {
    if (!json.is_object() || !json.contains(name) || !json[name].is_boolean()) return false;
    walk.*field = json[name];
  }
  return true;
}

// The best of a few passes: other load on the machine only makes them slower.
double BestSeconds(absl::FunctionRef<void()> pass) {
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

constexpr int kFormat = 2;  // rises when the same key would mean something else

constexpr int64_t kCopyBytes = int64_t{256} << 20;

struct HostRates {
  double dram, cpu_parameters;
};

HostRates MeasureHost(int64_t values, core::ThreadTeam& team, bool with_copy) {
  const auto bytes = static_cast<size_t>(values) * sizeof(float);
  const HostArray gradient(bytes), first_moment(bytes), second_moment(bytes), parameters(bytes), copy(bytes / 2);
  const AdamWArrays arrays = {.gradient = gradient.data(),
                              .first_moment = first_moment.Values<float>().data(),
                              .second_moment = second_moment.Values<float>().data(),
                              .parameters = parameters.Values<float>().data(),
                              .bfloat16_copy = with_copy ? copy.Values<uint16_t>().data() : nullptr,
                              .count = values};
  std::ranges::fill(gradient.Values<float>(), 0.25f);
  const AdamWConstants constants = MakeConstants({}, 1);
  const double update_s = BestSeconds([&] {
    OnAllThreads(team, values, [&](int64_t first, int64_t count) { AdamWStep(constants, arrays.Part(first, count)); });
  });
  const double add_s = BestSeconds([&] {
    OnAllThreads(team, values, [&](int64_t first, int64_t count) {
      const float* a = gradient.Values<float>().data() + first;
      float* b = parameters.Values<float>().data() + first;
      for (int64_t i = 0; i < count; ++i) b[i] += a[i];
    });
  });
  const auto all = static_cast<double>(values);
  return {.dram = 12 * all / add_s, .cpu_parameters = all / update_s};
}

absl::Status MeasureBus(Device& device, Bandwidths& bandwidths) {
  const HostArray host(kCopyBytes);
  RETURN_IF_ERROR(device.Pin(host.data(), host.bytes()));
  const absl::StatusOr<void*> memory = device.Allocate(host.bytes());
  if (memory.ok()) {
    const Device::Event done = device.MakeEvent();
    const auto rate = [&](Queue queue, const auto& copy) {
      return kCopyBytes / BestSeconds([&] {
               copy(queue);
               device.Record(done, queue);
               device.AwaitOnHost(done);
             });
    };
    const size_t half = host.bytes() / 2;
    char* const here = static_cast<char*>(host.data());
    char* const there = static_cast<char*>(*memory);
    bandwidths.to_device =
        rate(Queue::kPrefetch, [&](Queue queue) { device.CopyToDevice(queue, there, here, host.bytes()); });
    bandwidths.to_host = rate(Queue::kFlush, [&](Queue queue) { device.CopyToHost(queue, here, there, host.bytes()); });
    const Device::Event returned = device.MakeEvent();
    bandwidths.both_ways = rate(Queue::kPrefetch, [&](Queue queue) {
      device.CopyToHost(Queue::kFlush, here, there, half);
      device.CopyToDevice(queue, there + half, here + half, half);
      device.Record(returned, Queue::kFlush);
      device.Await(queue, returned);
    });
    device.Free(*memory);
  }
  device.Unpin(host.data());
  return memory.ok() ? device.status() : memory.status();
}

std::string KeyOf(int64_t values, const core::ThreadTeam& team, const Device* device) {
  return absl::StrCat(ProcessorName(), ", ", team.threads(), " threads, ", values, " values, ",
                      device == nullptr ? "no device" : device->name());
}

constexpr std::pair<const char*, double Bandwidths::*> kFields[] = {{"dram", &Bandwidths::dram},
                                                                    {"to_device", &Bandwidths::to_device},
                                                                    {"to_host", &Bandwidths::to_host},
                                                                    {"both_ways", &Bandwidths::both_ways},
                                                                    {"cpu_parameters", &Bandwidths::cpu_parameters}};

Json ToJson(const Bandwidths& bandwidths) {
  Json json;
  for (const auto& [name, field] : kFields) json[name] = bandwidths.*field;
  return json;
}

bool ParseBandwidths(const Json& json, Bandwidths& bandwidths) {
  for (const auto& [name, field] : kFields) {
    if (!json.is_object() || !json.contains(name) || !json[name].is_number()) return false;
    bandwidths.*field = json[name];
  }
  return bandwidths.dram > 0 && bandwidths.cpu_parameters > 0;
}

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

absl::StatusOr<Bandwidths> MeasureBandwidths(int64_t parameters, core::ThreadTeam& team, Device* device) {
  const int64_t values = MeasuredValues(parameters);
  const HostRates host = MeasureHost(values, team, device != nullptr);
  Bandwidths bandwidths{.dram = host.dram, .cpu_parameters = host.cpu_parameters};
  if (device != nullptr) RETURN_IF_ERROR(MeasureBus(*device, bandwidths));
  return bandwidths;
}

absl::StatusOr<Calibration> Calibrate(int64_t parameters, core::ThreadTeam& team, Device* device,
                                      const std::string& path) {
  const int64_t values = MeasuredValues(parameters);
  const auto on_team = [&](int64_t all, absl::FunctionRef<void(int64_t first, int64_t count)> work) {
    OnAllThreads(team, all, work);
  };
  ChooseWalk(parameters, team.threads(), on_team, path);
  const bool keep = !path.empty() && values >= kLeastBeyondCaches;
  const std::string key = KeyOf(values, team, device);
  Calibration calibration;
  Json known = keep ? ReadCalibrations(path) : Json();
  if (keep && ParseBandwidths(known["machines"][key], calibration.bandwidths)) return calibration;
  ASSIGN_OR_RETURN(calibration.bandwidths, MeasureBandwidths(parameters, team, device));
  calibration.measured = true;
  if (!keep) return calibration;
  known = ReadCalibrations(path);
  known["machines"][key] = ToJson(calibration.bandwidths);
  calibration.note = WriteCalibrations(path, known);
  return calibration;
}

AdamWWalk MeasureWalk(int64_t values, OnThreads on_threads) {
  const AdamWWalk before = CurrentWalk();
  const int64_t count = MeasuredValues(values);
  const auto bytes = static_cast<size_t>(count) * sizeof(float);
  const HostArray gradient(bytes), first_moment(bytes), second_moment(bytes), parameters(bytes), copy(bytes / 2);
  std::ranges::fill(gradient.Values<float>(), 0.25f);
  const AdamWConstants constants = MakeConstants({}, 1);
  const auto seconds = [&](AdamWWalk walk, bool with_copy) {
    SetWalk(walk);
    const AdamWArrays arrays{.gradient = gradient.data(),
                             .first_moment = first_moment.Values<float>().data(),
                             .second_moment = second_moment.Values<float>().data(),
                             .parameters = parameters.Values<float>().data(),
                             .bfloat16_copy = with_copy ? copy.Values<uint16_t>().data() : nullptr,
                             .count = count};
    const core::Clock::TimePoint begin = core::SystemClock().Now();
    on_threads(count, [&](int64_t first, int64_t size) { AdamWStep(constants, arrays.Part(first, size)); });
    return std::max(core::SystemClock().SecondsSince(begin), 1e-9);
  };
  // In turns, and by the median of their ratios, since other work on this machine comes and goes.
  const auto gains = [&](AdamWWalk one, AdamWWalk other, bool with_copy) {
    std::array<double, kTurns> ratios;
    for (double& ratio : ratios) ratio = seconds(other, with_copy) / seconds(one, with_copy);
    std::ranges::nth_element(ratios, ratios.begin() + kTurns / 2);
    return ratios[kTurns / 2] > kWorth;
  };
  AdamWWalk best;
  seconds(best, true);  // touches the arrays
  best.fetches_ahead = gains(best, {.fetches_ahead = false}, false);
  best.streams_copy = gains(best, {.fetches_ahead = best.fetches_ahead, .streams_copy = false}, true);
  SetWalk(before);
  return best;
}

void ChooseWalk(int64_t values, int threads, OnThreads on_threads, const std::string& path) {
  if (values < kLeastBeyondCaches) return;
  const std::string key = absl::StrCat(ProcessorName(), ", ", threads, " threads");
  nlohmann::json known = ReadCalibrations(path);
  AdamWWalk walk;
  if (known.contains(kWalks) && known[kWalks].is_object() && Parse(known[kWalks].value(key, nlohmann::json()), walk)) {
    return SetWalk(walk);
  }
  walk = MeasureWalk(values, on_threads);
  SetWalk(walk);
  if (!known[kWalks].is_object()) known[kWalks] = nlohmann::json::object();
  known[kWalks][key] = {{kFetchesName, walk.fetches_ahead}, {kStreamsName, walk.streams_copy}};
  if (!path.empty()) WriteCalibrations(path, known);  // one that cannot be written costs the measurement
}

}  // namespace causeway::offload
