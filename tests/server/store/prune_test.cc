#include "tests/server/store/fault_hook.h"
#include "tests/server/store/journal_for_test.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<core::Version> Bases(const std::vector<StoredRound>& rounds) {
  std::vector<core::Version> bases;
  for (const StoredRound& round : rounds) bases.push_back(round.record.base);
  return bases;
}

class Prune : public JournalTest {
 protected:
  Prune() { options_.segment_bytes = 1; }  // each payload in a segment of its own

  static absl::Status Save(Journal& journal, core::FragmentId fragment, core::Version version) {
    return journal.SaveSnapshot(fragment, State(version), DigestOf(version));
  }
};

TEST_F(Prune, SnapshotEndsTheNeedOfWhatItHolds) {
  const auto journal = Open();
  Seed(*journal, 2);
  PlayRound(*journal, 0, 0);
  PlayRound(*journal, 1, 0);
  PlayRound(*journal, 0, 1);
  journal->Commit({.admitted = {Contribution(0, "eu", 2)}});
  journal->Flush();
  const StoredRun before = Load(*journal);
  const Extent pruned = before.fragments[0].to_replay[0].contributions[0].extent;
  EXPECT_EQ(Payload(*journal, pruned), Written(PayloadOf("eu", 0)));
  EXPECT_EQ(Segments().size(), 10u);
  ASSERT_TRUE(Save(*journal, 0, 1).ok());

  EXPECT_TRUE(absl::IsNotFound(journal->ReadChunk(pruned, 0).status()));
  EXPECT_EQ(Segments().size(), 8u);
  const StoredRun stored = Load(*journal);
  EXPECT_THAT(stored.rounds.versions, ElementsAre(2, 1));
  EXPECT_EQ(stored.fragments[0].snapshot, 1);
  EXPECT_THAT(Bases(stored.fragments[0].to_replay), ElementsAre(1));
  EXPECT_EQ(Payload(*journal, stored.fragments[0].to_replay[0].contributions[1].extent), Written(PayloadOf("us", 1)));
  ASSERT_THAT(Bases(stored.fragments[0].updates), ElementsAre(0));
  const StoredRound& history = stored.fragments[0].updates[0];
  EXPECT_EQ(history.record, Round(0, 0, {"eu", "us"}));  // who was merged stays known
  EXPECT_THAT(history.contributions, IsEmpty());
  EXPECT_EQ(Payload(*journal, stored.fragments[0].open[0].extent), Written(PayloadOf("eu", 2)));
  EXPECT_THAT(Bases(stored.fragments[1].to_replay), ElementsAre(0));
}

TEST_F(Prune, UpdateLogKeepsTheNewestAndWhatNoSnapshotHolds) {
  const auto update_bytes = static_cast<int64_t>(Written(UpdateOf(0)).size());
  options_.max_update_log_bytes = 3 * update_bytes;
  const auto journal = Open();
  Seed(*journal, 2);
  PlayRound(*journal, 1, 0);
  for (core::Version base = 0; base < 4; ++base) PlayRound(*journal, 0, base);
  ASSERT_TRUE(Save(*journal, 0, 3).ok());
  const StoredRun stored = Load(*journal);
  EXPECT_THAT(Bases(stored.fragments[0].updates), ElementsAre(2));
  EXPECT_THAT(Bases(stored.fragments[0].to_replay), ElementsAre(3));
  EXPECT_EQ(Payload(*journal, stored.fragments[1].to_replay[0].update), Written(UpdateOf(0)));
}

TEST_F(Prune, NoUpdateFromBeforeASnapshotStaysWithoutALog) {
  options_.max_update_log_bytes = 0;
  {
    const auto journal = Open();
    Seed(*journal, 1);
    PlayRound(*journal, 0, 0);
    PlayRound(*journal, 0, 1);
    ASSERT_TRUE(Save(*journal, 0, 2).ok());
    EXPECT_THAT(Load(*journal).fragments[0].updates, IsEmpty());
    EXPECT_EQ(Segments().size(), 2u);  // those that are appended to
  }
  const auto journal = Open();
  EXPECT_THAT(Segments(), IsEmpty());
  EXPECT_THAT(Load(*journal).rounds.versions, ElementsAre(2));
}

TEST_F(Prune, SegmentOfALivePayloadStaysWhole) {
  options_.segment_bytes = core::kSegmentBytes;
  const auto journal = Open();
  Seed(*journal, 2);
  PlayRound(*journal, 0, 0);
  PlayRound(*journal, 1, 0);
  ASSERT_TRUE(Save(*journal, 0, 1).ok());
  EXPECT_THAT(Segments(), ElementsAre("000001.segment", "000002.segment"));
  EXPECT_EQ(Payload(*journal, Load(*journal).fragments[1].to_replay[0].contributions[0].extent),
            Written(PayloadOf("eu", 0)));
}

