// A site's rate, held over all its transfers and their streams, by the bytes that cross the network and when.
#include <gmock/gmock-matchers.h>

#include "core/limits.h"
#include "tests/transport/virtual_link.h"

namespace causeway::transport {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::Le;
using ::testing::SizeIs;

// Every message takes the same time, so that bytes arrive as far apart as they were sent. Those that a call sends
// before it is connected wait for that, and may follow closer then.
constexpr sim::NetworkOptions kEven{.least_delay_us = 200, .most_delay_us = 200};
constexpr double kConnectS = 2e-3;

struct Crossing {
  double at_s;
  int64_t bytes;
};

// All messages of uploads, or of downloads, as they cross.
class Crossings {
 public:
  Crossings(VirtualLink& world, sim::Method method) {
    world.machine.KeepPunctual();  // a thread that is late sends what it may, and the next one follows closer
    world.observe = [this, method](const sim::Call& call, bool to_client, const std::string& message) {
      if (call.method != method || to_client != (method == sim::Method::kDownload)) return;
      const double at_s = 1e-6 * static_cast<double>(core::SystemClock().NowUs());
      crossings.push_back({at_s, static_cast<int64_t>(message.size())});
    };
  }

  // From every crossing on, at every later one: at most the rate's bytes and `burst` more.
  void ExpectHeld(double bytes_per_s, int64_t burst) const {
    for (size_t from = 0; from < crossings.size(); ++from) {
      int64_t bytes = 0;
      for (size_t i = from; i < crossings.size(); ++i) {
        bytes += crossings[i].bytes;
        const double elapsed_s = crossings[i].at_s - crossings[from].at_s + kConnectS;
        ASSERT_LE(static_cast<double>(bytes), bytes_per_s * elapsed_s + static_cast<double>(burst))
            << "crossings " << from << " to " << i << " of " << crossings.size();
      }
    }
  }
  double seconds() const { return crossings.back().at_s - crossings.front().at_s; }
  int64_t bytes() const {
    int64_t sum = 0;
    for (const Crossing& each : crossings) sum += each.bytes;
    return sum;
  }

