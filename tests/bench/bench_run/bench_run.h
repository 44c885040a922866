// The program of benchmarks: cases, each with settings of its own, that print rows of figures, a line of JSON each.
#pragma once

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/status/status.h"

namespace causeway::bench {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

// The case's settings: what the command line gave, else the default in main.cc.
const Json& Settings();
template <typename T>
T Given(const char* name) {
  return Settings().at(name).get<T>();
}

// Prints a row at once.
void Print(const Json& row);

inline double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

inline double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::nth_element(values, values.begin() + std::ssize(values) / 2);
  return values[values.size() / 2];
}

// Cases. INVALID_ARGUMENT for a bad setting; whatever else fails is a failure at run time.
absl::Status Codecs();
absl::Status CodecErrors();
absl::Status MergeOfSites();
absl::Status Offload();
absl::Status OnebitAdam();
absl::Status Partitions();
absl::Status Pipelines();
absl::Status PlaySites();
absl::Status Quality();
absl::Status Receive();
absl::Status RoundPasses();
absl::Status Train();
absl::Status Upload();

}  // namespace causeway::bench
