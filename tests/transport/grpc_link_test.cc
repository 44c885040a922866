// What a link does with the number of the model, and with transfers that are asked for twice.
#include "transport/grpc_link.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <future>

#include "tests/transport/fake_coordinator.h"

namespace causeway::transport {
namespace {

using ::testing::SizeIs;

class WelcomedListener final : public LinkListener {
 public:
  Standing GetStanding() override { return {.joining = true}; }
  void OnWelcome(const Welcome& welcome) override {
    core::MutexLock lock(mutex_);
    welcomes_.push_back(welcome);
    changed_.NotifyAll();
  }
  void OnSeedRequest() override {}
  void OnEntry(const core::Entry&) override {}
  void OnNotice(const std::string&) override {}
  void OnDrain(const std::string&) override {}
  void OnHold(bool) override {}
  void OnFailure(const absl::Status& status) override { ADD_FAILURE() << status; }

  Welcome Await(size_t count) {
    core::MutexLock lock(mutex_);
    lock.WaitFor(changed_, FakeCoordinator::kHang, [&] { return welcomes_.size() >= count; });
    EXPECT_THAT(welcomes_, SizeIs(count));
    return welcomes_.empty() ? Welcome() : welcomes_.back();
  }

 private:
  core::Mutex mutex_;
  core::Condition changed_;
  std::vector<Welcome> welcomes_;
};

// gRPC's threads for callbacks end with the last channel that uses them, and gRPC 1.51 may crash when they do: one
// channel stays.
void KeepCallbackThreads(int port) {
  static auto* const stub = v1::Coordinator::NewStub(MakeChannel({"127.0.0.1", port}, {}, Traffic::kControl)).release();
  static const bool used = [] {
    grpc::ClientContext context;
    v1::DescribeRequest request;
    v1::RunDescription description;
    std::promise<void> done;
    stub->async()->Describe(&context, &request, &description, [&](const grpc::Status&) { done.set_value(); });
    done.get_future().wait();
    return true;
  }();
  (void)used;
}

class GrpcLinkTest : public ::testing::Test {
 protected:
  GrpcLinkTest() { KeepCallbackThreads(coordinator_.port); }

  void Join(std::optional<uint64_t> generation) {
    coordinator_.Welcome(/*stay=*/1, generation);
    link_ = std::make_unique<GrpcLink>(LinkOptions{.coordinator = {"127.0.0.1", coordinator_.port}, .site = "a"});
    link_->Start(FakeCoordinator::ManifestForTest(), &listener_);
    listener_.Await(1);
  }

  // Its end, once it has one.
  std::future<absl::StatusCode> DownloadAnchor(core::FragmentId fragment = 0) {
    auto ended = std::make_shared<std::promise<absl::StatusCode>>();
    link_->Download({.kind = DownloadKind::kAnchor,
                     .fragment = fragment,
                     .on_header = [](const DownloadHeader&) {},
                     .on_chunk = [](int, std::string) {},
                     .done = [ended](const absl::Status& status, uint64_t) { ended->set_value(status.code()); }});
    return ended->get_future();
  }
  std::future<absl::StatusCode> UploadSeed() {
    auto ended = std::make_shared<std::promise<absl::StatusCode>>();
    link_->Upload({.initial = true,
                   .chunks = std::make_shared<const std::vector<std::string>>(1, "chunk"),
                   .done = [ended](const absl::Status& status) { ended->set_value(status.code()); }});
    return ended->get_future();
  }

  static bool IsPending(std::future<absl::StatusCode>& ended) {
    return ended.wait_for(std::chrono::seconds(0)) == std::future_status::timeout;
  }

  FakeCoordinator coordinator_;
  WelcomedListener listener_;
  std::unique_ptr<GrpcLink> link_;
};

TEST_F(GrpcLinkTest, TransfersNameTheModelThatTheSiteWasWelcomedTo) {
  Join(/*generation=*/3);
  auto anchor = DownloadAnchor();
  auto seed = UploadSeed();
  EXPECT_EQ(coordinator_.AwaitDownloads(1).at(0).generation(), 3u);
  EXPECT_EQ(coordinator_.AwaitUploads(1).at(0).generation(), 3u);
}

TEST_F(GrpcLinkTest, CoordinatorOfBeforeIsNamedNone) {
  Join(/*generation=*/std::nullopt);
  auto anchor = DownloadAnchor();
  EXPECT_FALSE(coordinator_.AwaitDownloads(1).at(0).has_generation());
}

TEST_F(GrpcLinkTest, AbortedAndUnavailableAreRetried) {
  Join(1);
  coordinator_.FailDownloads({{grpc::StatusCode::ABORTED, "the model is generation 2 now; retry"},
                              {grpc::StatusCode::UNAVAILABLE, "no site has said yet what the model is; retry"}});
  auto anchor = DownloadAnchor();
  EXPECT_THAT(coordinator_.AwaitDownloads(3), SizeIs(3));
  EXPECT_TRUE(IsPending(anchor));
}

TEST_F(GrpcLinkTest, AnotherModelDropsTransfersAndIsToldSo) {
  Join(1);
  auto anchor = DownloadAnchor();
  coordinator_.AwaitDownloads(1);
  coordinator_.Welcome(/*stay=*/1, /*generation=*/2, /*resumed=*/true);
  coordinator_.EndControl();
  const Welcome welcome = listener_.Await(2);
  EXPECT_EQ(welcome.generation, 2u);
  EXPECT_FALSE(welcome.kept_transfers);
  EXPECT_EQ(anchor.get(), absl::StatusCode::kCancelled);
  auto again = DownloadAnchor();
  EXPECT_EQ(coordinator_.AwaitDownloads(2).back().generation(), 2u);
}

TEST_F(GrpcLinkTest, SameModelOrNoNewsOfItKeepsTheTransfersOfAJoiner) {
  Join(1);
  auto anchor = DownloadAnchor();
  coordinator_.AwaitDownloads(1);
  coordinator_.Welcome(/*stay=*/2, /*generation=*/1);
  coordinator_.EndControl();
  EXPECT_TRUE(listener_.Await(2).kept_transfers);
  coordinator_.Welcome(/*stay=*/3, /*generation=*/std::nullopt);
  coordinator_.EndControl();
  EXPECT_TRUE(listener_.Await(3).kept_transfers);
  EXPECT_TRUE(IsPending(anchor));
  EXPECT_THAT(coordinator_.AwaitDownloads(1), SizeIs(1)) << "its stream was not broken";
}

TEST_F(GrpcLinkTest, AnchorThatIsAskedForAgainTakesThePlaceOfTheEarlierDownload) {
  Join(1);
  auto first = DownloadAnchor();
  auto other = DownloadAnchor(/*fragment=*/1);
  coordinator_.AwaitDownloads(2);
  auto second = DownloadAnchor();
  EXPECT_EQ(first.get(), absl::StatusCode::kCancelled);
  EXPECT_THAT(coordinator_.AwaitDownloads(3), SizeIs(3));
  EXPECT_TRUE(IsPending(second));
  EXPECT_TRUE(IsPending(other));
}

TEST_F(GrpcLinkTest, InitialParametersThatAreSentAgainAskFirstWhatIsMissing) {
  Join(1);
  auto first = UploadSeed();
  EXPECT_TRUE(coordinator_.AwaitUploads(1).at(0).sends_all());
  auto second = UploadSeed();
  EXPECT_EQ(first.get(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(coordinator_.AwaitUploads(2).at(1).sends_all());
  EXPECT_TRUE(IsPending(second));
}

}  // namespace
}  // namespace causeway::transport
