// Nothing leaves the coordinator before it is durable: each test holds the journal, and looks at what is said
// meanwhile.
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include "server/run/chunk_source.h"
#include "tests/server/run/direct_coordinator.h"

namespace causeway::server {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

TEST(DurableFirst, VerdictWaitsForTheContribution) {
  DirectCoordinator run;
  run.Start();
  PendingVerdict verdict;
  {
    const HeldJournal held(*run.journal);
    verdict = run.Contribute("a", 0);
    EXPECT_FALSE(verdict.given());
  }
  run.Settle();
  EXPECT_TRUE(verdict.admitted());
}

TEST(DurableFirst, UpdateBeginsWhenTheDecisionToMergeIsDurable) {
  DirectCoordinator run;
  run.Start();
  {
    const HeldJournal held(*run.journal);
    for (const char* site : {"a", "b"}) run.Contribute(site, 0);
    EXPECT_EQ(run.coordinator->Status().rounds_decided, 1);
    v1::DownloadRequest request = DirectCoordinator::RequestOf("a", 0);
    request.set_update_base(0);
    const auto download = run.BeginDownload(request, [] {});
    EXPECT_FALSE(download->source->Header([] {}));
    EXPECT_EQ(run.coordinator->Describe().versions(0), 0);
  }
  EXPECT_EQ(run.TakeUpdate(0, 0).header.version, 1);
}

TEST(DurableFirst, WelcomeWaitsForTheSiteAndRefusalForWhatItSpeaksOf) {
  DirectCoordinator run;
  auto held = std::make_unique<const HeldJournal>(*run.journal);
  RecordedPeer& welcomed = run.Join("a");
  RecordedPeer& refused = run.Join("b", [](v1::Join& join) { join.mutable_context()->set_run_id("other"); });
  EXPECT_THAT(welcomed.sent(), IsEmpty());
  EXPECT_THAT(refused.sent(), IsEmpty());
  EXPECT_FALSE(refused.closed());
  held.reset();
  run.Settle();
  EXPECT_THAT(welcomed.kinds(), ElementsAre("welcome", "seed_request", "notice"));
  EXPECT_THAT(refused.kinds(), ElementsAre("refused"));
  EXPECT_TRUE(refused.closed());
}

TEST(DurableFirst, EntryWaitsForThePlaceInTheSchedule) {
  DirectCoordinator run;
  for (const char* site : {"a", "b"}) run.Join(site);
  run.Seed("a");
  {
    const HeldJournal held(*run.journal);
    for (const char* site : {"a", "b"}) run.Ready(site);
    EXPECT_EQ(run.StatusOf("a").state, core::SiteState::kTraining);
    EXPECT_THAT(run.peer["a"]->kinds(), Not(Contains("entry")));
  }
  run.Settle();
  EXPECT_THAT(run.peer["a"]->kinds(), Contains("entry"));
  EXPECT_THAT(run.peer["b"]->kinds(), Contains("entry"));
}

TEST(DurableFirst, StreamOfASiteThatLeavesEndsWhenThatIsDurable) {
  DirectCoordinator run;
  run.Start();
  RecordedPeer& leaves = *run.peer["a"];
  {
    const HeldJournal held(*run.journal);
    run.Leave("a");
    EXPECT_FALSE(leaves.closed());
  }
  run.Settle();
  EXPECT_TRUE(leaves.closed());
  run.Restart();
  EXPECT_EQ(run.StatusOf("a").state, core::SiteState::kGone);
  EXPECT_EQ(run.StatusOf("a").reason, "it was asked to");
}

TEST(DurableFirst, JournalThatFailsGivesNoVerdictAndTheCoordinatorSaysWhy) {
  DirectCoordinator run;
  run.Start();
  run.journal->Commit({.decided = {{.fragment = 0, .base = 0, .contributors = {{"c", 0, 1}}}}});  // never admitted
  const PendingVerdict verdict = run.Contribute("a", 0);
  run.Settle();
  EXPECT_FALSE(verdict.given());
  EXPECT_FALSE(run.coordinator->status().ok());
  EXPECT_THAT(run.coordinator->Status().failure, HasSubstr("contribution of c"));
  EXPECT_FALSE(run.coordinator->Ask(input::Drain{"b"}).ok());
  EXPECT_FALSE(run.coordinator->Finish().ok());
}

// An update while it grows, and when the journal has it; an anchor while its snapshot is replaced.

constexpr WaitKey kKey{1, 0, 1};

class UpdateTest : public testing::Test {
 protected:
  Waiter Counted() {
    return {owner_, [this](const absl::Status& status) {
              EXPECT_TRUE(status.ok()) << status;
              ++answers_;
            }};
  }
  static RoundRecord RoundOfTwo() {
    return {.base = 0,
            .contributors = {{"a", 0, 0.25f}, {"b", 0, 0.75f}},
            .outer = {.lr = 0.5f, .momentum = 0.25f},
            .sites = {"a", "b", "c"}};
  }

