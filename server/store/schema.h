// journal.sqlite: the rows that result from the records of the log (state_log.h), rebuilt from them at each start.
// People may read it with `sqlite3 journal.sqlite`, but changes that they make are lost at the next start. Digests and
// hashes are 16 hexadecimal digits, versions and site names in lists are JSON, chunk_bytes and chunk_digests hold the
// lengths and the XXH3-64 of a payload's chunks as little-endian numbers of 32 and 64 bits.
//
//   meta           key, value: lineage, former_lineages, secret (run/claims.h), epoch, run_config, manifest,
//                  tensors_of_fragment; floors, unsynced_end: of lives that a relaxed journal may have cut short;
//                  flags: seeded, started, finished, paused, stopped; eval_loss_start, eval_loss_latest,
//                  eval_loss_versions, eval_loss_by_site; data_of_sites: fingerprints of the data that sites declared;
//                  since a first site has joined: model_generation, model_manifest, model_tensors_of_fragment,
//                  model_seeder (manifest and tensors_of_fragment are those of a seeded model)
//   sites          every site that ever joined, with the base version of its last merged contribution; refusals: of
//                  contributions in a row; quarantined: after too many; starts_anew: from the anchor, when it joins;
//                  releases: how often an operator has let it out
//   contributions  what was admitted. segment 0: the payload was pruned. merged_version: the round that merged it, NULL
//                  while there is none; weight: λ there; norm: of the decoded values, NULL: unknown, or no history any
//                  more; factor: by which its values were scaled
//   rounds         what was decided: the outer step, the sites that share the data, why. digest: of the anchor, NULL
//                  until merged. update_segment 0: no update is stored. config_revision: of the settings
//                  by which it was decided. run_tokens: of all contributions merged until its version.
//                  gain: of its codecs, by which the step was multiplied.
//                  codec_up, codec_down, codec_next_up: of its contributions, of its update, and of contributions to
//                  the version it makes, where the coordinator chooses; NULL: as run_config says. rolled_back_to: it
//                  merged nothing, its version has the parameters of that one; NULL: an ordinary round
//   settings       the changes of the run's settings: number, from where it holds, all settings with it. digest: over
//                  the one before (settings_before in meta, where the first is not number 1) and what decides
//   snapshots      files in snapshots/. digest: of the anchor; hash: XXH3-64 of the file
//   events         what happened, with rising ids
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/store/records.h"
#include "server/store/sqlite.h"

namespace causeway::server {

extern const char kTables[];  // the SQL that creates the tables

// The path of a state directory's rows, and the path at which a start builds them first.
std::string IndexPath(const std::string& state_dir);
std::string NewIndexPath(const std::string& state_dir);

// Builds the new index from the records' changes. `expected_new` says whether the directory is expected to be empty: if
// not, a lack of changes is DATA_LOSS. A database without a log stays as it is and is refused.
absl::StatusOr<std::unique_ptr<Database>> BuildIndex(const std::string& state_dir,
                                                     const std::vector<std::string>& changes, bool expected_new);

// Replaces the previous index with the new one.
absl::Status InstallIndex(const std::string& state_dir);

// Opens the index to write, or to read it concurrently. The log is durable; this file need not be.
absl::StatusOr<std::unique_ptr<Database>> OpenIndex(const std::string& state_dir, Database::Mode mode);

// FAILED_PRECONDITION if a round to replay was decided by another numerics version.
absl::Status CheckNumerics(Database& database);

absl::StatusOr<uint64_t> LastEpoch(Database& database);  // 0: none

// Creates a lineage if there is none or a new one is requested. In a transaction of the caller.
absl::StatusOr<JournalIdentity> BeginLife(Database& database, uint64_t epoch, bool new_lineage);
// From the next life on, `lineage` and the present lineage are former ones, and a new one replaces them: this state
// continues `lineage`. Contributions that are not merged, and all updates, are dropped. In a transaction of the caller.
absl::Status Continue(Database& database, const std::string& lineage);
// Adds the present versions to the floors, of which it keeps the newest. In a transaction of the caller.
absl::Status RecordFloor(Database& database, JournalIdentity& identity);

inline constexpr char kUnsyncedEnd[] = "unsynced_end";  // 1 while a relaxed journal is at work
inline constexpr char kCopiedAs[] = "copied_as";  // the set whose log this is (copies.h); empty once it was restored
inline constexpr char kHandedTo[] = "handed_to";  // key of meta: the standby to which this life has handed over

// The addresses of all coordinators that the run has known, by place, the first one's is 0: "" this one's, "-" that of a
// forgotten one. No place is given twice, so that no two epochs of promotions are equal. Empty: there never was another.
absl::StatusOr<std::vector<std::string>> ReadCoordinators(Database& database);
int OwnPlace(const std::vector<std::string>& coordinators);
// `formerly`: its address before, if it is another one.
absl::Status AddStandby(Database& database, const std::string& address, const std::string& formerly);
absl::Status ForgetStandby(Database& database, const std::string& address);
// The standby at that place leads, this one, in place of the former leader.
absl::Status TurnStandby(Database& database, int place, const std::string& leader);

}  // namespace causeway::server