  std::vector<Crossing> crossings;
};

constexpr int64_t kChunkBytes = 4000;
constexpr int64_t kHeaderBytes = 200;  // are not held: one a stream

struct Held {
  double bytes_per_s;
  int channels;
};

class EveryRate : public testing::TestWithParam<Held> {};

INSTANTIATE_TEST_SUITE_P(VirtualPacing, EveryRate,
                         testing::Values(Held{20e3, 1}, Held{20e3, 4}, Held{300e3, 2}, Held{1e6, 4}, Held{5e6, 3}));

TEST_P(EveryRate, UploadsTogetherNeverExceedItAndUseAllOfIt) {
  const auto [bytes_per_s, channels] = GetParam();
  VirtualLink world(1, {.max_up_bytes_per_s = bytes_per_s, .channels = channels}, kEven);
  Crossings sent(world, sim::Method::kUpload);
  world.RunWelcomed([&] {
    std::vector<SeenPtr> seen;
    for (int p = 0; p < 4; ++p) seen.push_back(world.Upload(p, 1, PayloadOf(p, 1, 20, kChunkBytes)));
    for (const SeenPtr& each : seen) ASSERT_TRUE(world.Await([&] { return each->done(); }));
  });
  sent.ExpectHeld(bytes_per_s, kChunkBytes + 4 * channels * kHeaderBytes);
  // The last chunk takes no time any more.
  EXPECT_LE(sent.seconds(), static_cast<double>(sent.bytes() - kChunkBytes) / bytes_per_s + 0.02);
}

TEST_P(EveryRate, DownloadsTogetherNeverExceedItAndUseAllOfIt) {
  const auto [bytes_per_s, channels] = GetParam();
  VirtualLink world(2, {.max_down_bytes_per_s = bytes_per_s, .channels = channels}, kEven);
  Crossings taken(world, sim::Method::kDownload);
  world.RunWelcomed([&] {
    std::vector<SeenPtr> seen;
    for (int p = 0; p < 4; ++p) seen.push_back(world.Fetch(p, 1, /*anchor=*/false, 20, kChunkBytes));
    for (const SeenPtr& each : seen) ASSERT_TRUE(world.Await([&] { return each->done(); }));
  });
  // Each stream has taken one message for which its turn is still to come.
  taken.ExpectHeld(bytes_per_s, (4 * channels + 1) * (kChunkBytes + 10));
  EXPECT_LE(taken.seconds(), static_cast<double>(taken.bytes()) / bytes_per_s + 0.02);
}

TEST_P(EveryRate, CutsAndRetriesNeverExceedIt) {
  const auto [bytes_per_s, channels] = GetParam();
  for (int seed = 0; seed < 20 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    VirtualLink world(seed, {.max_up_bytes_per_s = bytes_per_s, .channels = channels}, kEven);
    Crossings sent(world, sim::Method::kUpload);
    size_t attempts = 0;
    world.RunWelcomed([&] {
      const SeenPtr up = world.Upload(0, 1, PayloadOf(0, 1, 20, kChunkBytes));
      for (int cut = 0; cut < 3; ++cut) {
        world.CutAfter(static_cast<int>(world.machine.chance().Between(2, 8)), /*whole_link=*/false);
        const int before = world.carried();
        world.Await([&] { return up->done() || world.carried() >= before + 8; });
      }
      ASSERT_TRUE(world.Await([&] { return up->done(); }));
      EXPECT_TRUE(up->ends[0].ok());
      attempts = world.coordinator->headers.size();
    });
    EXPECT_GT(attempts, static_cast<size_t>(channels));
    sent.ExpectHeld(bytes_per_s, kChunkBytes + static_cast<int64_t>(attempts) * kHeaderBytes);
  }
}

TEST(VirtualPacing, TimeWithoutTransfersIsNotSavedUp) {
  constexpr double kBytesPerS = 20e3;
  VirtualLink world(3, {.max_up_bytes_per_s = kBytesPerS, .channels = 2}, kEven);
  Crossings sent(world, sim::Method::kUpload);
  world.RunWelcomed([&] {
    for (int p = 0; p < 3; ++p) {
      const SeenPtr up = world.Upload(p, 1, PayloadOf(p, 1, 6, kChunkBytes));
      ASSERT_TRUE(world.Await([&] { return up->done(); }));
      world.Sleep(std::chrono::minutes(1));
    }
  });
  sent.ExpectHeld(kBytesPerS, kChunkBytes + 2 * kHeaderBytes);
}

TEST(VirtualPacing, ADirectionDoesNotWaitForTheOther) {
  VirtualLink world(4, {.max_up_bytes_per_s = 1000, .channels = 1}, kEven);
  world.RunWelcomed([&] {
    const SeenPtr up = world.Upload(0, 1, PayloadOf(0, 1, 20, kChunkBytes));
    const SeenPtr down = world.Fetch(0, 1, /*anchor=*/false, 20, kChunkBytes);
    ASSERT_TRUE(world.Await([&] { return down->done(); }, std::chrono::seconds(2)));
    EXPECT_FALSE(up->done());
  });
}

TEST(VirtualPacing, WithoutARateAllGoesAtOnce) {
  VirtualLink world(5, {.channels = 2}, kEven);
  world.RunWelcomed([&] {
    const SeenPtr up = world.Upload(0, 1, PayloadOf(0, 1, 200, kChunkBytes));
    ASSERT_TRUE(world.Await([&] { return up->done(); }, std::chrono::seconds(1)));
  });
}

// A rate at which a chunk takes more than an hour.
TEST(VirtualPacing, ATransferThatWaitsForItsTurnIsDroppedAtOnceWheneverThatIs) {
  for (int after_us = 0; after_us < 12'000 && !testing::Test::HasFailure(); after_us += 100) {
    for (int seed = 0; seed < 10; ++seed) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", after " << after_us << " us");
      VirtualLink world(seed, {.max_up_bytes_per_s = 1, .max_down_bytes_per_s = 1, .channels = 2},
                        {.least_delay_us = 200, .most_delay_us = 3000});
      world.RunWelcomed([&] {
        const SeenPtr up = world.Upload(0, 1, PayloadOf(0, 1, 6, kChunkBytes));
        const SeenPtr down = world.Fetch(0, 1, /*anchor=*/false, 6, kChunkBytes);
        world.Sleep(std::chrono::microseconds(after_us));
        world.link->DropTransfers();
        ASSERT_TRUE(world.Await([&] { return up->done() && down->done(); }, std::chrono::seconds(1)));
      });
    }
  }
}

TEST(VirtualPacing, ADownloadThatCannotBeTakenEndsAtOnceAlsoWhereOthersWait) {
  VirtualLink world(6, {.max_down_bytes_per_s = 1, .channels = 1}, kEven);
  world.RunWelcomed([&] {
    const SeenPtr waits = world.Fetch(0, 1, /*anchor=*/false, 6, kChunkBytes);
    world.Sleep(std::chrono::seconds(1));
    world.coordinator->downloads[{1, false}] = {1, PayloadOf(1, 1, 5)};
    const SeenPtr refused = world.Download(1, /*anchor=*/false, /*most_chunks=*/4);
    ASSERT_TRUE(world.Await([&] { return refused->done(); }, std::chrono::seconds(1)));
    EXPECT_TRUE(absl::IsInvalidArgument(refused->ends[0])) << refused->ends[0];
    EXPECT_EQ(refused->headers, 0);
    EXPECT_FALSE(waits->done());
  });
}

// ---- Answers of a coordinator, and how often a transfer is tried ----

