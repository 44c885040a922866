// How a link joins, waits, gives up and ends, in virtual time.
#include <gmock/gmock-more-matchers.h>

#include "core/limits.h"
#include "tests/transport/virtual_link.h"

namespace causeway::transport {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Le;
using ::testing::SizeIs;

// Messages take a fifth of a millisecond; a thread is slow for 40 ms now and then.
constexpr sim::NetworkOptions kNear{.least_delay_us = 200, .most_delay_us = 200};
constexpr int64_t kSlackMs = 150;

// The times at which messages for the coordinator came, of one method.
class Arrivals {
 public:
  Arrivals(VirtualLink& world, sim::Method method) {
    world.observe = [this, method](const sim::Call& call, bool to_client, const std::string&) {
      if (call.method != method || to_client) return;
      at_ms.push_back(core::SystemClock().NowMs());
    };
  }
  std::vector<int64_t> at_ms;
};

void ExpectBackoffs(const std::vector<int64_t>& at_ms, size_t from = 0) {
  for (size_t i = 1; i < at_ms.size(); ++i) {
    const int64_t base_ms = std::min(core::kFirstBackoffMs << (i - 1 + from), core::kLastBackoffMs);
    EXPECT_THAT(at_ms[i] - at_ms[i - 1], AllOf(Ge(base_ms * 8 / 10), Le(base_ms * 12 / 10 + kSlackMs))) << "wait " << i;
  }
}

TEST(VirtualSession, JoinsThatEndUnansweredAreRepeatedAfterWaitsThatDouble) {
  VirtualLink world(1, {}, kNear);
  world.coordinator->ends_joins = {grpc::StatusCode::UNAVAILABLE, "the connection refused"};
  Arrivals joins(world, sim::Method::kControl);
  world.Run([&] {
    world.Start();
    ASSERT_TRUE(world.Await([&] { return joins.at_ms.size() == 10; }));
    world.observe = nullptr;
    world.link.reset();
  });
  ExpectBackoffs(joins.at_ms);
}

TEST(VirtualSession, AWelcomedLinkThatBreaksWaitsTheFirstTimeOnly) {
  VirtualLink world(2, {}, kNear);
  world.RunWelcomed([&] {
    for (int again = 2; again < 6; ++again) {
      const int64_t broke_ms = world.NowMs();
      world.coordinator->EndControl({grpc::StatusCode::UNAVAILABLE, "restarts"});
      ASSERT_TRUE(world.Await([&] { return world.listener.welcomes.size() == static_cast<size_t>(again); }));
      EXPECT_THAT(world.NowMs() - broke_ms, AllOf(Ge(80), Le(120 + kSlackMs)));
    }
  });
}

TEST(VirtualSession, ACoordinatorThatSaysWhenToComeBackIsAskedThenAndKeepsTheLinkAlive) {
  VirtualLink world(3, {.connect_timeout_s = 10}, kNear);
  world.coordinator->refuses.emplace();
  world.coordinator->refuses->set_reason("the run is full");
  world.coordinator->refuses->set_retry_after_ms(7000);
  Arrivals joins(world, sim::Method::kControl);
  world.Run([&] {
    world.Start();
    ASSERT_TRUE(world.Await([&] { return joins.at_ms.size() == 5; }));
    world.observe = nullptr;
    world.coordinator->refuses.reset();
    world.AwaitWelcome();
    world.link.reset();
  });
  for (size_t i = 1; i < joins.at_ms.size(); ++i) {
    EXPECT_THAT(joins.at_ms[i] - joins.at_ms[i - 1], AllOf(Ge(7000), Le(7000 + kSlackMs)));
  }
  EXPECT_THAT(world.listener.failures, IsEmpty()) << "28 s unwelcomed, but reached";
}

TEST(VirtualSession, ARefusalEndsTheLinkOnceWithItsReasonAndItsTransfers) {
  struct Refusing {
    const char* why;
    std::function<void(ScriptedCoordinator&)> begin;
  };
  const Refusing ways[] = {
      {"no such site",
       [](ScriptedCoordinator& coordinator) { coordinator.refuses.emplace().set_reason("no such site"); }},
      {"bad token",
       [](ScriptedCoordinator& coordinator) {
         coordinator.ends_joins = {grpc::StatusCode::PERMISSION_DENIED, "bad token"};
       }},
      {"no certificate",
       [](ScriptedCoordinator& coordinator) {
         coordinator.ends_joins = {grpc::StatusCode::UNAUTHENTICATED, "no certificate"};
       }},
      {"tensor", [](ScriptedCoordinator& coordinator) {
         coordinator.welcome.mutable_fragments(0)->add_tensors(77);  // a map that no honest peer sends
       }}};
  for (const Refusing& way : ways) {
    SCOPED_TRACE(way.why);
    VirtualLink world(4, {}, kNear);
    way.begin(*world.coordinator);
    world.Run([&] {
      world.Start();
      const SeenPtr waits = world.Upload(0, 1, PayloadOf(0, 1, 3));
      ASSERT_TRUE(world.Await([&] { return !world.listener.failures.empty(); }));
      world.Sleep(std::chrono::minutes(5));
      EXPECT_THAT(waits->ends, ElementsAre(absl::CancelledError("the transfer was dropped")));
      EXPECT_THAT(world.Upload(0, 2, PayloadOf(0, 2, 1))->ends,
                  ElementsAre(absl::CancelledError("the link has ended")));
      const core::Clock::TimePoint before = core::SystemClock().Now();
      world.link->Leave(/*finished=*/true, "done");
      EXPECT_LT(core::SystemClock().Now() - before, std::chrono::seconds(1)) << "there is no one to hear it";
      world.link.reset();
    });
    ASSERT_THAT(world.listener.failures, SizeIs(1));
    EXPECT_TRUE(absl::IsPermissionDenied(world.listener.failures[0])) << world.listener.failures[0];
    EXPECT_THAT(std::string(world.listener.failures[0].message()), HasSubstr(way.why));
    EXPECT_THAT(world.coordinator->joins, SizeIs(1)) << "asking again does not help";
  }
}

TEST(VirtualSession, ALinkGivesUpWhenNoCoordinatorWasReachedForTheTimeAllowed) {
  VirtualLink world(5, {.connect_timeout_s = 30}, kNear);
  world.Listen(false);
  int64_t took_ms = 0;
  world.Run([&] {
    world.Start();
    const int64_t begin_ms = world.NowMs();
    const SeenPtr waits = world.Fetch(0, 1, /*anchor=*/true, 2);
    ASSERT_TRUE(world.Await([&] { return !world.listener.failures.empty(); }));
    took_ms = world.NowMs() - begin_ms;
    EXPECT_TRUE(waits->done());
    world.link.reset();
  });
  EXPECT_THAT(took_ms, AllOf(Ge(30'000), Le(30'000 + core::kLastBackoffMs * 12 / 10 + kSlackMs)));
  ASSERT_THAT(world.listener.failures, SizeIs(1));
  EXPECT_EQ(world.listener.failures[0],
            absl::UnavailableError("no coordinator at 127.0.0.1:1 for 30 s: connection refused"));
}

TEST(VirtualSession, ACoordinatorThatComesBackInTimeIsJoinedAndItsTransfersGoOn) {
  VirtualLink world(6, {.connect_timeout_s = 30, .channels = 2}, kNear);
  world.coordinator->welcome.set_resumed(true);
  world.RunWelcomed([&] {
    world.CutAfter(4, /*whole_link=*/true);
    world.network.Close("hub");
    const SeenPtr up = world.Upload(0, 1, PayloadOf(0, 1, 9));
    world.network.BreakSome("site", "hub", 1);
    world.Sleep(std::chrono::seconds(25));
    EXPECT_FALSE(up->done());
    world.Listen(true);
    ASSERT_TRUE(world.Await([&] { return up->done(); }, std::chrono::seconds(5)));
    EXPECT_TRUE(up->ends[0].ok());
  });
  EXPECT_THAT(world.listener.failures, IsEmpty());
}

TEST(VirtualSession, NothingIsLaunchedBeforeTheListenerHasHeardTheWelcome) {
  VirtualLink world(7, {}, kNear);
  size_t launched_at_welcome = 99;
  world.listener.on_welcome = [&] {
    world.Sleep(std::chrono::milliseconds(200));
    launched_at_welcome = world.coordinator->headers.size();
  };
  world.Run([&] {
    world.Start();
    const SeenPtr up = world.Upload(0, 1, PayloadOf(0, 1, 3));
    ASSERT_TRUE(world.Await([&] { return up->done(); }));
    EXPECT_EQ(launched_at_welcome, 0u);
    world.link.reset();
  });
}

TEST(VirtualSession, TransfersNameTheSessionAndTheModelAsTheyWereWelcomed) {
  VirtualLink world(8, {.shard = {1, 3}}, kNear);
  world.coordinator->welcome.set_generation(6);
  world.coordinator->welcome.set_epoch(9);
  world.RunWelcomed([&] {
    const SeenPtr up = world.Upload(0, 1, PayloadOf(0, 1, 1)), down = world.Fetch(0, 1, /*anchor=*/false, 1);
    ASSERT_TRUE(world.Await([&] { return up->done() && down->done(); }));
    const v1::UploadHeader header = world.coordinator->headers.at(0);
    const v1::DownloadRequest request = world.coordinator->requests.at(0);
    EXPECT_EQ(header.generation(), 6u);
    EXPECT_EQ(request.generation(), 6u);
    EXPECT_TRUE(request.wants_weights());
    for (const v1::Context& context : {header.context(), request.context()}) {
      EXPECT_EQ(context.session(), world.link->session());
      EXPECT_EQ(context.epoch(), 9u);
      EXPECT_EQ(context.lineage(), "l");
      EXPECT_EQ(context.shard(), 1);
      EXPECT_EQ(context.num_shards(), 3);
    }
  });
}

TEST(VirtualSession, ACoordinatorOfBeforeGenerationsIsNamedNone) {
  VirtualLink world(8, {}, kNear);
  world.coordinator->welcome.clear_generation();
  world.RunWelcomed([&] {
    const SeenPtr up = world.Upload(0, 1, PayloadOf(0, 1, 1)), down = world.Fetch(0, 1, /*anchor=*/false, 1);
    ASSERT_TRUE(world.Await([&] { return up->done() && down->done(); }));
    EXPECT_FALSE(world.coordinator->headers.at(0).has_generation());
    EXPECT_FALSE(world.coordinator->requests.at(0).has_generation());
  });
}

TEST(VirtualSession, AnUpdateOfAnotherGenerationIsNotTakenAndAskedForAgain) {
  VirtualLink world(9, {}, kNear);
  world.coordinator->header_generation = 2;
  world.RunWelcomed([&] {
    const SeenPtr down = world.Fetch(0, 1, /*anchor=*/false, 3);
    ASSERT_TRUE(world.Await([&] { return world.coordinator->requests.size() >= 3; }));
    EXPECT_EQ(down->headers, 0);
    EXPECT_FALSE(down->done());
    world.coordinator->header_generation = 1;
    ASSERT_TRUE(world.Await([&] { return down->done(); }));
    ExpectFetched(*down, PayloadOf(0, 1, 3), ScriptedCoordinator::DigestOf(0, 1));
  });
}

TEST(VirtualSession, AnotherLineageDropsWhatAJoinerHadBegun) {
  VirtualLink world(10, {.max_up_bytes_per_s = 100}, kNear);
  world.RunWelcomed([&] {
    const SeenPtr up = world.Upload(0, 1, PayloadOf(0, 1, 5, 1000)), queued = world.Upload(1, 1, PayloadOf(1, 1, 1));
    world.Sleep(std::chrono::seconds(5));
    world.coordinator->welcome.set_lineage("restored");
    world.link->Rejoin();
    ASSERT_TRUE(world.Await([&] { return world.listener.welcomes.size() == 2; }));
    EXPECT_FALSE(world.listener.welcomes[1].same_lineage);
    EXPECT_FALSE(world.listener.welcomes[1].kept_transfers);
    EXPECT_TRUE(queued->done()) << "before the listener heard of it";
    ASSERT_TRUE(world.Await([&] { return up->done(); }, std::chrono::seconds(1)));
    EXPECT_TRUE(absl::IsCancelled(up->ends[0]));
  });
}

TEST(VirtualSession, WhatTheCoordinatorSaysComesInItsOrderAndOnce) {
  VirtualLink world(11);  // messages are late, each by another time
  std::vector<std::string> expected = {"goes on", "welcome"};
  world.RunWelcomed([&] {
    for (int i = 0; i < 40; ++i) {
      v1::CoordinatorMessage message;
      switch (i % 5) {
        case 0: message.mutable_entry()->set_step(i); break;
        case 1: message.mutable_notice()->set_reason(std::to_string(i)); break;
        case 2: message.mutable_hold()->set_held(true); break;
        case 3: message.mutable_seed_request(); break;
        default: message.mutable_drain()->set_reason(std::to_string(i));
      }
      world.coordinator->Say(message);
      const std::string number = std::to_string(i);
      expected.push_back(
          std::vector<std::string>{"entry " + number, "notice " + number, "hold", "seed", "drain " + number}[i % 5]);
    }
    world.coordinator->Say({});  // of a newer coordinator: nothing
    ASSERT_TRUE(world.Await([&] { return world.listener.said.size() >= expected.size(); }));
    world.Sleep(std::chrono::seconds(5));
  });
  EXPECT_EQ(world.listener.said, expected);
}

TEST(VirtualSession, ReportsArriveInOrderAndPingsMeasureTheRoundTrip) {
  VirtualLink world(12, {}, {.least_delay_us = 25'000, .most_delay_us = 25'000});
  world.Run([&] {
    world.Start();
    world.AwaitWelcome();
    world.Sleep(std::chrono::seconds(1));
    world.coordinator->said.clear();
    for (int step = 0; step < 20; ++step) {
      EXPECT_TRUE(world.link->SendProgress({.step = step}));
      world.Sleep(std::chrono::milliseconds(100));
    }
    world.link->SendReady();
    world.Sleep(std::chrono::seconds(1));
    std::vector<int64_t> steps;
    int pings = 0, ready = 0;
    int64_t most_unheard_ms = 0;
    for (const v1::SiteMessage& message : world.coordinator->said) {
      if (message.has_progress()) steps.push_back(message.progress().step());
      if (pings > 1) most_unheard_ms = std::max(most_unheard_ms, message.progress().unheard_ms());
      pings += message.has_ping();
      ready += message.has_ready();
    }
    EXPECT_THAT(steps, SizeIs(20));
    EXPECT_TRUE(std::ranges::is_sorted(steps));
    EXPECT_EQ(ready, 1);
    EXPECT_EQ(pings, 20);
    EXPECT_THAT(most_unheard_ms, AllOf(Ge(40), Le(110))) << "a report's interval and a way, not more";
    EXPECT_NEAR(world.link->Measured().round_trip_s, 0.050, 0.005);
    world.link.reset();
  });
}

TEST(VirtualSession, APingThatIsNotAnsweredMeasuresNothing) {
  VirtualLink world(13, {}, kNear);
  world.coordinator->answers_pings = false;
  world.RunWelcomed([&] {
    for (int i = 0; i < 5; ++i) {
      world.link->SendProgress({});
      world.Sleep(std::chrono::seconds(1));
    }
    EXPECT_EQ(world.link->Measured().round_trip_s, 0);
  });
}

TEST(VirtualSession, ALinkWithoutAStreamSendsNoReport) {
  VirtualLink world(14, {}, kNear);
  world.Listen(false);
  world.Run([&] {
    world.Start();
    ASSERT_TRUE(world.Await([&] { return !world.link->SendProgress({}); }, std::chrono::seconds(5)));
    world.link.reset();
  });
}

// ---- Leaving ----

// How long a leave took, where the coordinator hears it or does not.
int64_t LeaveMs(bool finished, bool hears, bool hurries_after_a_second = false) {
  VirtualLink world(15, {}, kNear);
  world.coordinator->hears_leaves = hears;
  int64_t took_ms = 0;
  world.Run([&] {
    world.Start();
    world.AwaitWelcome();
    world.Sleep(std::chrono::seconds(1));
    const int64_t begin_ms = world.NowMs();
    if (hurries_after_a_second) {
      world.machine.Start([&] {
        world.Sleep(std::chrono::seconds(1));
        world.link->Hurry();
      });
    }
    world.link->Leave(finished, "why");
    took_ms = world.NowMs() - begin_ms;
    EXPECT_THAT(world.coordinator->said, SizeIs(1));
    EXPECT_EQ(world.coordinator->said[0].leave().finished(), finished);
    EXPECT_EQ(world.coordinator->said[0].leave().reason(), "why");
    world.link.reset();
  });
  return took_ms;
}

TEST(VirtualLeave, ALeaveThatIsHeardTakesARoundTrip) {
  EXPECT_LE(LeaveMs(/*finished=*/true, /*hears=*/true), kSlackMs);
  EXPECT_LE(LeaveMs(/*finished=*/false, /*hears=*/true), kSlackMs);
}

TEST(VirtualLeave, ALeaveThatIsNotHeardWaitsLongerWhereAllIsDone) {
  EXPECT_THAT(LeaveMs(/*finished=*/false, /*hears=*/false), AllOf(Ge(2000), Le(2000 + kSlackMs)));
  EXPECT_THAT(LeaveMs(/*finished=*/true, /*hears=*/false), AllOf(Ge(30'000), Le(30'000 + kSlackMs)));
  EXPECT_THAT(LeaveMs(/*finished=*/true, /*hears=*/false, /*hurries_after_a_second=*/true),
              AllOf(Ge(1000), Le(1000 + kSlackMs)));
}

TEST(VirtualLeave, ThatAllIsDoneIsSaidAgainToACoordinatorThatRestarts) {
  VirtualLink world(16, {}, kNear);
  world.coordinator->hears_leaves = false;
  world.Run([&] {
    world.Start();
    world.AwaitWelcome();
    world.machine.Start([&] {
      world.Sleep(std::chrono::seconds(3));
      world.coordinator->EndControl({grpc::StatusCode::UNAVAILABLE, "restarts"});
      world.coordinator->hears_leaves = true;
    });
    const int64_t begin_ms = world.NowMs();
    world.link->Leave(/*finished=*/true, "done");
    EXPECT_THAT(world.NowMs() - begin_ms, AllOf(Ge(3000), Le(3000 + 120 + kSlackMs)));
    EXPECT_THAT(world.coordinator->joins, SizeIs(2));
    EXPECT_THAT(world.coordinator->said, SizeIs(2)) << "the leave, twice";
    world.link.reset();
  });
}

}  // namespace
}  // namespace causeway::transport
