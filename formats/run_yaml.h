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

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "causeway/v1/run_config.pb.h"
#include "core/run_config.h"
#include "formats/field_check.h"

namespace causeway::formats {

// The model of a run that starts from a Hugging Face folder: its architecture is in that folder's config.json, so that
// run.yaml need not repeat it.
//
//   model: {kind: llama, init_from: DIR} ─┐
//                                         ├─► every key of the architecture, as if run.yaml had them
//   DIR/config.json, or the stored run ───┘
//
// Done by the coordinator when the run is created: it needs only config.json of DIR. The weights are needed at the
// first site, and a continued run needs neither.

// Does nothing without init_from. INVALID_ARGUMENT for a key that is given and differs from config.json (a smaller
// max_position_embeddings is the same model), for a config.json of a model that cannot be trained here, and where
// neither run.yaml nor a config.json that can be read has the architecture.
absl::Status CompleteModel(const Origin& origin, v1::Model& model);

// A run's config is completed when the run is created: data.mode, which is now stored with every run, has one default
// in a new run and another in a run stored before the key existed. For a run that continues, `stored` is its config,
// from which keys missing in the file are taken.
absl::StatusOr<core::RunConfig> ParseRunYaml(std::string_view text, const std::string& file_name,
                                             const core::RunConfig* stored = nullptr);
absl::StatusOr<std::string> ReadRunYamlText(const std::string& path);
absl::StatusOr<core::RunConfig> ReadRunYaml(const std::string& path);  // the config of a new run

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
