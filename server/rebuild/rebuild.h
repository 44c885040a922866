// Rebuilds the state of a coordinator from what the sites hold, and writes it into an empty journal.
//
//   Show streams ── BeginShow, TakePiece, EndShow ─► Rebuild ── Ask, End ─► the same streams
//                                                       │ Tick: enough has been shown? ─► fragment by fragment from one
//                                                       ▼ of its witnesses, compared with its digests
//                                                     Save ─► snapshots, model, sites ─► journal
//
// It keeps W and v of all the shard's fragments in memory until Save: 8 bytes per parameter. ē starts at zero, and
// contributions that sites sent for later versions are missing: the sites send them again, because their Welcome says
// that they were not admitted.
//
// After a loss of power that took the end of a relaxed journal, it completes the state that is still there: fragments
// of which the sites hold no newer version stay as they are, with ē. Thread-safe.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "causeway/v1/coordinator.pb.h"
#include "core/clock.h"
#include "core/fragment_map.h"
#include "core/fragment_state.h"
#include "core/mutex.h"
#include "core/run_config.h"
#include "core/run_settings.h"
#include "server/rebuild/rebuild_rules.h"
#include "server/store/journal.h"

namespace causeway::server {

// A site's Show stream. Calls do not block, and are made with the Rebuild's lock held.
class ShowPeer {
 public:
  virtual ~ShowPeer() = default;
  virtual void Ask(core::FragmentId fragment) = 0;
  virtual void End(const absl::Status& status) = 0;
};

// A state that lacks its end, with the newest snapshot of each of the shard's fragments.
struct OwnState {
  std::string lineage;
  core::RoundState rounds;
  ModelRecord model;
  std::map<core::FragmentId, core::FragmentState> fragments;
  core::SettingsChain settings;
};
// DATA_LOSS: a snapshot is damaged.
absl::StatusOr<OwnState> ReadOwnState(const Journal& journal, const core::Shard& shard);

struct RebuildOptions {
  core::RunConfig config;
  // Parses a revision's settings; an error unless `causewayctl set` could have made them from those `before`, which is
  // null for the first known revision. Without this function, sites' settings are not taken.
  std::function<absl::StatusOr<core::RunConfig>(const core::RunConfig* before, const std::string& run_config)> settings;
  core::Shard shard;
  core::SiteId accept;  // the one site to trust; empty: two must agree
  std::optional<OwnState> own;
  const core::Clock* clock = &core::SystemClock();
};

class Rebuild {
 public:
  explicit Rebuild(RebuildOptions options);

  // ---- The streams ----
  // INVALID_ARGUMENT or FAILED_PRECONDITION: the holdings do not fit this run.
  absl::Status BeginShow(const std::shared_ptr<ShowPeer>& peer, const v1::Holdings& holdings);
  absl::Status TakePiece(const ShowPeer* peer, std::string_view piece);  // not OK: the stream must end with this status
  void EndShow(const ShowPeer* peer);

  // ---- The owner ----
  void Tick();             // a few times a second
  std::string Progress();  // what it has, or waits for; after Save, what it has done
  bool complete();         // everything has arrived: Save may be called, and no other call follows
  bool undecided();        // if there is an own state: its sites have come, and no two agree on what is newer
  // REQUIRES: complete(), and no Save before. Afterwards the journal can only be closed.
  absl::Status Save(Journal& journal);

 private:
  struct Showing {
    core::SiteId site;
    std::optional<core::FragmentId> asked;
    int64_t taken = 0;     // number of that fragment's values received
    int64_t heard_ms = 0;  // when it last sent something, or was asked
  };
  // A fragment that has arrived, or is on its way from a site.
  struct Arriving {
    core::FragmentState state;
    core::HeldVersion held;  // the version expected
    bool whole = false;
    core::SiteId from;  // the site that it is coming from
  };

  absl::Status Check(const v1::Holdings& holdings, Holdings& shown) const;
  absl::Status AddSettings(const core::SettingsChain& chain, core::RunSettings& settings) const;
  void Choose() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ResetChoice() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsWhole(core::FragmentId p) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsWitness(const core::SiteId& site, core::FragmentId p) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndSilent() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AskForMissing() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status FinishFragment(Showing& showing) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Forget(const core::SiteId& site) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeOwn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);  // takes the own fragments that stay
  core::RoundState RoundsOfTheSites() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const RebuildOptions options_;
  core::Mutex mutex_;
  RebuildRules rules_ ABSL_GUARDED_BY(mutex_);
  std::map<const ShowPeer*, Showing> showing_ ABSL_GUARDED_BY(mutex_);
  std::map<core::SiteId, std::shared_ptr<ShowPeer>> peers_ ABSL_GUARDED_BY(mutex_);
  std::map<core::SiteId, core::SessionId> sites_ ABSL_GUARDED_BY(mutex_);  // sites whose holdings count
  std::optional<RebuildChoice> choice_ ABSL_GUARDED_BY(mutex_);  // kept as long as its witnesses are connected
  std::set<core::SiteId> silent_ ABSL_GUARDED_BY(mutex_);        // sites that did not answer when asked
  core::FragmentMap map_ ABSL_GUARDED_BY(mutex_);                // fragment map of the choice's model
  std::map<core::FragmentId, Arriving> arriving_ ABSL_GUARDED_BY(mutex_);
  std::vector<Event> events_ ABSL_GUARDED_BY(mutex_);
  bool undecided_ ABSL_GUARDED_BY(mutex_) = false;
  std::string progress_ ABSL_GUARDED_BY(mutex_) = "no site has shown what it holds";
};

}  // namespace causeway::server
