// A site's checkpoints on its own disk, and the lock that keeps a second process of the site out.
//
//   <checkpoint_dir>/lock, session.json      held while a worker runs here; the session that it took part with last
//   <checkpoint_dir>/000042/                 one checkpoint; the newest counts
//       sync.json                            run, site, session, lineage, step, versions; digests of the other files
//                                            and of itself
//       sync.safetensors                     3.anchor, 3.momentum, 3.residual … of fragment 3; 3.step if θ is yet to
//                                            move by it
//       contribution-3.chunks                sent and not admitted yet
//       trainer.safetensors                  θ and the inner optimizer (worker/optimizer/trainer_file.h)
//
// A checkpoint is written beside the old ones and renamed when it is whole. It is this site's own where its sync.json
// names the run, the site and the folder's number: nothing else is removed or renamed, whatever its name. A copy by
// another number counts where there is no other. Damage is found on reading; the previous checkpoint is then used. If
// all are damaged, they are set aside (000042.damaged), and the site joins anew. Not thread-safe.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/ids.h"
#include "formats/file_digest.h"
#include "formats/posix_file.h"
#include "worker/site/site_checkpoint.h"

namespace causeway::worker {

// The run, site and session that a checkpoint belongs to, and the coordinator's lineage.
struct CheckpointIdentity {
  core::RunId run;
  core::SiteId site;
  core::SessionId session;
  std::string lineage;  // the lineage of the coordinator's state; empty in session.json
  std::string proofs;   // proofs of what the coordinator has said; empty there, too

  friend bool operator==(const CheckpointIdentity&, const CheckpointIdentity&) = default;
};

struct LoadedCheckpoint {
  CheckpointIdentity identity;
  int64_t number = 0;  // the number of the folder that it was written to; 0: it does not say
  SiteCheckpoint site;
  std::string trainer_path;
  std::map<std::string, formats::FileDigest> files;  // beside sync.json, and verified against it
};

class CheckpointStore {
 public:
  // FAILED_PRECONDITION: another worker runs there. PERMISSION_DENIED: it cannot be written.
  static absl::StatusOr<std::unique_ptr<CheckpointStore>> Open(const std::string& directory);

  // The newest whole checkpoint, or nothing; the log names each damaged one and the damage found. INVALID_ARGUMENT if
  // all belong to other runs or sites; the read error if one could not be read.
  absl::StatusOr<std::optional<LoadedCheckpoint>> Load(const core::RunId& run, const core::SiteId& site);
  // The checkpoints that Load has skipped, newest first: the file, the expected value and the value found.
  const std::vector<std::string>& damage() const { return damage_; }

  using SaveTrainer = std::function<absl::StatusOr<formats::FileDigest>(const std::string& path)>;

  // `save_trainer` writes the file at that path and returns its digest. On failure the earlier checkpoints stay; on
  // success all but the newest `keep` are deleted. If the directory was removed it is made again, with a warning.
  absl::Status Save(const CheckpointIdentity& identity, const SiteCheckpoint& checkpoint,
                    const SaveTrainer& save_trainer, int64_t keep);

  // Records the session that this process took part with, so that the next process may take its place at once.
  absl::Status SaveSession(const CheckpointIdentity& identity);
  core::SessionId LoadSession(const core::RunId& run, const core::SiteId& site) const;  // empty: none

 private:
  CheckpointStore(std::string directory, formats::FileDescriptor lock)
      : directory_(std::move(directory)), lock_(std::move(lock)) {}

  static absl::StatusOr<formats::FileDescriptor> Lock(const std::string& directory);
  absl::Status MakeAgainIfGone(const CheckpointIdentity& identity);
  absl::StatusOr<std::optional<LoadedCheckpoint>> SetAside(const std::vector<std::string>& folders) const;
  std::vector<int64_t> OwnNumbers(const CheckpointIdentity& identity) const;  // ascending

  const std::string directory_;
  std::vector<std::string> damage_;
  formats::FileDescriptor lock_;
};

}  // namespace causeway::worker
