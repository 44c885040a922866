// A start after the process died at each fault point: the directory is copied there, and the copy is opened.
#include <functional>
#include <tuple>

#include "core/outer_step.h"
#include "tests/server/store/fault_hook.h"
#include "tests/server/store/journal_for_test.h"

namespace causeway::server {
namespace {

using ::testing::AllOf;
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

class Damage : public JournalTest {
 protected:
  Damage() {
    const auto journal = Open();
    Seed(*journal, 1);
    PlayRound(*journal, 0, 0);
  }

  std::string At(const std::string& name) const { return options_.directory + "/" + name; }
  std::string Message(absl::StatusCode code) const {
    const absl::Status status = OpenStatus();
    EXPECT_EQ(status.code(), code) << status;
    return std::string(status.message());
  }
};

TEST_F(Damage, SnapshotThatIsNotWhatWasWrittenIsNamed) {
  const std::string path = At("snapshots/fragment-0-000000.safetensors");
  const std::string good = ReadAll(path);
  std::string flipped = good;
  flipped[good.size() / 2] ^= 4;
  for (const std::string& bad : {flipped, good.substr(0, good.size() / 2), std::string()}) {
    std::ofstream(path, std::ios::binary) << bad;
    const auto loaded = Open()->LoadSnapshot(0, 0);
    EXPECT_TRUE(absl::IsDataLoss(loaded.status())) << loaded.status();
    EXPECT_THAT(std::string(loaded.status().message()), HasSubstr(path));
  }
  std::filesystem::remove(path);
  EXPECT_TRUE(absl::IsDataLoss(Open()->LoadSnapshot(0, 0).status()));
}

TEST_F(Damage, CutSegmentIsNamed) {
  const std::string path = At("segments/000001.segment");
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  EXPECT_THAT(Message(absl::StatusCode::kDataLoss), AllOf(HasSubstr(path), HasSubstr("was cut")));
  std::filesystem::remove(path);
  EXPECT_THAT(Message(absl::StatusCode::kDataLoss), HasSubstr(path));
}

TEST_F(Damage, UpdateThatIsMergedAgainIsStoredAgainWhereItWasDamaged) {
  const std::string path = At("segments/000002.segment");
  const Extent first = Load(*Open()).fragments[0].to_replay[0].update;
  std::string bytes = ReadAll(path);
  bytes[static_cast<size_t>(first.offset)] ^= 2;
  std::ofstream(path, std::ios::binary) << bytes;
  const auto journal = Open();
  Extent again;
  MergedRecord merged = Merged(0, 0);
  merged.stored = [&](const Extent& extent) { again = extent; };
  journal->Commit({.merged = {merged}});
  journal->Flush();
  EXPECT_NE(again, first);
  EXPECT_EQ(Payload(*journal, again), Written(UpdateOf(0)));
  const auto events = *journal->History(0, 10);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, "repair");
  EXPECT_THAT(events[0].text, AllOf(HasSubstr(path), HasSubstr("stored again")));
}

TEST_F(Damage, RefusedStartChangesNothing) {
  const std::string path = At("segments/000001.segment");
  const std::string good = ReadAll(path);
  std::filesystem::remove(path);
  std::ofstream(At("segments/000009.segment")) << "of no run";
  EXPECT_FALSE(OpenStatus().ok());
  EXPECT_TRUE(std::filesystem::exists(At("segments/000009.segment")));
  std::ofstream(path, std::ios::binary) << good;
  EXPECT_EQ(Open()->identity().epoch, 2u);
  EXPECT_FALSE(std::filesystem::exists(At("segments/000009.segment")));
}

TEST_F(Damage, IndexIsMadeAnewWhateverBecameOfIt) {
  const StoredRun before = Load(*Open());
  for (const std::string& bytes :
       {std::string(5000, 'x'), std::string(), ReadAll(IndexPath(options_.directory)).substr(0, 9000)}) {
    std::ofstream(IndexPath(options_.directory), std::ios::binary) << bytes;
    EXPECT_EQ(Load(*Open()).rounds.versions, before.rounds.versions);
  }
  for (const auto& name : FilesIn(options_.directory)) {
    if (name.starts_with("journal.sqlite")) std::filesystem::remove(At(name));
  }
  EXPECT_EQ(Load(*Open()).rounds.versions, before.rounds.versions);
}

TEST_F(Damage, LogThatIsMissingIsNotANewRun) {
  std::filesystem::remove_all(At("log"));
  EXPECT_THAT(Message(absl::StatusCode::kDataLoss), AllOf(HasSubstr(At("log")), HasSubstr("there is no log")));
  std::filesystem::remove(At("high_water"));
  EXPECT_THAT(Message(absl::StatusCode::kDataLoss), HasSubstr("is an index of log/, which is missing"));
  std::filesystem::remove(At("journal.sqlite"));
  EXPECT_THAT(Message(absl::StatusCode::kDataLoss), AllOf(HasSubstr("journal.sqlite"), HasSubstr("missing")));
}

TEST_F(Damage, DatabaseOfAnotherFormatIsRefusedAndStays) {
  std::filesystem::remove_all(At("log"));
  std::filesystem::remove(At("high_water"));
  ASSERT_TRUE(
      (*Database::Open(At("journal.sqlite"), Database::Mode::kReadWrite))->Script("PRAGMA user_version = 6").ok());
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_THAT(Message(absl::StatusCode::kFailedPrecondition), HasSubstr("expected format 7, got 6"));
  }
}

