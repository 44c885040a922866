#include "worker/sync/sync_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "core/digest.h"

namespace causeway::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A coordinator in the test's hands: it answers when the test says so.
class FakeLink final : public transport::CoordinatorLink {
 public:
  void Start(const core::Manifest&, transport::LinkListener* listener) override {
    core::MutexLock lock(mutex_);
    listener_ = listener;
    changed_.notify_all();
  }
  void SendReady() override {
    core::MutexLock lock(mutex_);
    ++ready_;
    changed_.notify_all();
  }
  bool SendProgress(const core::Progress& progress) override {
    core::MutexLock lock(mutex_);
    progress_ = progress;
    return true;
  }
  void Upload(transport::UploadRequest request) override {
    core::MutexLock lock(mutex_);
    uploads_.push_back(std::move(request));
    changed_.notify_all();
  }
  void Download(transport::DownloadRequest request) override {
    core::MutexLock lock(mutex_);
    downloads_.push_back(std::move(request));
    changed_.notify_all();
  }
  void DropTransfers() override {}
  void Leave(bool, const std::string&) override {}

  transport::UploadRequest NextUpload() { return Next(uploads_); }
  transport::DownloadRequest NextDownload() { return Next(downloads_); }
  void AwaitReady(int count) {
    core::MutexLock lock(mutex_);
    lock.Wait(changed_, [&] { return ready_ >= count; });
  }
  core::Progress progress() {
    core::MutexLock lock(mutex_);
    return progress_;
  }
  // Once the engine has started the link.
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
  std::condition_variable changed_;
  std::deque<transport::UploadRequest> uploads_;
  std::deque<transport::DownloadRequest> downloads_;
  core::Progress progress_;
  int ready_ = 0;
};

// One fragment of one value, H = 2, τ = 1, plain SGD with η = 1 outside.
class SyncEngineTest : public ::testing::Test {
 protected:
  SyncEngineTest() {
    config_.run_id = "test";
    config_.sync = {.sync_every = 2, .num_fragments = 1, .fragment_sync_delay = 1, .fragment_update_alpha = 0};
    config_.codec = {core::CodecId::kFloat32, core::CodecId::kFloat32, 0, 0};
    engine_ = std::make_unique<SyncEngine>(config_, "eu", manifest_, std::vector<std::span<float>>{value_}, &link_);
  }

  std::vector<std::string> ChunksOf(std::vector<float> values) const {
    std::vector<std::string> chunks;
    for (float value : values) {
      chunks.push_back(*codecs::EncodeChunk({core::CodecId::kFloat32, 0, 1}, std::span(&value, 1), {}));
    }
    return chunks;
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
    for (std::string& chunk : ChunksOf(std::move(values))) request.on_chunk(std::move(chunk));
    request.done(absl::OkStatus(), digest);
  }

  // Lets the engine join a run whose anchor is `anchor` at `version`, and enter after `step`.
  absl::StatusOr<core::Step> Join(std::function<absl::StatusOr<core::Step>()> call, float anchor, core::Version version,
                                  core::Step step, core::Version first, int ready) {
    auto joined = std::async(std::launch::async, std::move(call));
    link_.listener().OnWelcome({.resumed = false, .map = map_, .last_admitted = {}});
    transport::DownloadRequest request = link_.NextDownload();
    EXPECT_EQ(request.kind, transport::DownloadKind::kAnchor);
    Answer(request, {.version = version}, {anchor, 0}, DigestOf(anchor));
    link_.AwaitReady(ready);
    link_.listener().OnEntry({.step = step, .versions = {version}, .first_versions = {first}, .sites = {"eu", "us"}});
    return joined.get();
  }

  absl::StatusOr<core::Step> FirstJoin(float anchor, core::Version version, core::Step step, core::Version first) {
    return Join([this] { return engine_->Join(); }, anchor, version, step, first, /*ready=*/1);
  }

  std::vector<float> value_ = {1};
  core::Manifest manifest_ = {{.name = "w", .shape = {1}, .layer = 0}};
  core::FragmentMap map_{manifest_, {{0}}};
  core::RunConfig config_;
  FakeLink link_;
  std::unique_ptr<SyncEngine> engine_;
};

TEST_F(SyncEngineTest, JoinerTakesTheAnchorAndThePlaceItIsGiven) {
  const auto step = FirstJoin(/*anchor=*/5, /*version=*/3, /*step=*/8, /*first=*/3);
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_EQ(*step, 8);
  EXPECT_THAT(value_, ElementsAre(5));
  EXPECT_THAT(engine_->sites(), ElementsAre("eu", "us"));
}

