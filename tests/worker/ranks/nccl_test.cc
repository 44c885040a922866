// NcclCollectives over a library that has NCCL's names and prototypes (fake_nccl.cc), loaded as the real one is.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>

#include "core/clock.h"
#include "tests/folders.h"
#include "tests/worker/ranks/collectives_suite.h"
#include "tests/worker/ranks/fake_nccl_ranks.h"
#include "tests/worker/ranks/thread_wire.h"
#include "worker/ranks/nccl_collectives.h"
#include "worker/ranks/nccl_communicator.h"
#include "worker/ranks/ordered_collectives.h"

namespace causeway::worker {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

std::string FileWithoutSend() { return InBuild("tests/worker/ranks/without_send/libnccl.so.2"); }

constexpr char kReason[] = "remote process exited or there was a network error";

INSTANTIATE_TEST_SUITE_P(Nccl, CollectivesSuite,
                         ::testing::Combine(::testing::Values(Implementation{"nccl", OverNccl}),
                                            ::testing::Values(1, 2, 3, 4)),
                         SuiteName);

// ---- The library ----

TEST(NcclApiTest, AFileThatIsNotThereIsNamedWithTheLoadersReason) {
  const absl::Status status = LoadNccl("/nowhere/libnccl.so.2").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("cannot load /nowhere/libnccl.so.2: "),
                                      HasSubstr("No such file or directory"), HasSubstr("CAUSEWAY_NCCL")));
}

TEST(NcclApiTest, AMissingSymbolIsNamedWithItsFile) {
  const absl::Status status = LoadNccl(FileWithoutSend()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("expected the symbol ncclSend in "), HasSubstr("without_send")));
}

TEST(NcclApiTest, AnOldVersionIsRefusedWithBothVersions) {
  const Variable version("FAKE_NCCL_VERSION", "21003");
  const absl::Status status = LoadNccl(FileWithoutSend()).status();  // which no other test has loaded
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("expected version 2.14.0 or later, got 2.10.3 in "));
}

TEST(NcclApiTest, VersionsAreNamedInBothTheirForms) {
  EXPECT_EQ(NcclVersionName(2708), "2.7.8");
  EXPECT_EQ(NcclVersionName(22809), "2.28.9");
}

TEST(NcclApiTest, TheSystemsLibraryHasAllSymbols) {
  const absl::StatusOr<const NcclApi*> loaded = LoadNccl(NcclFile());
  if (std::string(loaded.status().message()).find("cannot load") != std::string::npos) {
    GTEST_SKIP() << loaded.status().message();
  }
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_GE((*loaded)->version, kFirstNcclVersion);
  EXPECT_NE((*loaded)->get_last_error, nullptr);
}

// ---- The group ----

absl::Status AllReduceOnce(Collectives& collectives, Collectives::Timeout timeout) {
  std::vector<float> values(100);
  return collectives.Await(collectives.AllReduce(values), timeout);
}

TEST(NcclTest, ARankSendsAsMuchAsInARing) {
  std::vector<RankUnderTest> ranks = OverNccl(4);
  OnRanks(4, [&](int rank) {
    std::vector<float> values(4000), part(1000);
    ranks[rank].collectives->AllReduce(values);
    return ranks[rank].collectives->Await(ranks[rank].collectives->ReduceScatter(values, part), kLong);
  });
  for (const RankUnderTest& rank : ranks) EXPECT_EQ(rank.collectives->sent_bytes(), (2 + 1) * 3 * 1000 * 4);
}

TEST(NcclTest, ACommunicatorThatIsRefusedEndsAllRanksWithNcclsWords) {
  const Variable refuse("FAKE_NCCL_REFUSE_INIT", "1");
  for (const auto& made : TryNcclRanks(2, kLong)) {
    EXPECT_THAT(made.status().message(), HasSubstr("NCCL: joining 2 ranks as rank"));
    EXPECT_THAT(made.status().message(), HasSubstr("has failed: unhandled cuda error (from the fake NCCL)"));
  }
}

TEST(NcclTest, RanksWithDifferentVersionsAreRefusedWithBoth) {
  NcclApi other = FakeNccl();
  other.version = 22809;
  for (const auto& made : TryNcclRanks(2, kLong, other)) {
    EXPECT_THAT(std::string(made.status().message()),
                MatchesRegex(".*NCCL: expected version 2.14.3, as rank 0 of 2 \\(.*\\) has, got 2.28.9 in .*"));
  }
}

TEST(NcclTest, ACommunicatorThatNeverComesEndsAfterTheTimeout) {
  NcclApi stuck = FakeNccl();
  stuck.get_async_error = [](NcclComm*, NcclResult* error) {
    *error = NcclResult::kInProgress;
    return NcclResult::kSuccess;
  };
  const absl::Status status = TryNcclRanks(1, std::chrono::milliseconds(200), stuck)[0].status();
  EXPECT_EQ(status, absl::DeadlineExceededError("NCCL: making a group of 1 ranks took longer than 0.2 s"));
}

