// A transfer whose call, or whose whole link, is cut after every message that it consists of, one after the other.
#include <gmock/gmock-more-matchers.h>

#include "tests/transport/virtual_link.h"

namespace causeway::transport {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

constexpr int kChunks = 7;

// Runs the same transfer with a cut after each of its messages, until a run has no message left to be cut after.
// `body` starts and awaits the transfer, and looks at it.
void CutAfterEach(const LinkOptions& options, const std::function<void(VirtualLink&)>& body) {
  for (const bool whole_link : {false, true}) {
    bool cut = true;
    for (int count = 1; cut; ++count) {
      SCOPED_TRACE(testing::Message() << (whole_link ? "the link" : "the call") << " is cut after message " << count
                                      << ", " << options.channels << " channels");
      VirtualLink world(/*seed=*/count, options);
      world.RunWelcomed([&] {
        const int before = world.carried();
        world.CutAfter(count, whole_link);
        body(world);
        cut = world.carried() - before >= count;
      });
      if (testing::Test::HasFailure()) return;
      ASSERT_LT(count, 1000);
    }
  }
}

class EveryNumberOfStripes : public testing::TestWithParam<int> {
 protected:
  LinkOptions options() const { return {.channels = GetParam()}; }
};

INSTANTIATE_TEST_SUITE_P(VirtualCuts, EveryNumberOfStripes, testing::Values(1, 2, 3, 4));

void ExpectAdmittedOnce(VirtualLink& world, const Seen& seen, const ScriptedCoordinator::UploadKey& key) {
  ASSERT_THAT(seen.ends, SizeIs(1));
  EXPECT_TRUE(seen.ends[0].ok()) << seen.ends[0];
  const ScriptedCoordinator::Upload& upload = world.coordinator->uploads[key];
  EXPECT_TRUE(upload.whole());
  EXPECT_THAT(upload.arrived, Each(Pair(testing::_, 1)));
  EXPECT_THAT(upload.wrong, IsEmpty());
}

TEST_P(EveryNumberOfStripes, AnUploadThatIsCutAnywhereBringsEachChunkOnceAndItsOwnerHearsOnce) {
  CutAfterEach(options(), [](VirtualLink& world) {
    const SeenPtr seen = world.Upload(2, 7, PayloadOf(2, 7, kChunks));
    ASSERT_TRUE(world.Await([&] { return seen->done(); }));
    world.Sleep(std::chrono::seconds(10));
    ExpectAdmittedOnce(world, *seen, {false, 2, 7});
  });
}

TEST_P(EveryNumberOfStripes, ADownloadThatIsCutAnywhereBringsEachChunkOnceAndItsOwnerHearsOnce) {
  CutAfterEach(options(), [](VirtualLink& world) {
    const SeenPtr seen = world.Fetch(2, 8, /*anchor=*/false, kChunks);
    ASSERT_TRUE(world.Await([&] { return seen->done(); }));
    world.Sleep(std::chrono::seconds(10));
    ExpectFetched(*seen, PayloadOf(2, 8, kChunks), ScriptedCoordinator::DigestOf(2, 8));
    EXPECT_EQ(seen->headers, 1) << "it goes on where it broke";
  });
}

TEST_P(EveryNumberOfStripes, AnAnchorThatIsReplacedWhileItIsCutStartsOverAndIsOfOneVersion) {
  CutAfterEach(options(), [](VirtualLink& world) {
    const SeenPtr seen = world.Fetch(1, 4, /*anchor=*/true, kChunks);
    // The newer one has fewer chunks.
    world.Await([&] { return world.carried() >= 4 || seen->done(); });
    if (!seen->done()) world.coordinator->downloads[{1, true}] = {5, PayloadOf(1, 5, kChunks - 2)};
    ASSERT_TRUE(world.Await([&] { return seen->done(); }));
    const core::Version version = seen->chunks.size() == kChunks ? 4 : 5;
    ExpectFetched(*seen, PayloadOf(1, version, version == 4 ? kChunks : kChunks - 2),
                  ScriptedCoordinator::DigestOf(1, version));
    EXPECT_LE(seen->headers, 2);
  });
}

// Chunks go a second apart, so that at most one is under way where a cut takes it.
TEST_P(EveryNumberOfStripes, AnUploadBeginsWhenAllOfTheLastOneIsWrittenWhereverThatIsCut) {
  LinkOptions held = options();
  held.max_up_bytes_per_s = 1000;
  CutAfterEach(held, [](VirtualLink& world) {
    world.observe = [&](const sim::Call&, bool to_client, const std::string& message) {
      v1::UploadMessage first;
      if (to_client || !first.ParseFromString(message) || !first.has_header() || first.header().fragment() == 0) return;
      const auto& last = world.coordinator->uploads[{false, first.header().fragment() - 1, 1}];
      EXPECT_GE(last.arrived.size() + 2, last.chunks) << "when upload " << first.header().fragment() << " began";
    };
    std::vector<SeenPtr> seen;
    for (int fragment = 0; fragment < 3; ++fragment) {
      seen.push_back(world.Upload(fragment, 1, PayloadOf(fragment, 1, 5, 1000)));
    }
    for (const SeenPtr& each : seen) ASSERT_TRUE(world.Await([&] { return each->done(); }));
    for (int fragment = 0; fragment < 3; ++fragment) ExpectAdmittedOnce(world, *seen[fragment], {false, fragment, 1});
    world.observe = nullptr;
  });
}

TEST_P(EveryNumberOfStripes, ADownloadBesideAnUploadIsCutWithItAndBothAreWhole) {
  CutAfterEach(options(), [](VirtualLink& world) {
    const SeenPtr up = world.Upload(0, 3, PayloadOf(0, 3, kChunks));
    const SeenPtr down = world.Fetch(0, 3, /*anchor=*/false, kChunks);
    ASSERT_TRUE(world.Await([&] { return up->done() && down->done(); }));
    ExpectAdmittedOnce(world, *up, {false, 0, 3});
    ExpectFetched(*down, PayloadOf(0, 3, kChunks), ScriptedCoordinator::DigestOf(0, 3));
  });
}

TEST(VirtualCuts, ATransferWithoutChunksIsToldOnceWhereverItIsCut) {
  CutAfterEach({.channels = 2}, [](VirtualLink& world) {
    const SeenPtr up = world.Upload(0, 1, {});
    const SeenPtr down = world.Fetch(0, 1, /*anchor=*/false, 0);
    ASSERT_TRUE(world.Await([&] { return up->done() && down->done(); }));
    EXPECT_THAT(up->ends, ElementsAre(absl::OkStatus()));
    ExpectFetched(*down, {}, ScriptedCoordinator::DigestOf(0, 1));
  });
}

}  // namespace
}  // namespace causeway::transport