TEST_F(Prune, AsManySnapshotsStayAsAsked) {
  options_.keep = 2;
  const auto journal = Open();
  Seed(*journal, 2);
  for (core::Version base = 0; base < 3; ++base) {
    PlayRound(*journal, 0, base);
    ASSERT_TRUE(Save(*journal, 0, base + 1).ok());
  }
  EXPECT_THAT(Snapshots(), ElementsAre("fragment-0-000002.safetensors", "fragment-0-000003.safetensors",
                                       "fragment-1-000000.safetensors"));
  const auto loaded = journal->LoadSnapshot(0, 2);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->version, 2);
  EXPECT_EQ(loaded->anchor, State(2).anchor);
  EXPECT_EQ(loaded->momentum, State(2).momentum);
  EXPECT_EQ(loaded->residual, State(2).residual);
  EXPECT_TRUE(absl::IsNotFound(journal->LoadSnapshot(0, 1).status()));
}

TEST_F(Prune, RepeatedSnapshotIsTheSameSnapshot) {
  const auto journal = Open();
  Seed(*journal, 1);
  PlayRound(*journal, 0, 0);
  ASSERT_TRUE(Save(*journal, 0, 1).ok());
  EXPECT_TRUE(Save(*journal, 0, 1).ok());
  EXPECT_EQ(Snapshots().size(), 2u);
}

TEST_F(Prune, AnotherSeedReplacesOneThatWasNotBegun) {
  const auto journal = Open();
  ASSERT_TRUE(Save(*journal, 0, 0).ok());
  core::FragmentState other = State(0);
  other.anchor[7] = 3;
  ASSERT_TRUE(journal->SaveSnapshot(0, other, 77).ok());
  ASSERT_TRUE(journal->Begin(RunOf(1)).ok());
  EXPECT_EQ(journal->LoadSnapshot(0, 0)->anchor, other.anchor);
}

TEST_F(Prune, SnapshotIsPrunedOnlyAfterTheEntriesCommittedBefore) {
  const auto journal = Open();
  Seed(*journal, 1);
  journal->Commit({.admitted = {Contribution(0, "eu", 0)}, .decided = {Round(0, 0, {"eu"})}});
  journal->Commit({.merged = {Merged(0, 0)}});
  ASSERT_TRUE(Save(*journal, 0, 1).ok());  // without a Flush between
  const StoredRun stored = Load(*journal);
  EXPECT_THAT(stored.fragments[0].to_replay, IsEmpty());
  EXPECT_THAT(stored.fragments[0].updates[0].contributions, IsEmpty());
}

TEST_F(Prune, HistoryOfRoundsIsBounded) {
  {
    const auto journal = Open();
    Seed(*journal, 1);
    for (core::Version base = 0; base < 4; ++base) PlayRound(*journal, 0, base);
  }
  // As if the limit's number of rounds and contributions lay between the first two rounds and the others.
  Sql("UPDATE rounds SET id = id + 100000 WHERE version > 2;"
      "UPDATE contributions SET id = id + 100000 WHERE merged_version > 2;");
  options_.max_update_log_bytes = static_cast<int64_t>(Written(UpdateOf(0)).size()) * 3;
  const auto journal = Open();
  ASSERT_TRUE(Save(*journal, 0, 4).ok());
  const auto database = *Database::Open(options_.directory + "/journal.sqlite", Database::Mode::kReadOnly);
  std::vector<int64_t> versions;
  ASSERT_TRUE(database
                  ->Query("SELECT version FROM rounds UNION ALL SELECT merged_version + 100 FROM contributions", {},
                          [&](const SqlRow& row) {
                            versions.push_back(row.Integer(0));
                            return absl::OkStatus();
                          })
                  .ok());
  std::sort(versions.begin(), versions.end());
  // Version 2 is beyond the limit, but its update is still stored.
  EXPECT_THAT(versions, ElementsAre(2, 3, 4, 102, 102, 103, 103, 104, 104));
  EXPECT_THAT(Load(*journal).rounds.versions, ElementsAre(4));
}

TEST_F(Prune, PayloadThatDoesNotFitBesideTheReserveEndsTheJournalBeforeItIsWritten) {
  options_.min_free_bytes = 1;
  const auto journal = Open();
  Seed(*journal, 1);
  ContributionRecord contribution = Contribution(0, "eu", 0);
  const ChunkPtr chunk = Chunk(std::string(64 << 20, 'x'));
  contribution.chunks.assign(1 << 18, chunk);  // 16 TiB, of the same 64 MiB
  JournalEntry entry{.durable = [] { FAIL(); }};
  entry.admitted.push_back(std::move(contribution));
  journal->Commit(std::move(entry));
  journal->Commit({.durable = [] { FAIL(); }});
  journal->Flush();
  EXPECT_TRUE(absl::IsResourceExhausted(journal->status())) << journal->status();
  EXPECT_THAT(std::string(journal->status().message()), HasSubstr(options_.directory));
  EXPECT_EQ(failures_.size(), 1u);
  EXPECT_THAT(Segments(), IsEmpty());
}

TEST_F(Prune, DiskNearlyFullAtTheStartIsRefused) {
  options_.min_free_bytes = int64_t{1} << 60;
  const absl::Status status = OpenStatus();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("bytes free"));
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(options_.min_free_bytes)));
}

}  // namespace
}  // namespace causeway::server
