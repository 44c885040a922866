// A site's rate, held over all its transfers and their streams, by the bytes that cross the network and when.
#include <gmock/gmock-matchers.h>
#include <gmock/gmock-more-matchers.h>

#include "core/limits.h"
#include "tests/transport/virtual_link.h"

namespace causeway::transport {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::IsEmpty;
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

// Transfers under faults that a seed chooses, and transfers whose link is ended or joined anew after every message.

constexpr int kSeeds = 500;
constexpr int kFragments = 3;
// One fault: calls break, messages are late or come in one direction only, the coordinator's process or the control
// stream stops.
void DoHarm(VirtualLink& world) {
  sim::Chance& chance = world.machine.chance();
  switch (chance.Below(6)) {
    case 0: return world.network.BreakSome(kSite, kHub, chance.Between(1, 4));
    case 1: return world.network.Block(kSite, kHub, std::chrono::milliseconds(chance.Between(1, 90'000)));
    case 2: return world.network.Block(kHub, kSite, std::chrono::milliseconds(chance.Between(1, 90'000)));
    case 3: return world.network.set_most_delay_us(chance.Between(300, 2'000'000));
    case 4: return world.CutAfter(static_cast<int>(chance.Between(1, 20)), chance.OneIn(2));
    default:
      return world.coordinator->EndControl(chance.OneIn(2) ? grpc::Status::OK
                                                           : grpc::Status(grpc::StatusCode::UNAVAILABLE, "restarts"));
  }
}

TEST(VirtualSchedules, WhateverHappensEachTransferIsWholeAndItsOwnerHearsOnce) {
  int64_t retried = 0;
  for (int seed = 0; seed < kSeeds && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    VirtualLink world(seed, {.channels = 1 + seed % 4}, {.most_delay_us = 150'000});
    world.coordinator->welcome.set_resumed(true);
    world.RunWelcomed([&] {
      std::vector<SeenPtr> ups, downs;
      for (int p = 0; p < kFragments; ++p) {
        const auto chunks = static_cast<int>(world.machine.chance().Between(1, 9));
        ups.push_back(world.Upload(p, 1, PayloadOf(p, 1, chunks, 9000)));
        downs.push_back(world.Fetch(p, 2, /*anchor=*/p == 0, chunks, 9000));
      }
      for (int fault = 0; fault < 8; ++fault) {
        world.Sleep(std::chrono::milliseconds(world.machine.chance().Between(0, 400)));
        DoHarm(world);
      }
      world.network.Heal();
      world.network.set_most_delay_us(30'000);
      for (int p = 0; p < kFragments; ++p) {
        ASSERT_TRUE(world.Await([&] { return ups[p]->done() && downs[p]->done(); })) << "fragment " << p;
      }
      world.Sleep(std::chrono::minutes(2));  // nothing comes late
      for (int p = 0; p < kFragments; ++p) {
        ASSERT_THAT(ups[p]->ends, SizeIs(1));
        EXPECT_TRUE(ups[p]->ends[0].ok()) << ups[p]->ends[0];
        EXPECT_TRUE((world.coordinator->uploads[{false, p, 1}].whole()));
        EXPECT_THAT((world.coordinator->uploads[{false, p, 1}].wrong), IsEmpty());
        ExpectFetched(*downs[p], world.coordinator->downloads[{p, p == 0}].second, ScriptedCoordinator::DigestOf(p, 2));
        EXPECT_EQ(downs[p]->headers, 1);
      }
      retried +=
          std::ranges::count_if(world.coordinator->headers, [](const auto& header) { return !header.sends_all(); });
    });
    EXPECT_THAT(world.listener.failures, IsEmpty());
  }
  EXPECT_GT(retried, kSeeds) << "the faults break attempts";
}

// ---- The end of a link, after every message ----

struct Ending {
  const char* name;
  std::function<void(VirtualLink&)> end;
};

// Runs an upload and a download over two channels, and ends the link when `count` messages were carried. Whether they
// were not all.
bool EndAfter(int count, const Ending& ending) {
  SCOPED_TRACE(testing::Message() << ending.name << " after message " << count);
  VirtualLink world(/*seed=*/count, {.channels = 2});
  bool early = false;
  world.Run([&] {
    world.Start();
    world.AwaitWelcome();
    const std::vector<SeenPtr> seen = {world.Upload(0, 1, PayloadOf(0, 1, 5)), world.Upload(1, 1, PayloadOf(1, 1, 5)),
                                       world.Fetch(0, 1, /*anchor=*/false, 5)};
    const auto all_done = [&] { return std::ranges::all_of(seen, [](const SeenPtr& each) { return each->done(); }); };
    world.Await([&] { return world.carried() >= count || all_done(); });
    early = !all_done();
    ending.end(world);
    const auto expect_each_once = [&] {
      for (const SeenPtr& each : seen) {
        ASSERT_THAT(each->ends, SizeIs(1));
        EXPECT_THAT(each->ends[0].code(), AnyOf(absl::StatusCode::kOk, absl::StatusCode::kCancelled));
      }
    };
    expect_each_once();
    const std::vector<std::string> said = world.listener.said;
    const std::vector<Payload> chunks = {seen[2]->chunks};
    world.Sleep(std::chrono::minutes(2));
    expect_each_once();
    EXPECT_EQ(world.listener.said, said) << "after it had left";
    EXPECT_EQ(seen[2]->chunks, chunks[0]) << "after it had left";
    EXPECT_EQ(world.coordinator->open_calls(), 0u);
    if (world.link != nullptr) {
      const SeenPtr late = world.Upload(0, 9, PayloadOf(0, 9, 1));
      EXPECT_THAT(late->ends, SizeIs(1)) << "a link that has left takes no transfer";
    }
    world.link.reset();
  });
  return early;
}

TEST(VirtualEnds, LeavingOrGoingAfterAnyMessageEndsEachTransferOnceAndLeavesNothing) {
  const Ending endings[] = {{"leave", [](VirtualLink& world) { world.link->Leave(/*finished=*/false, "asked"); }},
                            {"finish", [](VirtualLink& world) { world.link->Leave(/*finished=*/true, "done"); }},
                            {"destructor", [](VirtualLink& world) { world.link.reset(); }},
                            {"hurry",
                             [](VirtualLink& world) {
                               world.link->Hurry();
                               world.link->Leave(/*finished=*/true, "done");
                             }},
                            {"finish in the middle of a cut",
                             [](VirtualLink& world) {
                               world.network.BreakSome(kSite, kHub, 1);
                               world.link->Leave(/*finished=*/true, "done");
                             }},
                            {"leave while messages are late", [](VirtualLink& world) {
                               world.network.Block(kHub, kSite, std::chrono::minutes(1));
                               world.link->Leave(/*finished=*/false, "asked");
                             }}};
  for (const Ending& ending : endings) {
    int count = 0;
    while (EndAfter(count, ending) && !testing::Test::HasFailure()) ++count;
    EXPECT_GT(count, 20) << ending.name;
    if (testing::Test::HasFailure()) return;
  }
}

TEST(VirtualEnds, DroppingAfterAnyMessageCancelsEachTransferOnceAndTheLinkGoesOn) {
  bool early = true;
  for (int count = 0; early && !testing::Test::HasFailure(); ++count) {
    SCOPED_TRACE(testing::Message() << "after message " << count);
    VirtualLink world(/*seed=*/count, {.channels = 3});
    world.RunWelcomed([&] {
      const SeenPtr up = world.Upload(0, 1, PayloadOf(0, 1, 6)), waits = world.Upload(1, 1, PayloadOf(1, 1, 6));
      const SeenPtr down = world.Fetch(0, 1, /*anchor=*/true, 6);
      world.Await([&] { return world.carried() >= count || (waits->done() && down->done()); });
      early = !up->done() || !waits->done() || !down->done();
      world.link->DropTransfers();
      ASSERT_TRUE(world.Await([&] { return up->done() && waits->done() && down->done(); }, std::chrono::seconds(5)));
      const SeenPtr after = world.Upload(1, 2, PayloadOf(1, 2, 6));
      ASSERT_TRUE(world.Await([&] { return after->done(); }));
      EXPECT_TRUE(after->ends[0].ok());
      world.Sleep(std::chrono::minutes(1));
      for (const SeenPtr& each : {up, waits, down, after}) EXPECT_THAT(each->ends, SizeIs(1));
      EXPECT_EQ(world.coordinator->open_calls(), 1u) << "the control stream";
    });
  }
}

TEST(VirtualEnds, JoiningAnewAfterAnyMessageKeepsWhatTheWelcomeKeepsAndDropsTheRest) {
  for (const bool resumed : {true, false}) {
    bool early = true;
    for (int count = 0; early && !testing::Test::HasFailure(); ++count) {
      SCOPED_TRACE(testing::Message() << "after message " << count << (resumed ? ", resumed" : ""));
      VirtualLink world(/*seed=*/count, {.channels = 2});
      world.listener.standing.joining = false;
      world.RunWelcomed([&] {
        const SeenPtr up = world.Upload(0, 1, PayloadOf(0, 1, 6)), down = world.Fetch(0, 1, /*anchor=*/false, 6);
        const auto done = [&] { return up->done() && down->done(); };
        world.Await([&] { return world.carried() >= count || done(); });
        early = !done();
        world.coordinator->welcome.set_resumed(resumed);
        count % 2 == 0 ? world.link->Rejoin() : world.link->JoinAs(5);
        ASSERT_TRUE(world.Await([&] { return world.listener.welcomes.size() == 2 && done(); }));
        EXPECT_EQ(world.coordinator->joins.back().stay(), count % 2 == 0 ? 0 : 5);
        EXPECT_EQ(world.listener.welcomes.back().kept_transfers, resumed);
        world.Sleep(std::chrono::seconds(30));
        EXPECT_TRUE(!resumed || world.coordinator->requests.size() == 2) << "its streams were not broken";
        for (const SeenPtr& each : {up, down}) {
          ASSERT_THAT(each->ends, SizeIs(1));
          EXPECT_TRUE(!resumed || each->ends[0].ok()) << each->ends[0];
        }
      });
    }
  }
}

// At rates at which none of them ends by itself.
TEST(VirtualEnds, WhatIsAskedForAgainTakesThePlaceOfItsEarlierRequestAndOfNoOther) {
  VirtualLink world(1, {.max_up_bytes_per_s = 1, .max_down_bytes_per_s = 1, .channels = 1});
  world.RunWelcomed([&] {
    const Payload payload = PayloadOf(0, 0, 6, 4000);
    const SeenPtr seed = world.Upload(0, 0, payload, /*initial=*/true);
    const SeenPtr anchor = world.Fetch(0, 1, /*anchor=*/true, 6, 4000);
    const SeenPtr other = world.Fetch(1, 1, /*anchor=*/true, 6, 4000);
    world.Sleep(std::chrono::seconds(1));
    const SeenPtr seed_again = world.Upload(0, 0, payload, /*initial=*/true);
    const SeenPtr anchor_again = world.Download(0, /*anchor=*/true, 6);
    world.Sleep(std::chrono::seconds(1));
    for (const SeenPtr& each : {seed, anchor})
      EXPECT_THAT(each->ends, ElementsAre(absl::CancelledError("the transfer was dropped")));
    for (const SeenPtr& each : {seed_again, anchor_again, other}) EXPECT_FALSE(each->done());
    EXPECT_THAT(world.coordinator->requests, SizeIs(3));
    ASSERT_THAT(world.coordinator->headers, SizeIs(2));
    EXPECT_TRUE(world.coordinator->headers[0].sends_all());
    EXPECT_FALSE(world.coordinator->headers[1].sends_all()) << "it asks first what is missing";
  });
}

TEST(VirtualEnds, AnchorsAndSeedsThatAreAskedForAgainAfterAnyMessageMoveOnce) {
  bool early = true;
  for (int count = 0; early && !testing::Test::HasFailure(); ++count) {
    SCOPED_TRACE(testing::Message() << "after message " << count);
    VirtualLink world(/*seed=*/count, {.channels = 2});
    world.RunWelcomed([&] {
      const SeenPtr up = world.Upload(0, 0, PayloadOf(0, 0, 6), /*initial=*/true);
      const SeenPtr down = world.Fetch(0, 1, /*anchor=*/true, 6);
      world.Await([&] { return world.carried() >= count || (up->done() && down->done()); });
      early = !up->done() || !down->done();
      const SeenPtr up_again = world.Upload(0, 0, PayloadOf(0, 0, 6), /*initial=*/true);
      const SeenPtr down_again = world.Download(0, /*anchor=*/true, 6);
      ASSERT_TRUE(world.Await([&] { return up_again->done() && down_again->done(); }));
      EXPECT_TRUE(up_again->ends[0].ok()) << up_again->ends[0];
      ExpectFetched(*down_again, PayloadOf(0, 1, 6), ScriptedCoordinator::DigestOf(0, 1));
      EXPECT_TRUE((world.coordinator->uploads[{true, 0, 0}].whole()));
      for (const SeenPtr& each : {up, down}) EXPECT_THAT(each->ends, SizeIs(1));
    });
  }
}

}  // namespace
}  // namespace causeway::transport