TEST(NcclTest, AnOperationThatNeverEndsIsNamedAfterItsTimeout) {
  const Variable hang("FAKE_NCCL_HANG_AFTER", "2");
  std::vector<RankUnderTest> ranks = OverNccl(1);
  Collectives& collectives = *ranks[0].collectives;
  EXPECT_TRUE(AllReduceOnce(collectives, kLong).ok());
  EXPECT_TRUE(AllReduceOnce(collectives, kLong).ok());
  const core::Clock::TimePoint begin = core::SystemClock().Now();
  const absl::Status status = AllReduceOnce(collectives, std::chrono::milliseconds(300));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.message(), "NCCL: all-reduce 3 of 400 bytes took longer than 0.3 s");
  EXPECT_LT(core::SystemClock().SecondsSince(begin), 30);  // and not for ever
  EXPECT_EQ(AllReduceOnce(collectives, kLong), status);
  EXPECT_EQ(collectives.Split(0, kLong).status(), status);
}

TEST(NcclTest, ADeadlineOfOneRankEndsTheOthersWithItsName) {
  const Variable hang("FAKE_NCCL_HANG_AFTER", "0");
  const Variable one("FAKE_NCCL_RANK", "1");
  std::vector<RankUnderTest> ranks = OverNccl(3);
  const std::vector<absl::Status> statuses = OnRanks(3, [&](int rank) {
    return AllReduceOnce(*ranks[rank].collectives,
                         rank == 1 ? Collectives::Timeout(std::chrono::milliseconds(300)) : kLong);
  });
  EXPECT_EQ(statuses[1].message(), "NCCL: all-reduce 1 of 400 bytes took longer than 0.3 s");
  for (const int rank : {0, 2}) {
    EXPECT_EQ(statuses[rank].code(), absl::StatusCode::kAborted) << statuses[rank];
    EXPECT_THAT(std::string(statuses[rank].message()),
                MatchesRegex("rank 1 of 3 \\(.*\\): NCCL: all-reduce 1 of 400 bytes took longer than 0.3 s"));
  }
}

TEST(NcclTest, AnAsynchronousErrorEndsTheOperationWithNcclsWords) {
  const Variable error("FAKE_NCCL_ERROR_AFTER", "1");
  std::vector<RankUnderTest> ranks = OverNccl(2);
  const std::vector<absl::Status> statuses = OnRanks(2, [&](int rank) -> absl::Status {
    RETURN_IF_ERROR(ranks[rank].collectives->Await(ranks[rank].collectives->Barrier(), kLong));
    return AllReduceOnce(*ranks[rank].collectives, kLong);
  });
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(status.message(), HasSubstr(absl::StrCat("NCCL: all-reduce 2 of 400 bytes has failed: ", kReason)));
  }
}

TEST(NcclTest, AnAbortReachesTheOthersWithItsReason) {
  std::vector<RankUnderTest> ranks = OverNccl(3);
  const std::vector<absl::Status> statuses = OnRanks(3, [&](int rank) {
    Collectives& collectives = *ranks[rank].collectives;
    if (rank == 1) collectives.Abort("its disk is full");
    return AllReduceOnce(collectives, kLong);
  });
  EXPECT_EQ(statuses[1], absl::AbortedError("its disk is full"));
  for (const int rank : {0, 2}) {
    EXPECT_EQ(statuses[rank].code(), absl::StatusCode::kAborted) << statuses[rank];
    EXPECT_THAT(std::string(statuses[rank].message()), MatchesRegex("rank 1 of 3 \\(.*\\): its disk is full"));
  }
}

TEST(NcclTest, AnAbortEndsAnAwaitOfAnotherThread) {
  const Variable hang("FAKE_NCCL_HANG_AFTER", "0");
  std::vector<RankUnderTest> ranks = OverNccl(1);
  Collectives& collectives = *ranks[0].collectives;
  std::vector<float> values(100);
  const Collectives::Ticket ticket = collectives.AllReduce(values);
  absl::Status awaited;
  core::Thread other([&] { awaited = collectives.Await(ticket, kLong); });
  collectives.Abort("its owner gives up");
  other.Join();
  EXPECT_EQ(awaited, absl::AbortedError("its owner gives up"));
}

TEST(NcclTest, AnAbortEndsTheGroupsOfASplitToo) {
  std::vector<RankUnderTest> ranks = OverNccl(2);
  const std::vector<absl::Status> statuses = OnRanks(2, [&](int rank) -> absl::Status {
    ASSIGN_OR_RETURN(const std::unique_ptr<Collectives> group, ranks[rank].collectives->Split(0, kLong));
    if (rank == 0) return AllReduceOnce(*group, kLong);
    ranks[1].collectives->Abort("its disk is full");
    return group->Await(group->Barrier(), kLong);
  });
  for (const absl::Status& status : statuses) EXPECT_THAT(status.message(), HasSubstr("its disk is full"));
}

// The calls of NCCL at a communicator's end, and what its polls said.
std::vector<std::string> calls;

