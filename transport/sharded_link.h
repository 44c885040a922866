// One link to all shards of a run (core/ids.h), made of a link to each.
//
//   Site ─► ShardedLink ─┬─► shard 0   membership: welcome, seed request, hold, drain; its fragments
//                        ├─► shard 1   its fragments, and the first versions of them
//                        └─► …
//
// Shard 0 alone decides about the site. When it welcomes the site to a new stay, the other links join as of that stay,
// and the listener is welcomed once all have: only then is it known which contributions were admitted. Likewise the
// listener receives its place once every shard has sent its part: the step comes from shard 0, the first versions from
// the owners. While a site keeps its stay, each link repairs its own breaks.
//
// Thread-safe. The listener is called one call at a time, with a mutex held that no call of this class takes.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/mutex.h"
#include "transport/coordinator_link.h"
#include "transport/grpc_link.h"

namespace causeway::transport {

class ShardedLink final : public SessionLink {
 public:
  explicit ShardedLink(std::vector<std::unique_ptr<ShardLink>> links);  // in the order of shards, at least one
  ~ShardedLink() override;

  // The lineages of all shards, separated by commas.
  void Resume(const core::SessionId& session, const Remembered& of_coordinator) override;
  Remembered remembered() const override;
  const core::SessionId& session() const override { return links_.front()->session(); }

  // The description from shard 0, once every address has confirmed that it is the expected shard.
  absl::StatusOr<RunDescription> Describe(const std::function<bool()>& cancelled) override;

  void Start(const core::Manifest& manifest, LinkListener* listener) override;
  void SendReady() override { links_.front()->SendReady(); }
  bool SendProgress(const core::Progress& progress) override;
  core::LinkProgress Measured() const override;  // rates in total, with the longest round trip
  void Upload(UploadRequest request) override { OwnerOf(request.fragment).Upload(std::move(request)); }
  void Download(DownloadRequest request) override { OwnerOf(request.fragment).Download(std::move(request)); }
  void Rejoin() override { links_.front()->Rejoin(); }
  void Leave(bool finished, const std::string& reason) override;
  void Hurry() override;

 private:
  class ShardListener;

  // A shard's messages in this stay.
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

  core::Mutex mutex_;  // guards the following, and the listener's turn
  int64_t stay_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Said> said_ ABSL_GUARDED_BY(mutex_);
  std::vector<bool> started_ ABSL_GUARDED_BY(mutex_);
  bool told_welcome_ ABSL_GUARDED_BY(mutex_) = false;  // the listener has been welcomed in this stay
  bool void_ ABSL_GUARDED_BY(mutex_) = false;          // a shard has another lineage: the listener must be notified
  bool told_entry_ ABSL_GUARDED_BY(mutex_) = false;
  bool seed_requested_ ABSL_GUARDED_BY(mutex_) = false;  // a seed was requested before the welcome
  bool place_lost_ ABSL_GUARDED_BY(mutex_) = false;  // the site's state of a shard is void: shard 0 must be notified
  bool transfers_lost_ ABSL_GUARDED_BY(mutex_) = false;  // a shard has lost transfers: the listener must be notified
  std::vector<bool> from_checkpoint_ ABSL_GUARDED_BY(mutex_);  // until that shard has welcomed the process
};

// A link to all of a run's shards, given in order, or to the only one. The options must agree in everything except the
// address; rates are the site's, and are divided among the links.
std::unique_ptr<SessionLink> MakeLink(std::vector<LinkOptions> shards);

}  // namespace causeway::transport
