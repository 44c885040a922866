// The bandwidths that a subgroup plan needs, measured on the worker's machine, in under two seconds, and kept in a
// file.
//
//   CPU        AdamW on a state like the run's, all threads of the team     parameters a second
//   memory     b = a + b in place, all threads                              bytes a second
//   the bus    copies of pinned memory, each way and both         bytes a second
//
// Takes the best of a few passes: other load on the machine only makes them slower. Blocks its caller, whose thread is
// one of the team's. Source: Deep Optimizer States (arXiv 2410.21316) section 4, which calibrates by the first steps of
// a run.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "core/thread_team.h"
#include "offload/adamw.h"
#include "offload/device.h"
#include "offload/subgroup_plan.h"

namespace causeway::offload {

// The file of measurements of this machine: {"format": 2, "machines": {KEY: {…}}, "walks": {KEY: {…}}}.

std::string ProcessorName();

// The number of values to measure with for a state of `parameters`: the same for models of similar sizes, and at most
// what is beyond the caches of most machines (a state of 512 MB, which takes a quarter of a second to touch first).
int64_t MeasuredValues(int64_t parameters);

// The file's contents; an empty object if there is no file, or we do not understand it.
nlohmann::json ReadCalibrations(const std::string& path);

// Writes the whole file or nothing: other processes may read and write it now. An entry that they add meanwhile may be
// lost, and is measured again. A link stays one, and a file that is not regular is written to directly. Returns why it
// failed; empty: it did not.
std::string WriteCalibrations(const std::string& path, const nlohmann::json& json);

// $XDG_CACHE_HOME/causeway/bandwidths.json, or below ~/.cache; empty where there is neither.
std::string DefaultCalibrationPath();

// `device` may be null. RESOURCE_EXHAUSTED and the like come from the device.
absl::StatusOr<Bandwidths> MeasureBandwidths(int64_t parameters, core::ThreadTeam& team, Device* device);

// A smaller state stays in the caches while it is measured, but not in a step: little is learned from it, and little
// time is at stake.
inline constexpr int64_t kLeastBeyondCaches = int64_t{1} << 20;

// Sets AdamW's walk for this machine (ChooseWalk), and reads the file's entry for it, the device and the size; if
// there is none, measures and adds one, unless the state is that small. A file that cannot be read or written only
// costs the measurement: `note` says why.
struct Calibration {
  Bandwidths bandwidths;
  bool measured = false;  // measured by this call
  std::string note;
};
absl::StatusOr<Calibration> Calibrate(int64_t parameters, core::ThreadTeam& team, Device* device,
                                      const std::string& path);

// AdamW's way through memory on this machine, in the same file. On Intel instructions that fetch ahead gain 5 to 10 %; on
// some AMD they lose more.

// Calls work(first, count) for all parts of 0 … values − 1, on the threads that will step.
using OnThreads = absl::FunctionRef<void(int64_t values, absl::FunctionRef<void(int64_t first, int64_t count)> work)>;

// The fastest way with as many values, timed in turns, also on a busy machine; the default, unless it loses by 1 %.
AdamWWalk MeasureWalk(int64_t values, OnThreads on_threads);

// Sets the file's choice for this processor and number of threads, or measures and adds one. Not for small states.
void ChooseWalk(int64_t values, int threads, OnThreads on_threads, const std::string& path);

}  // namespace causeway::offload
