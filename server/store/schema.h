// journal.sqlite, for people with `sqlite3 journal.sqlite` as well. Digests and hashes are 16 hexadecimal digits,
// versions and site names in lists are JSON, chunk_bytes holds the lengths of a payload's chunks as 32-bit
// little-endian numbers.
//
//   meta           key, value: lineage, former_lineages, epoch, run_config, manifest, tensors_of_fragment; flags:
//                  seeded, started, finished, paused, stopped; eval_loss_start, eval_loss_latest, eval_loss_versions,
//                  eval_loss_by_site; data_of_sites: fingerprints of what sites have said that they train on;
//                  since a first site has joined: model_generation, model_manifest, model_tensors_of_fragment,
//                  model_seeder (manifest and tensors_of_fragment are those of a model that is seeded)
//   sites          every site that ever joined, with the base version of its last merged contribution
//   contributions  what was admitted. segment 0: the payload was pruned. merged_version: the round that merged it, NULL
//                  while there is none; weight: what it counted there
//   rounds         what was decided: the outer step, the sites that share the data, why. digest: of the anchor, NULL
//                  until merged. update_segment 0: no update is stored. config_revision: reserved, 1.
//                  codec_up, codec_down, codec_next_up: of its contributions, of its update, and of contributions to
//                  the version it makes, where the coordinator chooses; NULL: as run_config says
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
};

// Opens the database of a state directory, and makes its tables at the first start. `new_journal` says whether the
// directory is expected to have none: else an empty database is DATA_LOSS.
absl::StatusOr<std::unique_ptr<Database>> OpenJournalDatabase(const std::string& path, bool new_journal);

// FAILED_PRECONDITION if a round to replay was decided by another numerics version.
absl::Status CheckNumerics(Database& database);

// Raises the epoch, and makes a lineage where there is none or a new one is asked for. Durable when it returns OK.
absl::StatusOr<JournalIdentity> BeginLife(Database& database, bool new_lineage);

}  // namespace causeway::server