TEST_F(Damage, RoundsToReplayOfAnotherNumericsVersionAreRefusedWithWhatToDo) {
  Sql("UPDATE rounds SET numerics_version = numerics_version + 1");
  EXPECT_THAT(Message(absl::StatusCode::kFailedPrecondition),
              AllOf(HasSubstr("version 1 of fragment 0"), HasSubstr("SIGTERM"),
                    HasSubstr(absl::StrCat("numerics version ", core::kNumericsVersion + 1))));
  Sql("UPDATE rounds SET numerics_version = numerics_version - 1");
  EXPECT_EQ(Open()->identity().epoch, 2u);
}

TEST_F(Damage, RoundsOfAnotherNumericsVersionBeforeASnapshotDoNotMatter) {
  ASSERT_TRUE(Open()->SaveSnapshot(0, State(1), DigestOf(1)).ok());
  Sql("UPDATE rounds SET numerics_version = numerics_version + 1");
  EXPECT_TRUE(OpenStatus().ok()) << OpenStatus();
}

TEST_F(Damage, RowThatCannotBeIsNamed) {
  for (const char* sql : {"UPDATE rounds SET digest = 'none'", "UPDATE rounds SET sites = '{'", "DELETE FROM snapshots",
                          "UPDATE rounds SET version = 3", "UPDATE contributions SET segment = 0 WHERE site = 'eu'",
                          "UPDATE meta SET value = '[' WHERE key = 'manifest'"}) {
    const std::string copy = folder_ / "copy";
    std::filesystem::remove_all(copy);
    std::filesystem::copy(options_.directory, copy, std::filesystem::copy_options::recursive);
    Rewrite(copy, sql);
    const absl::Status status = OpenAt(copy)->Load().status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << sql << ": " << status;
  }
}

TEST_F(Damage, SiteWithoutAVersionForEachFragmentIsNamed) {
  {
    core::RoundState state;
    state.sites["eu"] = {.session = "eu-1",
                         .state = core::SiteState::kTraining,
                         .reason = "",
                         .first_versions = {0},
                         .last_merged = {0},
                         .stay = 1};
    const auto journal = Open();
    journal->Commit({.state = state});
    journal->Flush();
  }
  for (const auto& [list, versions, got] : {std::tuple("first_versions", "[]", 0),
                                            {"first_versions", "[0,0]", 2},
                                            {"last_merged", "[]", 0},
                                            {"last_merged", "[0,-1,-1]", 3}}) {
    Sql(absl::StrCat("UPDATE sites SET ", list, " = '", versions, "'"));
    const absl::Status status = Open()->Load().status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << list << versions << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(At("journal.sqlite")), HasSubstr("site eu (training)"),
                      HasSubstr(absl::StrCat("expected 1 versions in ", list)), HasSubstr(absl::StrCat("got ", got))));
    Sql(absl::StrCat("UPDATE sites SET ", list, " = '[0]'"));
  }
  Sql("UPDATE sites SET state = 'joining', first_versions = '[]'");  // it has not entered
  EXPECT_TRUE(Open()->Load().ok());
  Sql("UPDATE sites SET first_versions = '[0,0]'");
  EXPECT_TRUE(absl::IsDataLoss(Open()->Load().status()));
}

TEST_F(Damage, DirectoryThatCannotBeMadeIsRefusedWithItsName) {
  options_.directory = folder_.Write("file", "") + "/state";
  EXPECT_THAT(Message(absl::StatusCode::kPermissionDenied), HasSubstr("cannot create folder " + options_.directory));
}

}  // namespace
}  // namespace causeway::server
