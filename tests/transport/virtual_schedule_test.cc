// Transfers under faults that a seed chooses, and transfers whose link is ended or joined anew after every message.
#include <gmock/gmock-more-matchers.h>

#include "tests/transport/virtual_link.h"

namespace causeway::transport {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

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