  const std::shared_ptr<int> owner_ = std::make_shared<int>();
  int answers_ = 0;
  const std::shared_ptr<Waiters> waiters_ = std::make_shared<Waiters>();
  Update update_{nullptr, waiters_, kKey};
};

TEST_F(UpdateTest, HeaderSaysWhatTheRoundWas) {
  EXPECT_FALSE(update_.Header(Counted()));
  update_.Begin(RoundOfTwo(), 2);
  EXPECT_EQ(answers_, 1);
  const transport::DownloadHeader header = *update_.Header(Counted());
  EXPECT_EQ(header.version, 1);
  EXPECT_EQ(header.outer.lr, 0.5f);
  EXPECT_EQ(header.outer.momentum, 0.25f);
  EXPECT_EQ(header.num_chunks, 2);
  EXPECT_THAT(header.sites, ElementsAre("a", "b", "c"));
  EXPECT_THAT(header.merged, ElementsAre("a", "b"));
  EXPECT_THAT(header.merged_bases, ElementsAre(0, 0));
  EXPECT_THAT(header.merged_weights, ElementsAre(0.25, 0.75));
  EXPECT_EQ(header.codec, 0u) << "as the config says";
  EXPECT_EQ(waiters_->size(), 0u) << "who has an answer does not wait";
}

TEST_F(UpdateTest, ReaderWaitsForEachChunkAndForTheEnd) {
  update_.Begin(RoundOfTwo(), 2);
  EXPECT_EQ(update_.Get(0, Counted()).chunk, nullptr);
  update_.Append("first");
  EXPECT_EQ(answers_, 1);
  EXPECT_EQ(*update_.Get(0, Counted()).chunk, "first");
  EXPECT_EQ(update_.Get(1, Counted()).chunk, nullptr);
  EXPECT_EQ(update_.Get(2, Counted()).chunk, nullptr) << "a reader of another stripe waits, too";
  update_.Append("second");
  EXPECT_EQ(answers_, 3);
  EXPECT_EQ(*update_.Get(1, Counted()).chunk, "second");
  const ChunkSource::Item beyond = update_.Get(2, Counted());
  EXPECT_FALSE(beyond.end) << "the digest is not known yet";
  update_.End(77);
  EXPECT_EQ(answers_, 4);
  for (const size_t index : {2, 3, 1'000'000}) EXPECT_EQ(update_.Get(index, Counted()).end, 77u) << index;
  EXPECT_FALSE(update_.Get(1, Counted()).end);
}

TEST_F(UpdateTest, ChunksThatTheJournalHasAreReadThereAndOneThatIsGoneIsAnError) {
  DirectCoordinator run;
  run.Start();
  const TakenDownload taken = run.MergeRound(0, 0);
  ASSERT_TRUE(run.coordinator->Finish().ok());
  Update moved(run.journal.get(), waiters_, kKey);
  moved.Begin(RoundOfTwo(), 1);
  moved.Append("in memory");
  moved.End(5);
  const ChunkPtr held = moved.Get(0, Counted()).chunk;
  moved.MoveTo({.segment = 99, .offset = 0, .chunk_bytes = {9}});
  EXPECT_THAT(moved.chunks(), IsEmpty());
  EXPECT_EQ(*held, "in memory") << "a chunk that is on its way stays";
  EXPECT_FALSE(moved.Get(0, Counted()).error.ok()) << "there is no such segment";
  EXPECT_EQ(moved.Get(1, Counted()).end, 5u);
}

// Asking again would not help: NOT_FOUND has the site take the anchor.
TEST_F(UpdateTest, ThatIsDamagedInTheJournalIsAsOneThatIsGone) {
  DirectCoordinator run;
  run.Start();
  run.MergeRound(0, 0);
  ASSERT_TRUE(run.coordinator->Finish().ok());
  Update moved(run.journal.get(), waiters_, kKey);
  moved.Begin(RoundOfTwo(), 1);
  moved.Append("in memory");
  moved.End(5);
  moved.MoveTo({.segment = 1, .offset = 64, .chunk_bytes = {9}, .chunk_digests = {1}});
  const absl::Status status = moved.Get(0, Counted()).error;
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              testing::HasSubstr("000001.segment: is damaged in the 9 bytes from 64 on"));
}

TEST(AnchorSource, GivesAnchorThenMomentumAndThenTheEnd) {
  DirectCoordinator run;
  run.Start();
  const TakenDownload zeros = run.TakeAnchor(1, 0);
  const TakenDownload update = run.MergeRound(1, 0);
  const TakenDownload anchor = run.TakeAnchor(1, 1);
  EXPECT_EQ(anchor.header.version, 1);
  EXPECT_EQ(anchor.digest, update.digest);
  ASSERT_EQ(anchor.header.num_chunks, static_cast<int>(anchor.chunks.size()));
  ASSERT_THAT(zeros.chunks, SizeIs(anchor.chunks.size()));
  EXPECT_EQ(anchor.chunks.size() % 2, 0u);
  // Both moved: the momentum's half is not the anchor's.
  const size_t half = anchor.chunks.size() / 2;
  EXPECT_NE(anchor.chunks[0], zeros.chunks[0]);
  EXPECT_NE(anchor.chunks[half], zeros.chunks[half]);
  EXPECT_NE(anchor.chunks[0], anchor.chunks[half]);
}

TEST(AnchorSource, ReaderOfASnapshotThatIsReplacedReadsOn) {
  DirectCoordinator run;
  run.Start();
  v1::DownloadRequest request = DirectCoordinator::RequestOf("a", 0);
  request.set_anchor_version(0);
  const TakenDownload whole = run.Take(request);
  const auto reading = run.BeginDownload(request, [] {})->source;
  EXPECT_EQ(*reading->Get(0, [] {}).chunk, whole.chunks[0]);
  for (int64_t base = 0; base < 5; ++base) {
    run.MergeRound(0, base);
    EXPECT_EQ(run.TakeAnchor(0, base + 1).header.version, base + 1);  // a snapshot each; three are kept
  }
  for (size_t i = 1; i < whole.chunks.size(); ++i) EXPECT_EQ(*reading->Get(i, [] {}).chunk, whole.chunks[i]) << i;
  EXPECT_EQ(reading->Get(whole.chunks.size(), [] {}).end, whole.digest);
}

}  // namespace
}  // namespace causeway::server
