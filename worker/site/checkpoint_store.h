// A site's checkpoints on its own disk, and the lock that keeps a second process of the site out.
//
//   <checkpoint_dir>/lock, session.json      held while a worker runs here; the session that it took part with last
//   <checkpoint_dir>/000042/                 one checkpoint; the newest counts
//       sync.json                            run, site, session, lineage, step, versions; digests of the other files
//                                            and of itself
//       sync.safetensors                     3.anchor, 3.momentum, 3.residual … of fragment 3; 3.step if θ is yet to
//                                            move by it
//       contribution-3.chunks                sent and not admitted yet
//       trainer.safetensors                  θ and the inner optimizer (worker/train writes it)
//
// A checkpoint is written beside the old ones and renamed when it is whole. Its format is 2; checkpoints of format 1,
// which have the gradient of the last update (3.staging) instead of the step, are read as well, as are those without
// digests. Damage is found when it is read: the checkpoint before counts then. If all are, they are set aside
// (000042.damaged), and the site joins anew. Not thread-safe.
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

// Whose a checkpoint is, and of which life.
struct CheckpointIdentity {
  core::RunId run;
  core::SiteId site;
  core::SessionId session;
  std::string lineage;  // of the coordinator's state; empty in session.json

  friend bool operator==(const CheckpointIdentity&, const CheckpointIdentity&) = default;
};

struct LoadedCheckpoint {
  CheckpointIdentity identity;
  SiteCheckpoint site;
  std::string trainer_path;
  std::map<std::string, formats::FileDigest> files;  // beside sync.json; each is as it says
};

class CheckpointStore {
 public:
  // FAILED_PRECONDITION: another worker runs there. PERMISSION_DENIED: it cannot be written.
  static absl::StatusOr<std::unique_ptr<CheckpointStore>> Open(const std::string& directory);

  // The newest checkpoint that is whole, or nothing; each that is damaged is named in the log, with what was found.
  // INVALID_ARGUMENT if it is of another run or site; what reading said if it could not be read.
  absl::StatusOr<std::optional<LoadedCheckpoint>> Load(const core::RunId& run, const core::SiteId& site);
  // The checkpoints that Load has passed over, newest first: file, what was expected and what was found.
  const std::vector<std::string>& damage() const { return damage_; }

  using SaveTrainer = std::function<absl::StatusOr<formats::FileDigest>(const std::string& path)>;

  // `save_trainer` writes the file of that path, and returns what it wrote. On failure the checkpoints before stay;
  // otherwise all but the newest `keep` go.
  absl::Status Save(const CheckpointIdentity& identity, const SiteCheckpoint& checkpoint,
                    const SaveTrainer& save_trainer, int64_t keep);

  // The session that a process took part with: the next one may take its place at once.
  absl::Status SaveSession(const CheckpointIdentity& identity);
  core::SessionId LoadSession(const core::RunId& run, const core::SiteId& site) const;  // empty: none

 private:
  CheckpointStore(std::string directory, formats::FileDescriptor lock)
      : directory_(std::move(directory)), lock_(std::move(lock)) {}

  absl::StatusOr<std::optional<LoadedCheckpoint>> SetAside(const std::vector<int64_t>& numbers) const;

  const std::string directory_;
  std::vector<std::string> damage_;
  const formats::FileDescriptor lock_;
};

}  // namespace causeway::worker
