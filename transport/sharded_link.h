// One link to all shards of a run (core/shard.h), over a link to each.
//
//   Site ─► ShardedLink ─┬─► shard 0   membership: welcome, seed request, hold, drain; its fragments
//                        ├─► shard 1   its fragments, and the first versions of them
//                        └─► …
//
// Shard 0 alone says what becomes of the site. When it welcomes the site to a new stay, the other links join as of that
// stay, and the listener is welcomed once all have: only then it is known which contributions were admitted. A place is
// told, too, once every shard has told its part: the step is shard 0's, the first versions the owners'. While a site
// keeps its stay, each link mends what breaks by itself.
//
// Thread-safe. The listener is called with a mutex held that no call of this class takes: one call at a time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/mutex.h"
#include "transport/grpc_link.h"
#include "transport/session_link.h"

namespace causeway::transport {

class ShardedLink final : public SessionLink {
 public:
  explicit ShardedLink(std::vector<std::unique_ptr<ShardLink>> links);  // in the order of shards, at least one
  ~ShardedLink() override;

  // The lineages of all shards, separated by commas.
  void Resume(const core::SessionId& session, const std::string& lineage) override;
  const core::SessionId& session() const override { return links_.front()->session(); }

  // Of shard 0, once every address has answered that it is the shard that is expected there.
  absl::StatusOr<RunDescription> Describe(const std::function<bool()>& cancelled) override;

  void Start(const core::Manifest& manifest, LinkListener* listener) override;
  void SendReady() override { links_.front()->SendReady(); }
  bool SendProgress(const core::Progress& progress) override;
  core::LinkProgress Measured() const override;  // in all, with the longest of the round trips
  void Upload(UploadRequest request) override { OwnerOf(request.fragment).Upload(std::move(request)); }
  void Download(DownloadRequest request) override { OwnerOf(request.fragment).Download(std::move(request)); }
  void Rejoin() override { links_.front()->Rejoin(); }
  void Leave(bool finished, const std::string& reason) override;
  void Hurry() override;

 private:
  class ShardListener;

  // What a shard has said in this stay.
  struct Said {
    std::optional<Welcome> welcome;
    std::optional<core::Entry> entry;
  };

  size_t num_shards() const { return links_.size(); }
  ShardLink& OwnerOf(core::FragmentId fragment) { return *links_[fragment % links_.size()]; }
  Standing StandingFor(size_t shard);
  void OnWelcome(size_t shard, const Welcome& welcome);
  void BeginStay(const Welcome& welcome) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Welcome Combined() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TellWelcome() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnSeedRequest();
  void OnEntry(size_t shard, const core::Entry& entry);

  const std::vector<std::unique_ptr<ShardLink>> links_;
  std::vector<std::unique_ptr<ShardListener>> listeners_;
  core::Manifest manifest_;
  LinkListener* listener_ = nullptr;

  core::Mutex mutex_;  // of what follows, and of the listener's turn
  int64_t stay_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Said> said_ ABSL_GUARDED_BY(mutex_);
  std::vector<bool> started_ ABSL_GUARDED_BY(mutex_);
  bool told_welcome_ ABSL_GUARDED_BY(mutex_) = false;  // to the listener, of this stay
  bool void_ ABSL_GUARDED_BY(mutex_) = false;  // a shard is of another lineage; the listener is yet to hear of it
  bool told_entry_ ABSL_GUARDED_BY(mutex_) = false;
  bool seed_requested_ ABSL_GUARDED_BY(mutex_) = false;        // before it was welcomed
  bool place_lost_ ABSL_GUARDED_BY(mutex_) = false;            // what it holds of a shard is void: shard 0 is to know
  bool transfers_lost_ ABSL_GUARDED_BY(mutex_) = false;        // of a shard: the listener is to know
  std::vector<bool> from_checkpoint_ ABSL_GUARDED_BY(mutex_);  // until that shard has welcomed the process
};

// To each of a run's shards in their order, or to the only one. What is the same for all but for the address; rates are
// the site's, and shared out.
std::unique_ptr<SessionLink> MakeLink(std::vector<LinkOptions> shards);

}  // namespace causeway::transport
