// The file of measurements of this machine: {"format": 2, "machines": {KEY: {…}}, "walks": {KEY: {…}}}.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace causeway::offload {

std::string ProcessorName();

// The number of values that is measured for a state of this many: one for models of similar sizes, and at most what is
// beyond the caches of most machines (a state of 512 MB, which takes a quarter of a second to touch first).
int64_t MeasuredValues(int64_t parameters);

// The best of a few passes, in seconds: other load on the machine only makes them slower.
double BestSeconds(const std::function<void()>& pass);

// An empty one where there is none, or none that we understand.
nlohmann::json ReadCalibrations(const std::string& path);

// Writes the whole file or nothing: other processes may read and write it now. An entry that they add meanwhile may be
// lost, and is measured again. A link stays one, and what is no regular file is written to. Returns why it could not,
// or nothing.
std::string WriteCalibrations(const std::string& path, const nlohmann::json& json);

// $XDG_CACHE_HOME/causeway/bandwidths.json, or below ~/.cache; empty where there is neither.
std::string DefaultCalibrationPath();

}  // namespace causeway::offload
