// An update while it grows, and when the journal has it; an anchor while its snapshot is replaced.
#include "server/run/chunk_source.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include "tests/server/run/direct_coordinator.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

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
  const auto reading = run.coordinator->transfers().BeginDownload(request, [] {})->source;
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