TEST_F(SyncEngineTest, SendsAtItsStepAndMixesAfterTheDelay) {
  ASSERT_TRUE(FirstJoin(1, 0, 0, 0).ok());
  ASSERT_EQ(*engine_->AfterStep(1), 1);
  value_[0] = 0.5f;
  ASSERT_EQ(*engine_->AfterStep(2), 2);  // SEND of base 0: H + t_0 = 2
  const transport::UploadRequest upload = link_.NextUpload();
  EXPECT_EQ(upload.base, 0);
  EXPECT_EQ(*upload.chunks, ChunksOf({0.5f}));
  upload.done(absl::OkStatus());
  transport::DownloadRequest update = link_.NextDownload();
  EXPECT_EQ(update.kind, transport::DownloadKind::kUpdate);
  Answer(update, {.version = 1, .outer = {1, 0}, .merged = {"eu", "us"}, .sites = {"eu", "us"}}, {0.25f},
         DigestOf(0.75f));
  value_[0] = 0.375f;
  ASSERT_EQ(*engine_->AfterStep(3), 3);  // APPLY, α = 0
  EXPECT_THAT(value_, ElementsAre(0.75f));
}

TEST_F(SyncEngineTest, AnchorThatDiffersFromTheCoordinatorsIsFetched) {
  ASSERT_TRUE(FirstJoin(1, 0, 0, 0).ok());
  ASSERT_TRUE(engine_->AfterStep(2).ok());
  link_.NextUpload().done(absl::OkStatus());
  transport::DownloadRequest update = link_.NextDownload();
  Answer(update, {.version = 1, .outer = {1, 0}, .merged = {"eu"}, .sites = {"eu"}}, {0.25f}, DigestOf(9));
  transport::DownloadRequest anchor = link_.NextDownload();
  EXPECT_EQ(anchor.kind, transport::DownloadKind::kAnchor);
  EXPECT_EQ(anchor.version, 1);
  Answer(anchor, {.version = 1}, {9, 0}, DigestOf(9));
  ASSERT_TRUE(engine_->AfterStep(3).ok());
  EXPECT_THAT(value_, ElementsAre(9));
}

TEST_F(SyncEngineTest, SiteThatWasDroppedCatchesUpByTheUpdatesItMissedAndKeepsWhatItTrained) {
  ASSERT_TRUE(FirstJoin(1, 0, 0, 0).ok());
  value_[0] = 0.5f;  // trained by 0.5
  ASSERT_TRUE(engine_->AfterStep(2).ok());
  link_.NextUpload();
  const transport::DownloadRequest lost = link_.NextDownload();  // never answered
  auto joined = std::async(std::launch::async, [this] { return engine_->AfterStep(3); });
  link_.listener().OnWelcome({.resumed = false, .map = map_, .last_admitted = {-1}});
  transport::DownloadRequest missed = link_.NextDownload();
  EXPECT_EQ(missed.kind, transport::DownloadKind::kUpdate);
  EXPECT_EQ(missed.version, 0);
  link_.AwaitReady(2);
  link_.listener().OnEntry({.step = 4, .versions = {1}, .first_versions = {1}, .sites = {"eu", "us"}});
  Answer(missed, {.version = 1, .outer = {1, 0}, .merged = {"us"}, .sites = {"eu", "us"}}, {0.25f}, DigestOf(0.75f));
  EXPECT_EQ(*joined.get(), 4);
  EXPECT_THAT(value_, ElementsAre(0.25f));
  EXPECT_EQ(engine_->stays(), 2);
  lost.done(absl::OkStatus(), 0);  // of the earlier stay: without effect
  ASSERT_TRUE(engine_->AfterStep(4).ok());
  EXPECT_EQ(*link_.NextUpload().chunks, ChunksOf({0.5f}));  // what was not merged is in the next contribution
}

TEST_F(SyncEngineTest, SiteThatWasDroppedTakesTheAnchorWhereUpdatesAreGoneAndKeepsWhatItTrained) {
  ASSERT_TRUE(FirstJoin(1, 0, 0, 0).ok());
  value_[0] = 0.5f;
  ASSERT_TRUE(engine_->AfterStep(2).ok());
  link_.NextUpload();
  link_.NextDownload();
  auto joined = std::async(std::launch::async, [this] { return engine_->AfterStep(3); });
  link_.listener().OnWelcome({.resumed = false, .map = map_, .last_admitted = {-1}});
  link_.NextDownload().done(absl::NotFoundError("pruned"), 0);
  transport::DownloadRequest anchor = link_.NextDownload();
  EXPECT_EQ(anchor.kind, transport::DownloadKind::kAnchor);
  Answer(anchor, {.version = 6}, {4, 0}, DigestOf(4));
  link_.AwaitReady(2);
  link_.listener().OnEntry({.step = 12, .versions = {6}, .first_versions = {6}, .sites = {"eu", "us"}});
  EXPECT_EQ(*joined.get(), 12);
  EXPECT_THAT(value_, ElementsAre(3.5f));
}

