// Site with a coordinator in the test's hands: one fragment of one value, H = 2, τ = 1, plain SGD with η = 1
// outside.
#pragma once

#include <gtest/gtest.h>

#include <future>

#include "core/digest.h"
#include "replica/host_store.h"
#include "worker/site/site.h"

namespace causeway::worker {

// A coordinator in the test's hands: it answers when the test says so.
class FakeLink final : public transport::CoordinatorLink {
 public:
  void Start(const core::Manifest&, transport::LinkListener* listener) override {
    core::MutexLock lock(mutex_);
    listener_ = listener;
    ++starts_;
    changed_.NotifyAll();
  }
  void SendReady() override {
    core::MutexLock lock(mutex_);
    ++ready_;
    changed_.NotifyAll();
  }
  bool SendProgress(const core::Progress& progress) override {
    core::MutexLock lock(mutex_);
    progress_ = progress;
    ++reports_;
    changed_.NotifyAll();
    return true;
  }
  void Upload(transport::UploadRequest request) override {
    core::MutexLock lock(mutex_);
    uploads_.push_back(std::move(request));
    changed_.NotifyAll();
  }
  void Download(transport::DownloadRequest request) override {
    core::MutexLock lock(mutex_);
    downloads_.push_back(std::move(request));
    changed_.NotifyAll();
  }
  core::LinkProgress Measured() const override { return {.up_bytes_per_s = 1e6, .channels = 2}; }
  void Rejoin() override {
    core::MutexLock lock(mutex_);
    ++rejoins_;
    changed_.NotifyAll();
  }
  void Hurry() override {}
  void Leave(bool, const std::string&) override {
    core::MutexLock lock(mutex_);
    listener_ = nullptr;  // no call to it after this
  }

  transport::UploadRequest NextUpload() { return Next(uploads_); }
  transport::DownloadRequest NextDownload() { return Next(downloads_); }
  void AwaitReady(int count) {
    core::MutexLock lock(mutex_);
    lock.Wait(changed_, [&] { return ready_ >= count; });
  }
  void AwaitProgress(const std::function<bool(const core::Progress&)>& holds) {
    core::MutexLock lock(mutex_);
    lock.Wait(changed_, [&] { return holds(progress_); });
  }
  void AwaitRejoin() {
    core::MutexLock lock(mutex_);
    lock.Wait(changed_, [&] { return rejoins_ > 0; });
  }
  size_t num_uploads() {
    core::MutexLock lock(mutex_);
    return uploads_.size();
  }
  size_t num_downloads() {
    core::MutexLock lock(mutex_);
    return downloads_.size();
  }
  int num_reports() {
    core::MutexLock lock(mutex_);
    return reports_;
  }
  void AwaitReports(int count) {
    core::MutexLock lock(mutex_);
    lock.Wait(changed_, [&] { return reports_ >= count; });
  }
  int num_ready() {
    core::MutexLock lock(mutex_);
    return ready_;
  }
  int starts() {
    core::MutexLock lock(mutex_);
    return starts_;
  }
  core::Progress progress() {
    core::MutexLock lock(mutex_);
    return progress_;
  }
  // Once the site has started the link.
  transport::LinkListener& listener() {
    core::MutexLock lock(mutex_);
    lock.Wait(changed_, [&] { return listener_ != nullptr; });
    return *listener_;
  }

 private:
  template <typename Request>
  Request Next(std::deque<Request>& requests) {
    core::MutexLock lock(mutex_);
    lock.Wait(changed_, [&] { return !requests.empty(); });
    Request request = std::move(requests.front());
    requests.pop_front();
    return request;
  }

  transport::LinkListener* listener_ = nullptr;
  core::Mutex mutex_;
  core::Condition changed_;
  std::deque<transport::UploadRequest> uploads_;
  std::deque<transport::DownloadRequest> downloads_;
  core::Progress progress_;
  int starts_ = 0;
  int reports_ = 0;
  int ready_ = 0;
  int rejoins_ = 0;
};

class SiteTest : public ::testing::Test {
 protected:
  explicit SiteTest(core::SyncMode mode = core::SyncMode::kSynchronous) {
    config_.run_id = "test";
    config_.sync = {
        .mode = mode, .sync_every = 2, .num_fragments = 1, .fragment_sync_delay = 1, .fragment_update_alpha = 0};
    config_.codec = {core::CodecId::kFloat32, core::CodecId::kFloat32, 0, 0};
    Make();
  }

  // A site as config_ says, which has not joined.
  void Make(replica::ParameterStore* store = nullptr, const core::Clock& clock = core::SystemClock()) {
    site_ = std::make_unique<Site>(config_, "eu", manifest_, store != nullptr ? store : &store_, &link_, clock);
  }

