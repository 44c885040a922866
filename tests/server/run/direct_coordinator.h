// A coordinator that is called as its reactors call it, without gRPC. It keeps what the coordinator sends each site,
// and can hold the journal, so that a test sees what leaves before anything is durable.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/run/run_exchange.h"
#include "tests/core/fake_clock.h"
#include "tests/formats/temporary_folder.h"
#include "tests/server/run/messages_for_test.h"

namespace causeway::server {

// The site's end of a control stream. Thread-safe.
class RecordedPeer final : public SitePeer {
 public:
  void Send(const v1::CoordinatorMessage& message) override {
    core::MutexLock lock(mutex_);
    sent_.push_back(message);
  }
  void Close() override {
    core::MutexLock lock(mutex_);
    closed_ = true;
  }

  bool closed() const {
    core::MutexLock lock(mutex_);
    return closed_;
  }
  std::vector<v1::CoordinatorMessage> sent() const {
    core::MutexLock lock(mutex_);
    return sent_;
  }
  // Names of the messages: "welcome", "entry", …
  std::vector<std::string> kinds() const {
    std::vector<std::string> kinds;
    for (const v1::CoordinatorMessage& message : sent()) {
      std::vector<const google::protobuf::FieldDescriptor*> fields;
      message.GetReflection()->ListFields(message, &fields);
      kinds.emplace_back(fields.at(0)->name());
    }
    return kinds;
  }
  v1::CoordinatorMessage last() const { return sent().empty() ? v1::CoordinatorMessage() : sent().back(); }

 private:
  mutable core::Mutex mutex_;
  std::vector<v1::CoordinatorMessage> sent_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

// The verdict of an upload, once there is one. Thread-safe.
class PendingVerdict {
 public:
  std::shared_ptr<UploadPeer> taker() const { return given_; }
  std::optional<absl::StatusOr<v1::Verdict>> given() const {
    core::MutexLock lock(given_->mutex);
    return given_->verdict;
  }
  bool admitted() const { return given() && given()->ok() && (*given())->admitted(); }
  std::string reason() const { return given() && given()->ok() ? (*given())->reason() : "no verdict"; }

 private:
  struct Given final : UploadPeer {
    void Answer(const absl::StatusOr<v1::Verdict>& given) override {
      core::MutexLock lock(mutex);
      EXPECT_FALSE(verdict) << "a second verdict";
      verdict = given;
    }
    core::Mutex mutex;
    std::optional<absl::StatusOr<v1::Verdict>> verdict ABSL_GUARDED_BY(mutex);
  };
  std::shared_ptr<Given> given_ = std::make_shared<Given>();
};

// The journal's thread stands until this goes: nothing becomes durable meanwhile.
class HeldJournal {
 public:
  explicit HeldJournal(Journal& journal) {
    auto held = std::make_shared<std::promise<void>>();
    journal.Commit({.events = {{.kind = "held"}}, .durable = [held, released = released_.get_future().share()] {
                      held->set_value();
                      released.wait();
                    }});
    held->get_future().wait();
  }
  ~HeldJournal() { released_.set_value(); }

 private:
  std::promise<void> released_;
};

// A download, read to its end.
struct TakenDownload {
  transport::DownloadHeader header;
  std::vector<std::string> chunks;
  uint64_t digest = 0;
};

// Shard 0's word of a run of one site, which is joining.
inline v1::MembershipUpdate UpdateWith(const core::FragmentMap& map, const std::string& site, int64_t stay,
                                       const std::string& run_id = "test") {
  v1::MembershipUpdate update;
  update.set_run_id(run_id);
  transport::ToProto(map.manifest(), update.mutable_manifest());
  transport::ToProto(map, update.mutable_fragments());
  v1::Member* member = update.add_members();
  member->set_site(site);
  member->set_session(site + "-1");
  member->set_stay(stay);
  return update;
}

// Asks again whenever its waiter is answered, until there is something.
template <typename Ask>
auto Await(Ask ask) {
  while (true) {
    auto answered = std::make_shared<std::promise<void>>();
    auto got = ask(Waiter([answered] { answered->set_value(); }));
    if (got) return got;
    answered->get_future().wait();
  }
}

class DirectCoordinator {
 public:
  explicit DirectCoordinator(core::RunConfig config = ConfigForTest(), const core::Shard& shard = {},
                             const core::Manifest& manifest = ManifestForTest());

  // Another process on the same state directory.
  void Restart();
  // The same, after a change of the directory that lets no coordinator start there: why not.
  absl::Status RestartAfter(const std::function<void(const std::string& directory)>& change);
  // All that was committed so far is durable, and told.
  void Settle() { journal->Flush(); }
  void TickAt(int64_t ms);

  RecordedPeer& Join(const std::string& site, const std::function<void(v1::Join&)>& change = nullptr);
  void Ready(const std::string& site) { coordinator->Handle(input::SiteReady{peer.at(site)}); }
  void Report(const std::string& site, const std::function<void(v1::Progress&)>& change);
  void Leave(const std::string& site, bool finished = false, const std::string& reason = "it was asked to");

  // Sites a and b join, a seeds with zeros, both enter.
  void Start();
  void Seed(const std::string& site);
  PendingVerdict SeedFragment(const std::string& site, int fragment);

  absl::StatusOr<server::Upload> BeginUpload(const v1::UploadHeader& header);
  absl::StatusOr<server::Download> BeginDownload(const v1::DownloadRequest& request, Waiter waiter);
  void Follow(const v1::MembershipUpdate& update);  // as the follower does
  PendingVerdict Upload(const v1::UploadHeader& header, const std::vector<std::string>& chunks);
  PendingVerdict Contribute(const std::string& site, int fragment, int64_t base = 0, float value = 1);
  // Both of them, of all values alike; returns when the round is merged.
  TakenDownload MergeRound(int fragment, int64_t base, float value = 1);

  TakenDownload TakeUpdate(int fragment, int64_t base);
  TakenDownload TakeAnchor(int fragment, int64_t at_least);
  static v1::DownloadRequest RequestOf(const std::string& site, int fragment);
  TakenDownload Take(const v1::DownloadRequest& request);

  SiteStatus StatusOf(const std::string& site) const;
  // Texts of the history's events of that kind, oldest first.
  std::vector<std::string> History(const std::string& kind) const;

 private:
  JournalOptions JournalOptionsOf() const;
  void StartLife();
  void EndLife();

  const TemporaryFolder folder_;

 public:
  const core::FragmentMap map;
  core::FakeClock clock;
  StatusBoard board{{.clock = &clock}};
  ModelBounds bounds;  // from the next Restart on

 protected:
  const core::Shard shard_;

 private:
  const core::RunConfig config_;
  std::vector<std::shared_ptr<RecordedPeer>> peers_;  // of all streams that ever were

 public:
  std::unique_ptr<Journal> journal;
  std::unique_ptr<RunExchange> coordinator;
  std::map<std::string, RecordedPeer*> peer;  // of each site's newest stream
};

}  // namespace causeway::server
