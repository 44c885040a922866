// The keys of run.yaml, as `causewayctl settings`, docs/reference.md and `causewayctl set` know them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/run_config.h"
#include "formats/fields.h"

namespace causeway::formats {

struct Setting {
  std::string key;  // "inner.lr"
  Holds holds = Holds::kFixed;
  bool settable = false;  // whether `causewayctl set` changes it
  std::string says;       // its description in one clause
  std::string expected;   // "0 to 1"
  std::string standard;   // its default, as JSON; empty: none
};

const std::vector<Setting>& Settings();  // in the order of docs/reference.md
const Setting* FindSetting(const std::string& key);
const char* HoldsText(Holds holds);  // "from a step on"

// Changes of a run's settings as they are typed: key and value, in YAML.
using SettingsChanges = std::vector<std::pair<std::string, std::string>>;

// The config with these changes. INVALID_ARGUMENT: an unknown key or a value that is not accepted, beside the others;
// FAILED_PRECONDITION: a key that cannot change in a running run, with the reason.
absl::StatusOr<core::RunConfig> ChangedConfig(const core::RunConfig& config, const SettingsChanges& changes);

// A run that goes on with another run.yaml: `run`, with the settings that each start takes from the file.
core::RunConfig ConfigAtStart(const core::RunConfig& run, const core::RunConfig& file);

// The same for a stored run, serialized; until sites have entered (`started`), all settings are the file's.
// FAILED_PRECONDITION: a key that is fixed differs: "model.hidden_size: expected 128, got 256".
struct FileOfRun {
  const std::string& yaml;
  const std::string path;
  int shards = 1;
};
absl::StatusOr<core::RunConfig> ContinuedConfig(const std::string& stored, bool started, const FileOfRun& file);

// The settings that differ and that no start changes, each with the command that does: "outer.lr (0.7; the run has
// 0.5): the run's value holds; causewayctl set outer.lr=0.7 changes it".
std::vector<std::string> ConfigDifferences(const core::RunConfig& run, const core::RunConfig& file);

// The same for the text of that file; the run as it began, and serialized as it is now (empty: unchanged).
std::vector<std::string> FileDifferences(const core::RunConfig& first, const std::string& newest,
                                         const std::string& run_yaml, const std::string& path);

// The settings that make `after` of `before`, as ChangedConfig takes them.
SettingsChanges ChangesBetween(const core::RunConfig& before, const core::RunConfig& after);
// The same for people: "inner.lr: 0.003 → 0.0001", "values.gate: 8.0 → 4.0 (at once)".
std::vector<std::string> ConfigChanges(const core::RunConfig& before, const core::RunConfig& after);
// The keys among these whose change holds at once.
std::vector<std::string> KeysAtOnce(const SettingsChanges& changes);

}  // namespace causeway::formats
