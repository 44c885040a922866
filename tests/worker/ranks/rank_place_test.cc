#include "worker/ranks/rank_place.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>

#include "core/clock.h"
#include "tests/formats/temporary_folder.h"
#include "tests/worker/ranks/collectives_suite.h"
#include "tests/worker/ranks/gloo_ranks.h"
#include "worker/ranks/rank_launcher.h"

namespace causeway::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using Variables = std::map<std::string, std::string>;

absl::StatusOr<RankPlace> Read(const RankFlags& flags, const Variables& variables) {
  return ReadRankPlace(flags, [&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

std::string Described(const absl::StatusOr<RankPlace>& place) {
  if (!place.ok()) return std::string(place.status().message());
  return std::to_string(place->rank) + " of " + std::to_string(place->world) + " at " + place->rendezvous;
}

TEST(RankPlace, IsOneOfOneWhereNothingSaysOtherwise) { EXPECT_EQ(Described(Read({}, {})), "0 of 1 at "); }

TEST(RankPlace, FlagsWinOverTheEnvironment) {
  const Variables torchrun = {{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"MASTER_ADDR", "node0"}};
  EXPECT_EQ(Described(Read({.rank = 1, .world = 2, .rendezvous = "unix:/a"}, torchrun)), "1 of 2 at unix:/a");
  EXPECT_EQ(Described(Read({.rendezvous = "node9:1"}, torchrun)), "3 of 8 at node9:1");
}

TEST(RankPlace, UnderTorchrunIsBesideThePortOfItsAgent) {
  Variables torchrun = {{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"MASTER_ADDR", "node0"}, {"MASTER_PORT", "4000"}};
  EXPECT_EQ(Described(Read({}, torchrun)), "3 of 8 at node0:4000");
  torchrun["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  EXPECT_EQ(Described(Read({}, torchrun)), "3 of 8 at node0:4001");
}

TEST(RankPlace, TheLocalRankIsTheLaunchers) {
  const auto with = [](const std::string& name, const std::string& value) {
    return ReadLocalRank([=](const std::string& asked) { return asked == name ? std::optional(value) : std::nullopt; });
  };
  EXPECT_EQ(with("LOCAL_RANK", "3"), 3);
  EXPECT_EQ(with("SLURM_LOCALID", "2"), 2);
  EXPECT_EQ(with("OMPI_COMM_WORLD_LOCAL_RANK", "1"), 1);
  EXPECT_EQ(with("LOCAL_RANK", "many"), 0);
  EXPECT_EQ(with("RANK", "5"), 0);
}

TEST(RankPlace, InAStepOfSlurmIsAtItsFirstHostAtAPortOfTheStep) {
  Variables slurm = {{"SLURM_PROCID", "1"},
                     {"SLURM_NTASKS", "16"},
                     {"SLURM_STEP_NODELIST", "gpu[07-08]"},
                     {"SLURM_JOB_ID", "12"},
                     {"SLURM_STEP_ID", "3"}};
  EXPECT_EQ(Described(Read({}, slurm)), "1 of 16 at gpu07:20375");
  slurm["SLURM_STEP_ID"] = "4";
  EXPECT_EQ(Described(Read({}, slurm)), "1 of 16 at gpu07:20376");
  slurm.erase("SLURM_STEP_NODELIST");  // the batch script, which runs once
  EXPECT_EQ(Described(Read({}, slurm)), "0 of 1 at ");
}

// salloc's interactive step, and srun --pty: a shell of one task in a job of several.
TEST(RankPlace, InAShellOfSlurmIsAloneAndSaysWhy) {
  Variables shell = {{"SLURM_PROCID", "0"},  {"SLURM_NTASKS", "4"},           {"SLURM_STEP_NODELIST", "gpu07"},
                     {"SLURM_JOB_ID", "12"}, {"SLURM_STEP_ID", "4294967290"}, {"SLURM_STEP_NUM_TASKS", "1"},
                     {"SLURM_LOCALID", "0"}};
  EXPECT_EQ(Described(Read({}, shell)), "0 of 1 at ");
  EXPECT_EQ(Read({}, shell)->note,
            "this step of Slurm has 1 task of the job's 4 (SLURM_STEP_NUM_TASKS, SLURM_NTASKS), and the site as many "
            "ranks; srun starts more");
  shell["SLURM_STEP_NUM_TASKS"] = "2";  // srun -n2 in that shell
  shell["SLURM_STEP_ID"] = "0";
  EXPECT_EQ(Described(Read({}, shell)), "0 of 2 at gpu07:20372");
  shell["SLURM_STEP_NUM_TASKS"] = "4";
  EXPECT_EQ(Read({}, shell)->note, "");
}

TEST(RankPlace, TakesIpv6InBrackets) {
  const RankFlags flags = {.rank = 0, .world = 2, .rendezvous = "[::1]:29511"};
  EXPECT_EQ(Described(Read(flags, {})), "0 of 2 at [::1]:29511");
  EXPECT_EQ(Described(Read({.rank = 0, .world = 2, .rendezvous = "::1:29511"}, {})),
            "--rendezvous: expected an IPv6 address in brackets, [::1]:29511, got '::1:29511'; or unix:PATH");
  EXPECT_EQ(Described(Read({.rank = 0, .world = 2, .rendezvous = "host"}, {})),
            "--rendezvous: expected HOST:PORT with a port from 0 to 65535, got 'host'; or unix:PATH");
  for (const char* host : {"fd00::7", "[fd00::7]"}) {
    EXPECT_EQ(Described(Read({}, {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", host}})),
              "1 of 2 at [fd00::7]:29500");
  }
}

TEST(RankPlace, UnderOpenMpiOnOneHostNeedsNoAddress) {
  const TemporaryFolder scratch;
  Variables mpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                   {"OMPI_COMM_WORLD_SIZE", "4"},
                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                   {"PMIX_NAMESPACE", "7"},
                   {"TMPDIR", scratch.path()}};
  const std::string folder = scratch / ("causeway-" + std::to_string(geteuid()));
  for (int time = 0; time < 2; ++time) {
    EXPECT_EQ(Described(Read({}, mpi)), "1 of 4 at unix:" + folder + "/ranks-7");
    EXPECT_EQ(std::filesystem::status(folder).permissions(), std::filesystem::perms::owner_all);
  }
  std::filesystem::permissions(folder, std::filesystem::perms(0755));
  EXPECT_THAT(Described(Read({}, mpi)), HasSubstr("that no other one may enter, got one of user "));
  std::filesystem::remove(folder);
  std::filesystem::create_directory_symlink(scratch.path(), folder);
  EXPECT_THAT(Described(Read({}, mpi)), HasSubstr("got something else of user "));
  mpi["TMPDIR"] = scratch / "none";
  EXPECT_THAT(Described(Read({}, mpi)), HasSubstr("No such file or directory; set TMPDIR"));
  mpi["OMPI_COMM_WORLD_LOCAL_SIZE"] = "2";
  EXPECT_EQ(Described(Read({}, mpi)),
            "MASTER_ADDR: expected the host of rank 0, got none: set it, or --rendezvous=HOST:PORT");
  mpi["MASTER_ADDR"] = "node0";
  EXPECT_EQ(Described(Read({}, mpi)), "1 of 4 at node0:29500");
}

TEST(RankPlace, TwoLaunchersMayAgreeButNotDiffer) {
  Variables both = {{"RANK", "1"},
                    {"WORLD_SIZE", "2"},
                    {"MASTER_ADDR", "a"},
                    {"OMPI_COMM_WORLD_RANK", "1"},
                    {"OMPI_COMM_WORLD_SIZE", "2"}};
  EXPECT_EQ(Described(Read({}, both)), "1 of 2 at a:29500");
  both["OMPI_COMM_WORLD_SIZE"] = "3";
  EXPECT_THAT(Described(Read({}, both)), HasSubstr("got rank 1 of 2 (RANK, WORLD_SIZE) and rank 1 of 3 "
                                                   "(OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE)"));
}

TEST(RankPlace, NumbersThatAreNoneAreRefused) {
  EXPECT_EQ(Described(Read({}, {{"RANK", "x"}, {"WORLD_SIZE", "2"}})), "RANK: expected a number of 0 or more, got 'x'");
  EXPECT_THAT(Described(Read({}, {{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}})),
              HasSubstr("expected a rank below the world's size, got rank 2 of 2"));
}

TEST(FirstHost, IsReadFromSlurmsLists) {
  EXPECT_EQ(FirstHost("node"), "node");
  EXPECT_EQ(FirstHost("node3,other"), "node3");
  EXPECT_EQ(FirstHost("node[03-05,9],other"), "node03");
  EXPECT_EQ(FirstHost("node[7,9]"), "node7");
  EXPECT_EQ(FirstHost("a,node[7,9]"), "a");
}

TEST(ShareOfCores, IsEqualAndNeverNone) {
  const std::vector<int> cores = {0, 2, 4, 6, 8};
  EXPECT_THAT(ShareOfCores(cores, 0, 2), ElementsAre(0, 2));
  EXPECT_THAT(ShareOfCores(cores, 1, 2), ElementsAre(4, 6, 8));
  EXPECT_THAT(ShareOfCores({1, 3}, 2, 4), ElementsAre(1));
  EXPECT_THAT(ShareOfCores({}, 0, 2), ElementsAre());
}

std::optional<std::string> None(const std::string&) { return std::nullopt; }

TEST(RankKey, IsProvenByWhoKnowsItInThatRoleToThatChallengeAlone) {
  const RankKey key("0123456789abcdef"), other("0123456789abcdeF");
  const std::string proof = key.Prove("rank", "challenge");
  EXPECT_EQ(proof.size(), 32u);
  EXPECT_TRUE(key.IsProven("rank", "challenge", proof));
  EXPECT_FALSE(key.IsProven("rank 0", "challenge", proof)) << "rank 0's own proof is of no use to a stranger";
  EXPECT_FALSE(key.IsProven("rank", "another", proof));
  EXPECT_FALSE(other.IsProven("rank", "challenge", proof));
  EXPECT_FALSE(key.IsProven("rank", "challenge", ""));
}

TEST(RankKey, ComesFromTheFileOrElseTheEnvironment) {
  const TemporaryFolder folder;
  std::ofstream(folder / "key") << " of-the-file-0123456\n";
  const auto environment = [](const std::string& name) -> std::optional<std::string> {
    return name == kRankKeyVariable ? std::optional<std::string>("of-the-environment") : std::nullopt;
  };
  const auto proof = [](const RankKey& key) { return key.Prove("", ""); };
  EXPECT_EQ(proof(*ReadRankKey(folder / "key", {}, false, environment)), proof(RankKey("of-the-file-0123456")));
  EXPECT_EQ(proof(*ReadRankKey("", {}, false, environment)), proof(RankKey("of-the-environment")));
  EXPECT_FALSE(ReadRankKey("", {}, false, None)->is_given());
  EXPECT_THAT(ReadRankKey(folder / "none", {}, false, environment).status().message(),
              HasSubstr("--rendezvous_key_file=" + (folder / "none") + ": No such file"));
  std::ofstream(folder / "short") << "abc";
  EXPECT_THAT(ReadRankKey(folder / "short", {}, false, environment).status().message(),
              HasSubstr("short: expected a key of 16 to 4096 characters, got 3; `openssl rand -hex 16` makes one"));
}

TEST(RankKey, IsWantedWhereOtherHostsReachTheRendezvous) {
  const auto key = [](const std::string&) -> std::optional<std::string> { return "0123456789abcdef"; };
  const auto why = [&](const std::string& rendezvous, const core::Environment& given, bool insecure = false,
                       int world = 2) {
    return std::string(ReadRankKey("", {0, world, rendezvous, "a test", ""}, insecure, given).status().message());
  };
  EXPECT_THAT(why("node1:29500", None), HasSubstr("export CAUSEWAY_RENDEZVOUS_KEY=$(openssl rand -hex 16)"));
  EXPECT_EQ(why("node1:29500", key), "");
  EXPECT_EQ(why("node1:29500", None, /*insecure=*/true), "");
  EXPECT_EQ(why("127.0.0.1:29500", None), "");
  EXPECT_EQ(why("unix:/run/x", None), "");
  EXPECT_EQ(why("", None, false, 1), "");
}

INSTANTIATE_TEST_SUITE_P(Threads, CollectivesSuite,
                         ::testing::Combine(::testing::Values(Implementation{"threads", OverThreads}),
                                            ::testing::Values(1, 2, 3, 4)),
                         SuiteName);
INSTANTIATE_TEST_SUITE_P(Gloo, CollectivesSuite,
                         ::testing::Combine(::testing::Values(Implementation{"gloo", OverGloo}),
                                            ::testing::Values(2, 3, 4)),
                         SuiteName);

// ---- Promises of the ordered ones, beyond the suite ----

class OrderedTest : public ::testing::TestWithParam<Implementation> {};

std::string ParamName(const ::testing::TestParamInfo<Implementation>& info) { return info.param.name; }

TEST_P(OrderedTest, SumsAreInTheOrderOfTheRanksToTheLastBit) {
  std::vector<RankUnderTest> ranks = GetParam().make(3);
  const std::vector<float> each = {1e8f, -1e8f, 1.0f};  // (1e8 − 1e8) + 1 = 1; another order gives 0
  const std::vector<absl::Status> statuses = OnRanks(3, [&](int rank) -> absl::Status {
    std::vector<float> values(10000, each[rank]);
    Collectives& collectives = *ranks[rank].collectives;
    RETURN_IF_ERROR(collectives.Await(collectives.AllReduce(values), kLong));
    return values == std::vector<float>(10000, 1.0f) ? absl::OkStatus() : absl::InternalError("another order");
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

TEST_P(OrderedTest, AnAllReduceSendsTwiceTheOtherRanksPartsOfIt) {
  std::vector<RankUnderTest> ranks = GetParam().make(4);
  OnRanks(4, [&](int rank) {
    std::vector<float> values(4000);
    return ranks[rank].collectives->Await(ranks[rank].collectives->AllReduce(values), kLong);
  });
  for (const RankUnderTest& rank : ranks) EXPECT_EQ(rank.collectives->sent_bytes(), 2 * 3 * 4000 / 4 * 4);
}

TEST_P(OrderedTest, AnotherOperationIsFoundAndBothAreNamed) {
  std::vector<RankUnderTest> ranks = GetParam().make(2);
  const std::vector<absl::Status> statuses = OnRanks(2, [&](int rank) {
    Collectives& collectives = *ranks[rank].collectives;
    std::vector<float> values(rank == 0 ? 100 : 200);
    return collectives.Await(collectives.AllReduce(values), kLong);
  });
  for (const absl::Status& status : statuses) {
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(status.message(), HasSubstr("all-reduce 1 of 400 bytes"));
    EXPECT_THAT(status.message(), HasSubstr("all-reduce 1 of 800 bytes"));
  }
}

TEST_P(OrderedTest, AnAbortReachesTheOthersWithItsReason) {
  std::vector<RankUnderTest> ranks = GetParam().make(3);
  const std::vector<absl::Status> statuses = OnRanks(3, [&](int rank) {
    Collectives& collectives = *ranks[rank].collectives;
    if (rank == 1) collectives.Abort("its disk is full");
    return collectives.Await(collectives.Barrier(), kLong);
  });
  EXPECT_EQ(statuses[1].message(), "its disk is full");
  for (const int rank : {0, 2}) {
    EXPECT_EQ(statuses[rank].code(), absl::StatusCode::kAborted) << statuses[rank];
    EXPECT_THAT(std::string(statuses[rank].message()), MatchesRegex("rank 1 of 3 \\(.*\\): its disk is full"));
  }
}

TEST_P(OrderedTest, ARankThatDoesNotComeEndsTheOthersWithinTheirDeadline) {
  std::vector<RankUnderTest> ranks = GetParam().make(2);
  const core::Clock::TimePoint begin = core::SystemClock().Now();
  Collectives& collectives = *ranks[0].collectives;
  const absl::Status status = collectives.Await(collectives.Barrier(), std::chrono::milliseconds(200));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()),
              MatchesRegex("rank 1 of 2 \\(.*\\) has said nothing for 0.2 s: barrier 1 is not done"));
  EXPECT_LT(core::SystemClock().SecondsSince(begin), 30);  // and not for ever
  EXPECT_EQ(collectives.Await(collectives.Barrier(), kLong), status);
}

TEST_P(OrderedTest, ARankThatEndsIsNamedAtOnce) {
  std::vector<RankUnderTest> ranks = GetParam().make(2);
  const std::vector<absl::Status> statuses = OnRanks(2, [&](int rank) -> absl::Status {
    if (rank == 1) {
      ranks[1].collectives = nullptr;
      return absl::OkStatus();
    }
    std::vector<float> values(100);
    return ranks[0].collectives->Await(ranks[0].collectives->AllReduce(values), kLong);
  });
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kUnavailable) << statuses[0];
  EXPECT_THAT(std::string(statuses[0].message()), MatchesRegex("rank 1 of 2 \\(.*\\) has ended"));
}

INSTANTIATE_TEST_SUITE_P(All, OrderedTest,
                         ::testing::Values(Implementation{"threads", OverThreads}, Implementation{"gloo", OverGloo}),
                         ParamName);

// ---- The test bed ----

class ThreadRanksTest : public ::testing::Test {
 protected:
  ThreadRanksTest() {
    for (int rank = 0; rank < 3; ++rank) {
      collectives_.push_back(std::make_unique<OrderedCollectives>(ranks_.wire(rank)));
    }
  }

  ThreadRanks ranks_{3};
  std::vector<std::unique_ptr<Collectives>> collectives_;
};

TEST_F(ThreadRanksTest, OneThatEndsIsNamedByTheOthers) {
  ranks_.End(2);
  const std::vector<absl::Status> statuses =
      OnRanks(2, [&](int rank) { return collectives_[rank]->Await(collectives_[rank]->Barrier(), kLong); });
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(status.message(), HasSubstr("rank 2 of 3 (thread) has ended")) << status;
  }
}

TEST_F(ThreadRanksTest, OneThatHangsIsNamedAfterTheTimeout) {
  ranks_.Hang(1);
  const std::vector<absl::Status> statuses = OnRanks(3, [&](int rank) {
    return collectives_[rank]->Await(collectives_[rank]->Barrier(),
                                     rank == 0 ? Collectives::Timeout(std::chrono::milliseconds(100)) : kLong);
  });
  EXPECT_EQ(statuses[0].message(), "rank 1 of 3 (thread) has said nothing for 0.1 s: barrier 1 is not done");
  EXPECT_THAT(statuses[2].message(), HasSubstr("rank 1 of 3 (thread) has said nothing"));
}

}  // namespace
}  // namespace causeway::worker
