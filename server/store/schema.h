// journal.sqlite: the rows that the records of the log (state_log.h) add up to, made anew from them at each start. For
// people with `sqlite3 journal.sqlite` as well, to read: what they write is gone at the next start. Digests and hashes
// are 16 hexadecimal digits, versions and site names in lists are JSON, chunk_bytes and chunk_digests hold the lengths
// and the XXH3-64 of a payload's chunks as little-endian numbers of 32 and 64 bits.
//
//   meta           key, value: lineage, former_lineages, epoch, run_config, manifest, tensors_of_fragment; flags:
//                  seeded, started, finished, paused, stopped; eval_loss_start, eval_loss_latest, eval_loss_versions,
//                  eval_loss_by_site; data_of_sites: fingerprints of what sites have said that they train on;
//                  since a first site has joined: model_generation, model_manifest, model_tensors_of_fragment,
//                  model_seeder (manifest and tensors_of_fragment are those of a model that is seeded)
//   sites          every site that ever joined, with the base version of its last merged contribution; refusals: of
//                  contributions in a row; quarantined: after too many; starts_anew: from the anchor, when it joins;
//                  releases: how often an operator has let it out
//   contributions  what was admitted. segment 0: the payload was pruned. merged_version: the round that merged it, NULL
//                  while there is none; weight: what it counted there; norm: of what it decodes to, NULL: not known
//   rounds         what was decided: the outer step, the sites that share the data, why. digest: of the anchor, NULL
//                  until merged. update_segment 0: no update is stored. config_revision: reserved, 1.
//                  codec_up, codec_down, codec_next_up: of its contributions, of its update, and of contributions to
//                  the version it makes, where the coordinator chooses; NULL: as run_config says. rolled_back_to: it
//                  merged nothing, its version has the parameters of that one; NULL: it is a round like others
//   snapshots      files in snapshots/. digest: of the anchor; hash: XXH3-64 of the file
//   events         what happened, with rising ids
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/store/sqlite.h"

namespace causeway::server {

struct JournalIdentity {
  uint64_t epoch = 0;  // of this life
  std::string lineage;
  std::vector<std::string> former_lineages;  // oldest first
  std::string continues;                     // one of them, whose versions are bit by bit this one's; empty: none
};

extern const char kTables[];  // makes them

// Where a state directory has its rows, and where a start puts them together before it takes them.
std::string IndexPath(const std::string& state_dir);
std::string NewIndexPath(const std::string& state_dir);

// Makes the new index from the records' changes. `expected_new` says whether the directory is expected to hold nothing:
// else the lack of changes is DATA_LOSS. Where a database lies there without a log, it stays as it is and is refused.
absl::StatusOr<std::unique_ptr<Database>> BuildIndex(const std::string& state_dir,
                                                     const std::vector<std::string>& changes, bool expected_new);

// The new index takes the place of the one before.
absl::Status InstallIndex(const std::string& state_dir);

// To write, or for others to read meanwhile. The log is durable; the file need not be.
absl::StatusOr<std::unique_ptr<Database>> OpenIndex(const std::string& state_dir, Database::Mode mode);

// FAILED_PRECONDITION if a round to replay was decided by another numerics version.
absl::Status CheckNumerics(Database& database);

absl::StatusOr<uint64_t> LastEpoch(Database& database);  // 0: none

// Raises the epoch, and makes a lineage where there is none or a new one is asked for. In a transaction of the caller.
absl::StatusOr<JournalIdentity> BeginLife(Database& database, bool new_lineage);
// From the next life on that lineage is a former one, and what this state goes on from. In a transaction of the caller.
absl::Status Continue(Database& database, const std::string& lineage);

}  // namespace causeway::server
