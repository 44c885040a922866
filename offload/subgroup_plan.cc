#include "offload/subgroup_plan.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/check.h"

namespace causeway::offload {
namespace {

constexpr int64_t kToldInterleaves = 4;  // of which the reason gives the times

double Seconds(double amount, double rate) { return rate > 0 ? amount / rate : 0; }

SubgroupPlan WithK(SubgroupPlan plan, int64_t k, const Bandwidths& bandwidths) {
  plan.k = k;
  plan.predicted_s =
      PredictUpdate(plan.parameters, plan.DeviceShare(), bandwidths, std::min(plan.subgroup, plan.parameters));
  return plan;
}

SubgroupPlan Fastest(const SubgroupPlan& plan, const Bandwidths& bandwidths) {
  SubgroupPlan best = WithK(plan, core::kAllOnCpu, bandwidths);
  std::string considered = absl::StrFormat("cpu %.3f s", best.predicted_s);
  // Beyond the number of subgroups only the first would be the device's: the same as k = their number.
  for (int64_t k = std::min(plan.num_subgroups(), kLargestInterleave); k >= 1; --k) {
    const SubgroupPlan candidate = WithK(plan, k, bandwidths);
    if (candidate.predicted_s < best.predicted_s) best = candidate;
    if (k <= kToldInterleaves) absl::StrAppendFormat(&considered, ", %d: %.3f s", k, candidate.predicted_s);
  }
  if (best.k > kToldInterleaves) absl::StrAppendFormat(&considered, ", %d: %.3f s", best.k, best.predicted_s);
  best.reason = absl::StrCat("least predicted time of: ", considered);
  return best;
}

}  // namespace

double PredictUpdate(int64_t parameters, double device_share, const Bandwidths& bandwidths, int64_t subgroup,
                     int devices, const HostTraffic& traffic) {
  CHECK(devices >= 1);
  const double all = static_cast<double>(parameters);
  const double own = all / devices;
  const double cpu_share = 1 - device_share;
  const double passing = device_share > 0 ? 12 * static_cast<double>(subgroup) : 0;
  const double to_device = own * (12 * device_share + 2 * cpu_share), to_host = own * 12 * device_share;
  const double on_bus = std::max({Seconds(to_device, bandwidths.to_device) + Seconds(passing, bandwidths.to_host),
                                  Seconds(to_host, bandwidths.to_host) + Seconds(passing, bandwidths.to_device),
                                  Seconds(to_device + to_host, bandwidths.both_ways)});
  const double in_memory =
      Seconds(all * (traffic.on_cpu * cpu_share + traffic.on_device * device_share), bandwidths.dram);
  const double longest = std::max({in_memory, on_bus, Seconds(own * cpu_share, bandwidths.cpu_parameters)});
  if (subgroup == 0 || bandwidths.dram == 0 || bandwidths.cpu_parameters == 0 || on_bus == 0) return longest;
  // The CPU's rate, for all of the host, beside the bus and alone.
  constexpr double kCopy = 2;  // in traffic.on_cpu: the bfloat16 copy's way over the bus
  const double by_bus = all * (traffic.on_device * device_share + kCopy * cpu_share) / on_bus;
  const double most = devices * bandwidths.cpu_parameters, bytes = traffic.on_cpu - kCopy;
  const double beside = std::clamp((bandwidths.dram - by_bus) / bytes, 0.0, most);
  const double alone = std::min(bandwidths.dram / bytes, most);
  return std::max(longest, on_bus + std::max(0.0, all * cpu_share - beside * on_bus) / alone);
}

double SubgroupPlan::DeviceShare() const {
  if (k == core::kAllOnCpu || parameters == 0) return 0;
  int64_t on_device = 0;
  for (int64_t i = 0; i < num_subgroups(); i += k) on_device += Size(i);
  return static_cast<double>(on_device) / static_cast<double>(parameters);
}

SubgroupPlan GivenPlan(const core::OffloadConfig& config, int64_t parameters, const Bandwidths& bandwidths) {
  SubgroupPlan given = WithK({.parameters = parameters, .subgroup = config.subgroup}, config.k, bandwidths);
  given.reason = "the config says so";
  return given;
}

SubgroupPlan PlanSubgroups(const core::OffloadConfig& config, int64_t parameters, const Bandwidths& bandwidths) {
  const SubgroupPlan plan = {.parameters = parameters, .subgroup = config.subgroup};
  if (bandwidths.to_device == 0) {
    SubgroupPlan all_on_cpu = WithK(plan, core::kAllOnCpu, {.dram = 0, .cpu_parameters = bandwidths.cpu_parameters});
    all_on_cpu.reason = "there is no device";
    if (config.k > 0 || config.k == core::kResident) {
      absl::StrAppend(&all_on_cpu.reason, "; the config's k is ", core::InterleaveName(config.k));
    }
    return all_on_cpu;
  }
  if (config.k == core::kAutoInterleave) return Fastest(plan, bandwidths);
  return GivenPlan(config, parameters, bandwidths);
}

}  // namespace causeway::offload
