// The payloads of sites: contributions to the open round of each fragment, those that arrive and those that were admitted, and
// the initial parameters. Here are their bytes; the rules' facts about them are in core::RoundState.
//
//   header ─ BeginUpload ─► chunks arrive ─ CompleteUpload ─► the rules admit or refuse ─► journal ─► verdict
//                                                                     a round closes ─ Take ─► merge
//   RequestSeed ─ Expect ─► Part … (chunks arrive) ─► IsWhole ─► Take ─► SaveSeed ─► Parameters
//
// One owner at a time. The functions are pure, but for files.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "causeway/v1/coordinator.pb.h"
#include "core/fragment_map.h"
#include "core/ids.h"
#include "server/merge/contribution.h"
#include "server/run/parameters.h"
#include "server/store/journal.h"

namespace causeway::server {

struct RunParts;

v1::Verdict AdmittedVerdict();

// The initial parameters on their way from the site that supplies them, until all of this coordinator's are here.
class Seeding {
 public:
  void Void() { parts_.clear(); }  // discards what has come, and expects nothing
  void Expect(int num_fragments) { parts_.assign(num_fragments, nullptr); }
  bool expects() const { return !parts_.empty(); }
  bool expects(core::FragmentId fragment) const { return fragment >= 0 && fragment < std::ssize(parts_); }

  // The part of an expected fragment, whose chunks are being received.
  std::shared_ptr<Contribution> Part(const core::Fragment& fragment);
  int64_t NumArrived() const;
  bool IsWhole(const core::FragmentMap& map, const core::Shard& shard) const;  // has all that the shard owns
  Contributions Take() { return std::exchange(parts_, {}); }

 private:
  Contributions parts_;  // by fragment; null: nothing has come; empty: none expected
};

class OpenUploads {
 public:
  struct Arriving {
    std::shared_ptr<Contribution> contribution;
    core::Version base = 0;
    int64_t begun_ms = 0;  // on the monotonic clock
  };

  void Reset(int num_fragments);  // for another model
  int num_fragments() const { return static_cast<int>(open_.size()); }

  Arriving& At(core::FragmentId fragment, const core::SiteId& site) { return open_[fragment][site]; }
  const Arriving* Find(core::FragmentId fragment, const core::SiteId& site) const;  // null: none
  void Erase(core::FragmentId fragment, const core::SiteId& site) { open_[fragment].erase(site); }
  void Clear(core::FragmentId fragment) { open_[fragment].clear(); }
  // Hands a contribution to the round that merges it. REQUIRES: it is there.
  std::shared_ptr<Contribution> Take(core::FragmentId fragment, const core::SiteId& site);

  Seeding seeding;

 private:
  std::vector<std::map<core::SiteId, Arriving>> open_;
};

void ForgetUploads(RunParts& run, const core::SiteId& site);  // drops its uploads that were not admitted
// Restores the contributions that an earlier life had admitted to the open round. DATA_LOSS names the segment.
absl::Status RestoreUploads(RunParts& run, core::FragmentId fragment, const std::vector<StoredContribution>& stored,
                            int64_t now_ms);

// The initial parameters, once all of them are here; another shard's are null.
struct Seed {
  core::FragmentMap map;
  Contributions parts;
};
// Durable when it returns. `with_residual`: the return leg has error feedback. Releases each part as soon as it is
// decoded.
absl::StatusOr<std::vector<StartingFragment>> SaveSeed(Seed seed, const core::Shard& shard, bool with_residual,
                                                       Journal& journal);

}  // namespace causeway::server