// The ends of an upload and a download whose calls all end with this, and their attempts.
struct Tried {
  std::vector<absl::Status> up, down;
  size_t uploads = 0, downloads = 0;
};
Tried TryAgainst(const grpc::Status& status) {
  VirtualLink world(7, {.channels = 2}, kEven);
  world.coordinator->ends_bulk = status;
  Tried tried;
  world.RunWelcomed([&] {
    const SeenPtr up = world.Upload(0, 1, PayloadOf(0, 1, 4)), down = world.Fetch(0, 1, /*anchor=*/false, 4);
    world.Sleep(std::chrono::minutes(1));
    tried = {up->ends, down->ends, world.coordinator->headers.size() / 2, world.coordinator->requests.size() / 2};
  });
  return tried;
}

TEST(VirtualAnswers, ADamagedChunkIsSentThreeTimesAndADownloadThatIsNotThereAskedForOnce) {
  const Tried damaged = TryAgainst({grpc::StatusCode::INVALID_ARGUMENT, "chunk 3 is damaged"});
  EXPECT_THAT(damaged.up, ElementsAre(absl::DataLossError("chunk 3 is damaged")));
  EXPECT_EQ(damaged.uploads, 3u);
  EXPECT_THAT(damaged.down, ElementsAre(absl::InvalidArgumentError("chunk 3 is damaged")));
  EXPECT_EQ(damaged.downloads, 1u);
  const Tried pruned = TryAgainst({grpc::StatusCode::NOT_FOUND, "pruned"});
  EXPECT_THAT(pruned.down, ElementsAre(absl::NotFoundError("pruned")));
  EXPECT_EQ(pruned.downloads, 1u);
}

TEST(VirtualAnswers, EverythingElseIsTriedAgainAfterWaitsThatDouble) {
  for (const auto code : {grpc::StatusCode::UNAVAILABLE, grpc::StatusCode::ABORTED, grpc::StatusCode::OK,
                          grpc::StatusCode::INTERNAL, grpc::StatusCode::FAILED_PRECONDITION}) {
    const Tried tried = TryAgainst({code, "later"});
    EXPECT_THAT(tried.up, SizeIs(0)) << code;
    EXPECT_THAT(tried.down, SizeIs(0)) << code;
    // In a minute: at 0, 0.1, 0.3, 0.7, 1.5 and 3.1 s, then every 2 s, each wait a fifth more or less.
    EXPECT_THAT(tried.uploads, AllOf(Ge(26), Le(42))) << code;
    EXPECT_THAT(tried.downloads, AllOf(Ge(26), Le(42))) << code;
  }
}

TEST(VirtualAnswers, AVerdictAgainstAContributionIsToldWithItsReason) {
  VirtualLink world(8, {.channels = 3}, kEven);
  world.coordinator->refuses_contributions = "the round is closed";
  world.RunWelcomed([&] {
    const SeenPtr up = world.Upload(0, 1, PayloadOf(0, 1, 4));
    ASSERT_TRUE(world.Await([&] { return up->done(); }));
    EXPECT_THAT(up->ends, ElementsAre(absl::FailedPreconditionError("the round is closed")));
  });
}

TEST(VirtualAnswers, ATransferTakesAsManyStreamsAsItHasChunksAndNoMoreThanConnections) {
  for (const auto& [chunks, streams] : {std::pair(0, 1), {1, 1}, {2, 2}, {3, 3}, {9, 3}}) {
    VirtualLink world(9, {.channels = 3}, kEven);
    world.RunWelcomed([&] {
      const SeenPtr up = world.Upload(0, 1, PayloadOf(0, 1, chunks)), down = world.Fetch(0, 1, /*anchor=*/true, chunks);
      ASSERT_TRUE(world.Await([&] { return up->done() && down->done(); }));
      EXPECT_THAT(world.coordinator->headers, SizeIs(streams));
      EXPECT_THAT(world.coordinator->requests, SizeIs(streams));
      for (const v1::UploadHeader& header : world.coordinator->headers) EXPECT_EQ(header.num_stripes(), streams);
    });
  }
}

TEST(VirtualAnswers, WhatTransfersMeasureIsTheRateAtWhichTheyWent) {
  VirtualLink world(10, {.max_up_bytes_per_s = 1e6, .max_down_bytes_per_s = 2e6, .channels = 2}, kEven);
  world.RunWelcomed([&] {
    const SeenPtr up = world.Upload(0, 1, PayloadOf(0, 1, 40, 25'000));
    const SeenPtr down = world.Fetch(0, 1, /*anchor=*/false, 40, 25'000);
    ASSERT_TRUE(world.Await([&] { return up->done() && down->done(); }));
    EXPECT_NEAR(world.link->Measured().up_bytes_per_s, 1e6, 1e5);
    EXPECT_NEAR(world.link->Measured().down_bytes_per_s, 2e6, 2e5);
  });
}

}  // namespace
}  // namespace causeway::transport
