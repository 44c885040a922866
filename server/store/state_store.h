// What the coordinator has on disk, and the lock that keeps a second one out.
//
//   <state_dir>/lock                       held while a coordinator runs here
//   <state_dir>/addresses.json             where it listens: {"grpc":"HOST:PORT","http":"HOST:PORT"}
//   <state_dir>/snapshots/000042/          one saved state; the newest complete one counts
//       state.json                         run, epoch, lineage, rules
//       fragment-3.safetensors             anchor, momentum, residual of fragment 3
//       update-3-17.chunks                 encoded update that made version 18 from 17
//       contribution-3-eu.chunks           admitted to the open round of fragment 3
//       hashes.json                        XXH3-64 of each file above; written last
//
// A snapshot is written beside the old ones and renamed when it is whole, so that a full disk or a crash while saving
// loses nothing that was saved before. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/fragment_state.h"
#include "core/manifest.h"
#include "core/membership.h"
#include "core/outer_step.h"
#include "server/store/records.h"
#include "server/store/state_directory.h"

namespace causeway::server {

// An encoded update as it was sent: to version base + 1.
struct SavedUpdate {
  core::Version base = 0;
  core::OuterParameters outer;
  std::vector<core::SiteId> merged;
  std::vector<core::SiteId> sites;
  uint64_t digest = 0;  // of the anchor at version base + 1
  std::vector<ChunkPtr> chunks;
};

struct SavedFragment {
  std::shared_ptr<const core::FragmentState> state;
  std::vector<SavedUpdate> updates;
  std::map<core::SiteId, std::vector<ChunkPtr>> contributions;  // admitted to the open round, in unit order
};

struct SavedState {
  std::string run_config;  // serialized; the store does not look inside
  uint64_t epoch = 0;      // of the coordinator that saved it
  std::string lineage;
  core::Manifest manifest;
  std::vector<std::vector<int>> tensors_of_fragment;
  core::RoundState rounds;
  EvalLoss eval_loss;
  std::vector<SavedFragment> fragments;
};

class StateStore {
 public:
  // Creates the directory if needed and takes its lock. FAILED_PRECONDITION if another coordinator runs there;
  // the errno's status if it cannot be written.
  static absl::StatusOr<std::unique_ptr<StateStore>> Open(const std::string& directory);

  // The newest saved state, or nothing in a new directory. DATA_LOSS names the file that is damaged.
  absl::StatusOr<std::optional<SavedState>> Load() const;

  // Saves and then removes all but the `keep` newest. On failure everything saved before stays.
  absl::Status Save(const SavedState& state, int64_t keep);

  absl::Status WriteAddresses(const std::string& grpc, const std::string& http) const;

 private:
  explicit StateStore(std::unique_ptr<StateDirectory> directory) : directory_(std::move(directory)) {}

  const std::unique_ptr<StateDirectory> directory_;
};

}  // namespace causeway::server
