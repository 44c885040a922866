#include "offload/calibration.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/clock.h"
#include "offload/adamw.h"
#include "offload/calibration_file.h"
#include "offload/host_array.h"
#include "offload/on_all_threads.h"
#include "offload/walk_choice.h"

namespace causeway::offload {
namespace {

using Json = nlohmann::json;

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

}  // namespace causeway::offload
