// The forms of the run's config: the file that a person writes, the bytes that the coordinator sends to each site, the
// JSON that status and results show.
//
//   run.yaml ──ReadRunYaml──► core::RunConfig ──SerializeRunConfig──► Welcome ──ParseRunConfig──► the same at the site
//                                            └─RunConfigJson──► /status, result.json (again run.yaml: JSON is YAML)
//
// The schema is proto/causeway/v1/run_config.proto, the commented example deploy/run.yaml. Every key except run_id has
// a default. All checks run on both ways in, so every core::RunConfig is valid. Errors are INVALID_ARGUMENT:
// "run.yaml:12: sync.fragment_sync_delay: expected 0 to 19 (less than sync_every), got 25".
// Pure, except for the functions that read a file; thread-safe.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "core/run_config.h"

namespace causeway::formats {

// A run's config is completed when the run is created: data.mode, which is now stored with every run, has one default
// in a new run and another in a run stored before the key existed. For a run that continues, `stored` is its config,
// from which keys missing in the file are taken.
absl::StatusOr<core::RunConfig> ParseRunYaml(std::string_view text, const std::string& file_name,
                                             const core::RunConfig* stored = nullptr);
absl::StatusOr<std::string> ReadRunYamlText(const std::string& path);
absl::StatusOr<core::RunConfig> ReadRunYaml(const std::string& path);  // of a new run

// With `placement: sites`: sync.parts becomes the number of shards. INVALID_ARGUMENT: the run has one shard, or another
// sync.parts. Other configs stay as they are.
absl::Status PlaceShards(int shards, core::RunConfig* config);

// Bytes of a causeway.v1.RunConfig with every key written, so that the defaults of a site of another version do not
// matter.
std::string SerializeRunConfig(const core::RunConfig& config);
absl::StatusOr<core::RunConfig> ParseRunConfig(std::string_view bytes);

// The run in one line: "0.82 M parameters, 4 fragments, constant lr because run.steps is 0".
std::string RunSummary(const core::RunConfig& config);

// Every key with its value, under run.yaml's names and in its order, on one line. Not-a-number is null.
std::string RunConfigJson(const core::RunConfig& config);

// Compares the settings that are fixed for a run (formats::Holds). Empty, or the first key that differs:
// "model.hidden_size: expected 128, got 256".
std::string FixedConfigDifference(const core::RunConfig& saved, const core::RunConfig& now);

// Compares the configs of a run's shards, which merge by the same config: all keys except checkpoint and durability,
// which concern each one's disk. As above, with shard 0's config as the expected one.
std::string ShardConfigDifference(const core::RunConfig& lead, const core::RunConfig& own);

}  // namespace causeway::formats