  std::vector<std::string> ChunksOf(std::vector<float> values) const {
    std::vector<std::string> chunks;
    for (float value : values) {
      chunks.push_back(*codecs::EncodeChunk({core::CodecId::kFloat32, 0, 1}, std::span(&value, 1), {}));
    }
    return chunks;
  }
  std::vector<core::Bytes> SentChunks(std::vector<float> values) const {
    const std::vector<std::string> chunks = ChunksOf(std::move(values));
    return {chunks.begin(), chunks.end()};
  }

  static uint64_t DigestOf(float value) {
    std::vector<float> unit(core::kUnitValues);
    unit[0] = value;
    return core::DigestUnits(unit, 0);
  }

  void Answer(transport::DownloadRequest& request, transport::DownloadHeader header, std::vector<float> values,
              uint64_t digest) {
    header.num_chunks = static_cast<int>(values.size());
    request.on_header(header);
    int index = 0;
    for (std::string& chunk : ChunksOf(std::move(values))) request.on_chunk(index++, std::move(chunk));
    request.done(absl::OkStatus(), digest);
  }

  // Answers the anchor that it asks for.
  void AnswerAnchor(core::Version version, float anchor) {
    transport::DownloadRequest request = link_.NextDownload();
    EXPECT_EQ(request.kind, transport::DownloadKind::kAnchor);
    Answer(request, {.version = version}, {anchor, 0}, DigestOf(anchor));
  }

  // Answers the update that leads to a version with the gradient 0.25, which makes that anchor.
  void AnswerUpdate(transport::DownloadRequest request, transport::DownloadHeader update, float anchor) {
    EXPECT_EQ(request.kind, transport::DownloadKind::kUpdate);
    EXPECT_EQ(request.version + 1, update.version);
    update.outer = {1, 0};
    update.sites = {"eu", "us"};
    Answer(request, std::move(update), {0.25f}, DigestOf(anchor));
  }
  void AnswerUpdate(transport::DownloadHeader update, float anchor) {
    AnswerUpdate(link_.NextDownload(), std::move(update), anchor);
  }

  // The coordinator has no place for the site.
  void Welcome(std::vector<core::Version> last_admitted = {}) {
    link_.listener().OnWelcome({.resumed = false, .map = map_, .last_admitted = std::move(last_admitted)});
  }

  // It gives it one, once the site has said that number of times that it is ready.
  struct Place {
    int ready = 1;
    core::Step step = 0;
    core::Version version = 0;
    std::optional<core::Version> first = {};  // that it contributes to; without it: `version`
  };
  void Enter(const Place& place) {
    link_.AwaitReady(place.ready);
    link_.listener().OnEntry({.step = place.step,
                              .versions = {place.version},
                              .first_versions = {place.first.value_or(place.version)},
                              .sites = {"eu", "us"}});
  }

  // On a thread of their own, since they wait for the coordinator.
  auto JoinAside() {
    return std::async(std::launch::async, [this] { return site_->Join(); });
  }
  auto StepAside(core::Step t) {
    return std::async(std::launch::async, [this, t] { return site_->AfterStep(t); });
  }

  // Step 2 ends with this value, and sends.
  transport::UploadRequest Send(float value = 1) {
    value_[0] = value;
    EXPECT_TRUE(site_->AfterStep(2).ok());
    return link_.NextUpload();
  }

  // Lets the site join a run whose anchor is `anchor` at `version`, and enter after `step`.
  absl::StatusOr<core::Step> Join(std::function<absl::StatusOr<core::Step>()> call, float anchor, core::Version version,
                                  core::Step step, core::Version first, int ready) {
    auto joined = std::async(std::launch::async, std::move(call));
    Welcome();
    AnswerAnchor(version, anchor);
    Enter({ready, step, version, first});
    return joined.get();
  }

  absl::StatusOr<core::Step> FirstJoin(float anchor, core::Version version, core::Step step, core::Version first) {
    return Join([this] { return site_->Join(); }, anchor, version, step, first, /*ready=*/1);
  }

  std::vector<float> value_ = {1};
  core::Manifest manifest_ = {{.name = "w", .shape = {1}, .layer = 0}};
  core::FragmentMap map_{manifest_, {{0}}};
  core::RunConfig config_;
  FakeLink link_;
  replica::HostStore store_{{value_}, nullptr};
  std::unique_ptr<Site> site_;
};

// It has entered a run before its first step, at version 0 and with the value 1.
template <typename Fixture>
class Joined : public Fixture {
 protected:
  void SetUp() override { ASSERT_TRUE(this->FirstJoin(1, 0, 0, 0).ok()); }
};
using JoinedSiteTest = Joined<SiteTest>;

}  // namespace causeway::worker
