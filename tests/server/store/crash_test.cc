// A start after the process died at each fault point: the directory is copied there, and the copy is opened.

#include <functional>

#include "tests/server/store/fault_hook.h"
#include "tests/server/store/journal_for_test.h"

namespace causeway::server {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Crash : public JournalTest {
 protected:
  // Plays `life`, and copies the directory at the `count`-th pass of the point, before any caller hears of it.
  void CopyAt(const std::string& point, int count, const std::function<void(Journal&)>& life) {
    {
      int passes = 0;
      const auto journal = Open();
      const FaultHook hook([&](const std::string& name) {
        if (name != point || ++passes != count) return;
        std::filesystem::copy(options_.directory, copy_, std::filesystem::copy_options::recursive);
      });
      life(*journal);
      journal->Flush();
    }
    ASSERT_TRUE(std::filesystem::exists(copy_)) << point;
  }

  std::vector<std::string> CopiedSegments() const { return FilesIn(copy_ + "/segments"); }

  const std::string copy_ = folder_ / "copy";
};

// The life of one fragment: one round, its snapshot.
void OneRound(Journal& journal) {
  journal.Commit({.admitted = {Contribution(0, "us", 0)}});
  journal.Flush();
  journal.Commit({.admitted = {Contribution(0, "eu", 0)}});
  journal.Flush();
  journal.Commit({.decided = {Round(0, 0, {"eu", "us"})}});
  journal.Flush();
  journal.Commit({.merged = {Merged(0, 0)}});
  journal.Flush();
  ASSERT_TRUE(journal.SaveSnapshot(0, State(1), DigestOf(1)).ok());
}

TEST_F(Crash, BetweenPayloadAndRowLosesTheContribution) {
  CopyAt("after_segment_sync", 2, [](Journal& journal) {
    Seed(journal, 1);
    OneRound(journal);
  });
  const std::string segment = ReadAll(copy_ + "/segments/000001.segment");
  EXPECT_THAT(segment, HasSubstr(Written(PayloadOf("us", 0))));
  EXPECT_THAT(segment, HasSubstr(Written(PayloadOf("eu", 0))));  // it was durable before its row
  const auto journal = OpenAt(copy_);
  const StoredRun stored = Load(*journal);
  ASSERT_EQ(stored.fragments[0].open.size(), 1u);
  EXPECT_EQ(stored.fragments[0].open[0].site, "us");
  EXPECT_EQ(ReadAll(copy_ + "/segments/000001.segment"), segment) << "a start cuts nothing off";
  journal->Commit({.admitted = {Contribution(0, "eu", 0)}});  // the site sends it again
  journal->Flush();
  EXPECT_TRUE(journal->status().ok()) << journal->status();
}

TEST_F(Crash, OfTheFirstPayloadLeavesNoSegment) {
  CopyAt("after_segment_sync", 1, [](Journal& journal) {
    Seed(journal, 1);
    OneRound(journal);
  });
  const auto journal = OpenAt(copy_);
  EXPECT_THAT(Load(*journal).fragments[0].open, IsEmpty());
  EXPECT_THAT(CopiedSegments(), IsEmpty());
}

TEST_F(Crash, AfterTheRowKeepsTheContribution) {
  std::vector<bool> told;
  CopyAt("after_row", 1, [&](Journal& journal) {
    Seed(journal, 1);
    journal.Commit(
        {.admitted = {Contribution(0, "eu", 0)}, .durable = [&] { told.push_back(std::filesystem::exists(copy_)); }});
  });
  EXPECT_THAT(told, ElementsAre(true));  // the row first, then `durable`
  const auto journal = OpenAt(copy_);
  const StoredRun stored = Load(*journal);
  ASSERT_EQ(stored.fragments[0].open.size(), 1u);
  EXPECT_EQ(Payload(*journal, stored.fragments[0].open[0].extent), Written(PayloadOf("eu", 0)));
}

TEST_F(Crash, AfterTheDecisionReplaysIt) {
  CopyAt("after_decision", 1, [](Journal& journal) {
    Seed(journal, 1);
    OneRound(journal);
  });
  const auto journal = OpenAt(copy_);
  const StoredRun stored = Load(*journal);
  EXPECT_THAT(stored.rounds.versions, ElementsAre(1));
  EXPECT_THAT(stored.fragments[0].open, IsEmpty());
  ASSERT_EQ(stored.fragments[0].to_replay.size(), 1u);
  const StoredRound& round = stored.fragments[0].to_replay[0];
  EXPECT_EQ(round.digest, std::nullopt);
  ASSERT_EQ(round.contributions.size(), 2u);
  EXPECT_EQ(Payload(*journal, round.contributions[0].extent), Written(PayloadOf("eu", 0)));
  EXPECT_EQ(Payload(*journal, round.contributions[1].extent), Written(PayloadOf("us", 0)));
}

TEST_F(Crash, BeforeTheDigestReplaysAndStoresTheUpdateAgain) {
  CopyAt("before_digest_record", 1, [](Journal& journal) {
    Seed(journal, 1);
    OneRound(journal);
  });
  EXPECT_THAT(CopiedSegments(), Contains("000002.segment"));  // of the update, whose row is missing
  const auto journal = OpenAt(copy_);
  EXPECT_THAT(CopiedSegments(), ElementsAre("000001.segment"));
  EXPECT_EQ(Load(*journal).fragments[0].to_replay[0].digest, std::nullopt);
  std::string stored;
  MergedRecord merged = Merged(0, 0);
  merged.stored = [&](const Extent& extent) { stored = Payload(*journal, extent); };
  journal->Commit({.merged = {merged}});
  journal->Flush();
  EXPECT_TRUE(journal->status().ok()) << journal->status();
  EXPECT_EQ(stored, Written(UpdateOf(0)));
}

TEST_F(Crash, WhileASnapshotIsWrittenKeepsTheOneBefore) {
  CopyAt("mid_snapshot", 2, [](Journal& journal) {
    Seed(journal, 1);
    OneRound(journal);
  });
  EXPECT_EQ(FilesIn(copy_ + "/snapshots").size(), 2u);
  const auto journal = OpenAt(copy_);
  EXPECT_THAT(FilesIn(copy_ + "/snapshots"), ElementsAre("fragment-0-000000.safetensors"));
  const StoredRun stored = Load(*journal);
  EXPECT_EQ(stored.fragments[0].snapshot, 0);
  ASSERT_EQ(stored.fragments[0].to_replay.size(), 1u);
  EXPECT_EQ(stored.fragments[0].to_replay[0].digest, DigestOf(1));
  EXPECT_EQ(stored.fragments[0].to_replay[0].contributions.size(), 2u);
  EXPECT_TRUE(journal->LoadSnapshot(0, 0).ok());
  EXPECT_TRUE(journal->SaveSnapshot(0, State(1), DigestOf(1)).ok());
}

TEST_F(Crash, WhileTheSeedIsWrittenLeavesARunThatWasNotSeeded) {
  CopyAt("mid_snapshot", 2, [](Journal& journal) { Seed(journal, 2); });
  const auto journal = OpenAt(copy_);
  const StoredRun stored = Load(*journal);
  EXPECT_FALSE(stored.rounds.seeded);
  EXPECT_THAT(stored.fragments, IsEmpty());
  EXPECT_THAT(FilesIn(copy_ + "/snapshots"), IsEmpty());
  Seed(*journal, 2);
  EXPECT_TRUE(Load(*journal).rounds.seeded);
}

TEST_F(Crash, AfterPruningFindsTheNewSnapshot) {
  CopyAt("after_prune", 2, [](Journal& journal) {
    Seed(journal, 1);
    OneRound(journal);
  });
  const auto journal = OpenAt(copy_);
  const StoredRun stored = Load(*journal);
  EXPECT_EQ(stored.fragments[0].snapshot, 1);
  EXPECT_THAT(stored.fragments[0].to_replay, IsEmpty());
  ASSERT_EQ(stored.fragments[0].updates.size(), 1u);
  EXPECT_EQ(Payload(*journal, stored.fragments[0].updates[0].update), Written(UpdateOf(0)));
  EXPECT_EQ(journal->LoadSnapshot(0, 1)->anchor, State(1).anchor);
}

TEST_F(Crash, AfterPruningFindsAMarkInThePlaceOfThePayloadsThatWent) {
  CopyAt("after_prune", 2, [](Journal& journal) {
    Seed(journal, 1);
    OneRound(journal);
  });
  EXPECT_EQ(HighWater::Read(copy_ + "/high_water")->mark, (*StateLog::Read(copy_))->end);
}

TEST_F(Crash, AtAnyPointOfManyRoundsLeavesADirectoryThatReplays) {
  int copies = 0;
  {
    options_.segment_bytes = 100;
    const auto journal = Open();
    Seed(*journal, 2);
    const FaultHook hook([&](const std::string&) {
      std::filesystem::copy(options_.directory, folder_ / absl::StrCat("copy", copies++),
                            std::filesystem::copy_options::recursive);
    });
    for (core::Version base = 0; base < 4; ++base) {
      for (core::FragmentId p = 0; p < 2; ++p) PlayRound(*journal, p, base);
      if (base % 2 == 0) continue;
      ASSERT_TRUE(journal->SaveSnapshot(static_cast<int>(base / 2), State(base + 1), DigestOf(base + 1)).ok());
    }
  }
  EXPECT_GT(copies, 20);
  for (int i = 0; i < copies; ++i) {
    const auto journal = OpenAt(folder_ / absl::StrCat("copy", i));
    ASSERT_NE(journal, nullptr);
    const StoredRun stored = Load(*journal);
    for (core::FragmentId p = 0; p < 2; ++p) {
      EXPECT_TRUE(journal->LoadSnapshot(p, stored.fragments[p].snapshot).ok());
      for (const StoredRound& round : stored.fragments[p].to_replay) {
        for (const StoredContribution& contribution : round.contributions) {
          const std::string expected = Written(PayloadOf(contribution.site, contribution.admitted.base));
          EXPECT_EQ(Payload(*journal, contribution.extent), expected) << "copy " << i;
        }
        if (round.digest) {
          EXPECT_EQ(Payload(*journal, round.update), Written(UpdateOf(round.record.base)));
        }
        journal->Commit({.merged = {Merged(p, round.record.base)}});
      }
    }
    journal->Flush();
    EXPECT_TRUE(journal->status().ok()) << "copy " << i << ": " << journal->status();
  }
}

}  // namespace
}  // namespace causeway::server