std::vector<std::string> CallsAtTheEnd(std::chrono::milliseconds most_finalize) {
  NcclApi nccl = FakeNccl();
  nccl.finalize = [](NcclComm* comm) { return calls.push_back("finalize"), FakeNccl().finalize(comm); };
  nccl.destroy = [](NcclComm* comm) { return calls.push_back("destroy"), FakeNccl().destroy(comm); };
  nccl.abort = [](NcclComm* comm) { return calls.push_back("abort"), FakeNccl().abort(comm); };
  nccl.get_async_error = [](NcclComm* comm, NcclResult* error) {
    const NcclResult result = FakeNccl().get_async_error(comm, error);
    const char* const said = *error == NcclResult::kInProgress ? "in progress" : "done";
    if (calls.empty() || calls.back() != said) calls.push_back(said);
    return result;
  };
  NcclUniqueId id;
  CHECK(nccl.get_unique_id(&id) == NcclResult::kSuccess);
  auto made = NcclCommunicator::Make(
      nccl, id, 0, 1, [] { return absl::OkStatus(); }, most_finalize);
  CHECK(made.ok());
  calls.clear();
  made->reset();
  return calls;
}

TEST(NcclTest, ACommunicatorIsDestroyedOnceItIsFinalized) {
  EXPECT_THAT(CallsAtTheEnd(std::chrono::minutes(1)),
              ::testing::ElementsAre("finalize", "in progress", "done", "destroy"));
}

TEST(NcclTest, ACommunicatorThatIsNeverFinalizedIsAborted) {
  const Variable never("FAKE_NCCL_FINALIZE_POLLS", "1000000000");
  EXPECT_THAT(CallsAtTheEnd(std::chrono::milliseconds(50)), ::testing::ElementsAre("finalize", "in progress", "abort"));
}

TEST(NcclTest, AGroupThatEndsWithOperationsPendingEndsThem) {
  const Variable hang("FAKE_NCCL_HANG_AFTER", "0");
  std::vector<RankUnderTest> ranks = OverNccl(2);
  const std::vector<absl::Status> statuses = OnRanks(2, [&](int rank) {
    if (rank == 0) return AllReduceOnce(*ranks[0].collectives, kLong);
    ranks[1].collectives->Barrier();
    ranks[1].collectives = nullptr;
    return absl::OkStatus();
  });
  EXPECT_THAT(statuses[0].message(), HasSubstr("its group ended with operations pending"));
}

// ---- Processes ----

// Runs tests/worker/ranks/nccl_process.cc as two ranks whose control is Gloo, and returns their exit codes and words.
std::vector<std::pair<int, std::string>> RunTwoProcesses(const std::string& what) {
  const std::string program = InBuild("tests/worker/ranks/nccl_process"),
                    library = InBuild("tests/worker/ranks/fake/libnccl.so.2");
  int sockets[2];
  CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) == 0);
  std::vector<pid_t> children;
  std::vector<int> outputs;
  for (int rank = 0; rank < 2; ++rank) {
    int output[2];
    CHECK(pipe(output) == 0);
    const std::string rank_text = absl::StrCat(rank), socket = absl::StrCat(sockets[rank]);
    const pid_t child = fork();
    if (child == 0) {
      close(sockets[1 - rank]);
      dup2(output[1], STDOUT_FILENO);
      close(output[0]);
      close(output[1]);
      setenv("CAUSEWAY_NCCL", library.c_str(), 1);
      execl(program.c_str(), program.c_str(), rank_text.c_str(), socket.c_str(), what.c_str(), nullptr);
      _exit(127);
    }
    children.push_back(child);
    close(output[1]);
    outputs.push_back(output[0]);
  }
  for (const int socket : sockets) close(socket);
  std::vector<std::pair<int, std::string>> results;
  for (int rank = 0; rank < 2; ++rank) {
    std::string text;
    char piece[256];
    while (true) {
      const ssize_t n = read(outputs[rank], piece, sizeof(piece));
      if (n <= 0) break;
      text.append(piece, static_cast<size_t>(n));
    }
    close(outputs[rank]);
    int status = 0;
    CHECK(waitpid(children[rank], &status, 0) == children[rank]);
    results.emplace_back(WIFEXITED(status) ? WEXITSTATUS(status) : -1, text);
  }
  return results;
}

TEST(NcclProcessesTest, TwoProcessesSumThroughSharedMemory) {
  for (const auto& [code, text] : RunTwoProcesses("sum")) {
    EXPECT_EQ(code, 0) << text;
    EXPECT_EQ(text, "3 3 3\n");
  }
}

TEST(NcclProcessesTest, AProcessThatEndsIsNamedByTheOther) {
  const auto results = RunTwoProcesses("rank 1 ends");
  EXPECT_EQ(results[0].first, 1);
  EXPECT_THAT(results[0].second, MatchesRegex(".*rank 1 of 2 \\(.*\\) has ended\n"));
}

}  // namespace
}  // namespace causeway::worker