TEST_F(SyncEngineTest, SiteOfWhichAnUnknownContributionWasMergedStartsFromTheAnchor) {
  ASSERT_TRUE(FirstJoin(1, 0, 0, 0).ok());
  value_[0] = 0.5f;
  ASSERT_TRUE(engine_->AfterStep(1).ok());
  link_.NextDownload();
  link_.listener().OnWelcome({.resumed = false, .map = map_, .last_admitted = {0}});
  auto joined = std::async(std::launch::async, [this] { return engine_->AfterStep(3); });
  transport::DownloadRequest update = link_.NextDownload();
  Answer(update, {.version = 1, .outer = {1, 0}, .merged = {"eu"}, .sites = {"eu"}}, {0.25f}, DigestOf(0.75f));
  link_.AwaitReady(2);
  link_.listener().OnEntry({.step = 4, .versions = {1}, .first_versions = {1}, .sites = {"eu"}});
  EXPECT_EQ(*joined.get(), 4);
  EXPECT_THAT(value_, ElementsAre(0.75f));
}

TEST_F(SyncEngineTest, StepLoopHoldsWhileTheRunIsPaused) {
  ASSERT_TRUE(FirstJoin(1, 0, 0, 0).ok());
  link_.listener().OnHold(true);
  auto held = std::async(std::launch::async, [this] { return engine_->AfterStep(1); });
  link_.listener().OnHold(false);
  EXPECT_EQ(*held.get(), 1);
}

TEST_F(SyncEngineTest, OpenRoundWithoutTheJoinerMovesItWhenItIsDue) {
  // Version 3 is open and was sent at step 8; the joiner enters after step 8 and contributes from base 4 on.
  ASSERT_TRUE(FirstJoin(2, 3, 8, 4).ok());
  transport::DownloadRequest update = link_.NextDownload();
  EXPECT_EQ(update.version, 3);
  value_[0] = 1.5f;  // trained by 0.5
  Answer(update, {.version = 4, .outer = {1, 0}, .merged = {"us"}, .sites = {"eu", "us"}}, {0.25f}, DigestOf(1.75f));
  ASSERT_TRUE(engine_->AfterStep(9).ok());
  EXPECT_THAT(value_, ElementsAre(1.25f));  // Δ = 0.5 as before
}

TEST_F(SyncEngineTest, NonFiniteValueEndsTheLoopAndIsNotSent) {
  ASSERT_TRUE(FirstJoin(1, 0, 0, 0).ok());
  value_[0] = std::nanf("");
  auto step = engine_->AfterStep(2);
  if (step.ok()) step = engine_->AfterStep(3);  // the task thread may have met it already, or not
  EXPECT_EQ(step.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(step.status().message()), HasSubstr("w is nan at index 0"));
}

TEST_F(SyncEngineTest, StopEndsAWaitForAnUpdate) {
  ASSERT_TRUE(FirstJoin(1, 0, 0, 0).ok());
  ASSERT_TRUE(engine_->AfterStep(2).ok());
  auto waiting = std::async(std::launch::async, [this] { return engine_->AfterStep(3); });
  engine_->RequestStop();
  EXPECT_EQ(waiting.get().status().code(), absl::StatusCode::kCancelled);
}

TEST_F(SyncEngineTest, RoundsThatAreOpenAtTheEndReachTheAnchorAlone) {
  ASSERT_TRUE(FirstJoin(1, 0, 0, 0).ok());
  engine_->Report({.step = 2});
  ASSERT_TRUE(engine_->AfterStep(2).ok());
  link_.NextUpload().done(absl::OkStatus());
  transport::DownloadRequest update = link_.NextDownload();
  Answer(update, {.version = 1, .outer = {1, 0}, .merged = {"eu"}, .sites = {"eu"}}, {0.25f}, DigestOf(0.75f));
  ASSERT_TRUE(engine_->CompleteRounds().ok());
  EXPECT_THAT(engine_->GetStanding().versions, ElementsAre(1));
  EXPECT_THAT(value_, ElementsAre(1));
}

}  // namespace
}  // namespace causeway::worker
