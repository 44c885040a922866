#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "server/store/high_water.h"
#include "server/store/segments.h"
#include "tests/server/store/journal_for_test.h"

namespace causeway::server {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class RelaxedJournal : public JournalTest {
 protected:
  RelaxedJournal() { options_.relaxed = true; }

  // The directory as it is, while the journal runs: what a process that is killed leaves behind.
  std::string Copy(const std::string& name) {
    fs::copy(options_.directory, folder_ / name, fs::copy_options::recursive);
    return folder_ / name;
  }

  void AwaitMarkAtTheEnd() {
    const auto end = StateLog::Read(options_.directory);
    ASSERT_TRUE(end.ok()) << end.status();
    const auto synced = [&] {
      const auto marks = HighWater::Read(options_.directory + "/high_water");
      return marks.ok() && marks->mark == (*end)->end;
    };
    for (int i = 0; i < 2000 && !synced(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_TRUE(synced());
  }

  // Two rounds that are on the disk, and a third whose records are, though its payloads are not.
  std::string LosePower(Journal& journal) {
    Seed(journal, 1);
    for (core::Version base = 0; base < 2; ++base) PlayRound(journal, 0, base);
    AwaitMarkAtTheEnd();
    const std::string synced = Copy("synced");
    PlayRound(journal, 0, 2);
    const std::string lost = Copy("lost");
    fs::remove_all(lost + "/segments");
    fs::copy(synced + "/segments", lost + "/segments");
    fs::copy(synced + "/high_water", lost + "/high_water", fs::copy_options::overwrite_existing);
    return lost;
  }
};

// A process that is killed leaves behind what it has written.
TEST_F(RelaxedJournal, HasEverythingThatItToldWhenItsFilesAreReadBesideIt) {
  auto journal = Open();
  Seed(*journal, 2);
  for (core::Version base = 0; base < 3; ++base) PlayRound(*journal, 1, base);
  const auto found = StateLog::Read(options_.directory);
  ASSERT_TRUE(found.ok()) << found.status();
  auto index = BuildIndex(options_.directory, (*found)->changes, /*expected_new=*/false);
  ASSERT_TRUE(index.ok()) << index.status();
  int64_t rounds = 0;
  ASSERT_TRUE((*index)
                  ->Query("SELECT count(*) FROM rounds WHERE fragment = 1", {},
                          [&](const SqlRow& row) {
                            rounds = row.Integer(0);
                            return absl::OkStatus();
                          })
                  .ok());
  EXPECT_EQ(rounds, 3);
}

TEST_F(RelaxedJournal, IsOnTheDiskWhenItGoesAndSnapshotsPruneIt) {
  {
    auto journal = Open();
    Seed(*journal, 1);
    for (core::Version base = 0; base < 4; ++base) PlayRound(*journal, 0, base);
    ASSERT_TRUE(journal->SaveSnapshot(0, State(4), DigestOf(4)).ok());
    PlayRound(*journal, 0, 4);
    EXPECT_GT(journal->syncs().count, 0u);
  }
  options_.relaxed = false;
  auto journal = Open();
  const StoredRun stored = Load(*journal);
  EXPECT_TRUE(journal->repaired().empty());
  ASSERT_EQ(stored.fragments.size(), 1u);
  EXPECT_EQ(stored.fragments[0].snapshot, 4);
}

// Records written while the disk is busy are synced after it, though nothing else comes.
TEST_F(RelaxedJournal, IsOnTheDiskSoonWhateverComesMeanwhile) {
  auto journal = Open();
  Seed(*journal, 1);
  for (core::Version base = 0; base < 20; ++base) PlayRound(*journal, 0, base);
  AwaitMarkAtTheEnd();
}

TEST_F(RelaxedJournal, IsCutAtItsMarkWhereItsMachineLostPower) {
  const auto journal = Open();
  const std::string lost = LosePower(*journal);
  for (const bool first : {true, false}) {
    const auto cut = OpenAt(lost);
    ASSERT_NE(cut, nullptr) << first;
    EXPECT_THAT(Load(*cut).rounds.versions, ElementsAre(2)) << first;
    EXPECT_THAT(cut->repaired(), SizeIs(first ? 1 : 0));
    EXPECT_EQ(cut->identity().may_have_lost_its_end, first);
    ASSERT_THAT(cut->identity().floors, SizeIs(1)) << first;
    EXPECT_EQ(cut->identity().floors[0].versions.at(0), 2);
  }
}

TEST_F(RelaxedJournal, IsCutAtItsMarkWhereAPayloadBehindItLacksPages) {
  const auto journal = Open();
  Seed(*journal, 1);
  for (core::Version base = 0; base < 2; ++base) PlayRound(*journal, 0, base);
  AwaitMarkAtTheEnd();
  const std::string mark = folder_ / "mark";
  fs::copy(options_.directory + "/high_water", mark);
  PlayRound(*journal, 0, 2);
  const std::string lost = Copy("lost");
  fs::copy(mark, lost + "/high_water", fs::copy_options::overwrite_existing);
  const Extent last = Load(*journal).fragments[0].to_replay.back().contributions[0].extent;
  std::fstream file(server::Segments::Path(lost + "/segments", last.segment),
                    std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(last.offset).put('\0');
  file.close();
  const auto cut = OpenAt(lost);
  ASSERT_NE(cut, nullptr);
  EXPECT_THAT(Load(*cut).rounds.versions, ElementsAre(2));
  EXPECT_THAT(cut->repaired(), SizeIs(1));
}

TEST_F(RelaxedJournal, IsCutNowhereWhereItsRecordsAreThereThoughItWasKilled) {
  const auto journal = Open();
  Seed(*journal, 1);
  for (core::Version base = 0; base < 3; ++base) PlayRound(*journal, 0, base);
  const auto killed = OpenAt(Copy("killed"));
  EXPECT_THAT(Load(*killed).rounds.versions, ElementsAre(3));
  EXPECT_THAT(killed->repaired(), IsEmpty());
  EXPECT_TRUE(killed->identity().may_have_lost_its_end);
}

TEST_F(RelaxedJournal, MayHaveLostItsEndUntilALifeEndsThatKnows) {
  const auto journal = Open();
  const std::string lost = LosePower(*journal);
  OpenAt(lost)->EndsInDoubt();
  EXPECT_TRUE(OpenAt(lost)->identity().may_have_lost_its_end);
  EXPECT_FALSE(OpenAt(lost)->identity().may_have_lost_its_end);
}

TEST_F(RelaxedJournal, IsRefusedWhereARecordBeforeItsMarkIsDamaged) {
  const auto journal = Open();
  const std::string lost = LosePower(*journal);
  const std::string log = StateLog::Files(lost).Path(1);
  const auto read = ReadLogFile(log, std::nullopt);
  ASSERT_TRUE(read.ok()) << read.status();
  std::fstream file(log, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(SizeInFile(read->records[0]) + 80).put('!');
  file.close();
  JournalOptions options = options_;
  options.directory = lost;
  EXPECT_THAT(Journal::Open(options).status().message(), HasSubstr("is damaged"));
}

// It had synced each record before it acknowledged it: nothing may be missing.
TEST_F(RelaxedJournal, StrictOneThatLacksPayloadsIsRefused) {
  options_.relaxed = false;
  const auto journal = Open();
  JournalOptions options = options_;
  options.directory = LosePower(*journal);
  EXPECT_THAT(Journal::Open(options).status().message(), HasSubstr("it was cut after the journal was written"));
}

TEST_F(RelaxedJournal, StateThatContinuesItsOwnLineageBeginsAnother) {
  std::string before;
  {
    const auto journal = Open();
    before = journal->identity().lineage;
    Seed(*journal, 1);
    PlayRound(*journal, 0, 0);
    journal->Commit({.admitted = {Contribution(0, "eu", 1)}});
    journal->Commit({.continues = before});
    journal->Flush();
    ASSERT_TRUE(journal->status().ok()) << journal->status();
  }
  const auto journal = Open();
  EXPECT_NE(journal->identity().lineage, before);
  EXPECT_EQ(journal->identity().continues, before);
  EXPECT_THAT(journal->identity().former_lineages, ElementsAre(before));
  EXPECT_THAT(Load(*journal).fragments[0].open, IsEmpty());
}

}  // namespace
}  // namespace causeway::server
