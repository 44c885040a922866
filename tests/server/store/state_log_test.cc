#include <cstdlib>
#include <fstream>

#include "core/random.h"
#include "tests/server/store/journal_for_test.h"

namespace causeway::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class StateLogTest : public JournalTest {
 protected:
  // Two lives of two rounds each, ended by their destructors; `events` of each, to have records.
  StateLogTest() {
    for (core::Version base = 0; base < 4; base += 2) {
      const auto journal = Open();
      if (base == 0) Seed(*journal, 1);
      PlayRound(*journal, 0, base);
      PlayRound(*journal, 0, base + 1);
    }
  }

  std::string At(const std::string& name) const { return options_.directory + "/" + name; }
  std::vector<std::string> Logs() const { return FilesIn(At("log")); }
  absl::Status ReadStatus() const { return StateLog::Read(options_.directory).status(); }
  StateLog::Found Found() const {
    auto found = StateLog::Read(options_.directory);
    EXPECT_TRUE(found.ok()) << found.status();
    return found.ok() && *found ? **found : StateLog::Found();
  }
  static void Write(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }
  std::string Message() const {
    const absl::Status status = ReadStatus();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    return std::string(status.message());
  }
};

TEST_F(StateLogTest, EachLifeHasAFileAndTheTwoNewestStay) {
  EXPECT_THAT(Logs(), ElementsAre("000001.log", "000002.log"));
  { const auto third = Open(); }
  EXPECT_THAT(Logs(), ElementsAre("000002.log", "000003.log"));
  EXPECT_EQ(Load(*Open()).rounds.versions, std::vector<core::Version>{4});
}

TEST_F(StateLogTest, WhatARecordSaysTheRowsSay) {
  const StateLog::Found found = Found();
  EXPECT_THAT(found.repaired, IsEmpty());
  EXPECT_EQ(found.epoch, 2u);
  EXPECT_GE(found.changes.size(), 4u);
  const auto rows = AllRows(IndexPath(options_.directory), kTables);
  const auto index = BuildIndex(options_.directory, found.changes, false);
  ASSERT_TRUE(rows.ok() && index.ok()) << rows.status() << index.status();
  EXPECT_EQ(*AllRows(NewIndexPath(options_.directory), kTables), *rows);
}

// Any bit of the newest file: it is found, or was not needed.
TEST_F(StateLogTest, NoFlippedBitOfTheNewestFileIsTakenForTheTruth) {
  const std::string path = At("log/000002.log"), good = ReadAll(path);
  const StateLog::Found before = Found();
  int refused = 0, repaired = 0;
  for (int i = 0; i < 2000; ++i) {
    std::string bad = good;
    const uint64_t at = core::SplitMix64(static_cast<uint64_t>(i));
    bad[at % bad.size()] ^= static_cast<char>(1 << (at >> 61));
    Write(path, bad);
    const auto found = StateLog::Read(options_.directory);
    if (found.ok()) {
      ASSERT_TRUE(found->has_value());
      ++repaired;
      EXPECT_EQ((*found)->end, before.end);
      EXPECT_THAT((*found)->repaired, SizeIs(1));
      continue;
    }
    ++refused;
    EXPECT_THAT(std::string(found.status().message()), AllOf(HasSubstr(path), HasSubstr("nothing was changed")));
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(repaired, 100);  // those of its first record, which the file before has
}

TEST_F(StateLogTest, DamagedFirstRecordIsMadeGoodByTheFileBefore) {
  const StoredRun before = Load(*Open());  // the third file
  const std::string path = At("log/000003.log");
  std::string bytes = ReadAll(path);
  bytes[100] ^= 1;
  Write(path, bytes);
  EXPECT_THAT(Found().repaired, ElementsAre(AllOf(HasSubstr(path), HasSubstr("is damaged"))));
  const auto journal = Open();
  EXPECT_EQ(Load(*journal).rounds.versions, before.rounds.versions);
  EXPECT_EQ(journal->epoch(), 4u);
}

TEST_F(StateLogTest, CutLogIsNotTakenForATornOne) {
  const std::string path = At("log/000002.log"), good = ReadAll(path);
  for (const size_t size : {good.size() - 1, good.size() - 40, good.size() / 2, size_t{200}, size_t{1}, size_t{0}}) {
    Write(path, good.substr(0, size));
    EXPECT_THAT(Message(), AllOf(HasSubstr(path), HasSubstr("acknowledged up to"))) << size;
  }
  std::filesystem::remove(path);
  EXPECT_THAT(Message(), HasSubstr("000001.log: ends with record"));
}

// A write that was under way is no damage: no site was told of it.
TEST_F(StateLogTest, LastRecordThatNeverReachedTheDiskIsLetGo) {
  const std::string path = At("log/000002.log");
  const StateLog::Found before = Found();
  {
    auto file = LogFile::Create(folder_ / "next.log", before.end, 2);
    ASSERT_TRUE(file.ok() && file->Append(RecordKind::kRows, std::string(3000, 'r')).ok());
  }
  const std::string good = ReadAll(path), next = ReadAll(folder_ / "next.log");
  for (const size_t bytes : {size_t{1}, size_t{63}, size_t{64}, size_t{2000}, next.size() - 1}) {
    Write(path, good + next.substr(0, bytes));
    EXPECT_EQ(Found().end, before.end) << bytes;
    EXPECT_THAT(Found().repaired, SizeIs(1));
  }
  std::string holes = good + next;
  const size_t sector = (good.size() / 512 + 2) * 512;
  holes.replace(sector, 512, std::string(512, '\0'));
  Write(path, holes);
  EXPECT_EQ(Found().end, before.end);
  // All of it is there, but not as it was written.
  std::string flipped = good + next;
  flipped[good.size() + 100] ^= 1;
  Write(path, flipped);
  EXPECT_THAT(Message(), HasSubstr(absl::StrCat("record ", before.end.sequence + 1)));
}

TEST_F(StateLogTest, MarkThatIsDamagedHasAnotherOneBesideIt) {
  const std::string path = At("high_water"), good = ReadAll(path);
  for (const size_t at : {size_t{3}, size_t{4096 + 3}}) {
    std::string bad = good;
    bad[at] ^= 1;
    Write(path, bad);
    EXPECT_THAT(Found().repaired, ElementsAre(HasSubstr("high_water")));
  }
  std::filesystem::remove(path);
  EXPECT_THAT(Found().repaired, ElementsAre("high_water is missing"));
}

TEST_F(StateLogTest, PayloadsAreWitnessesOfRecordsThatAreGone) {
  const std::string path = At("log/000002.log"), good = ReadAll(path);
  const StateLog::Found before = Found();
  std::filesystem::remove(At("high_water"));
  const size_t first_record = 64 + before.changes[0].size() + 32;
  Write(path, good.substr(0, first_record));
  EXPECT_EQ(Found().changes.size(), 1u) << "the log alone looks whole";
  const absl::Status status = OpenStatus();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("ends with record"), HasSubstr(At("segments"))));
  EXPECT_EQ(ReadAll(path).size(), first_record);
  EXPECT_THAT(Segments(), SizeIs(4));
}

TEST_F(StateLogTest, LogOfAnotherRunIsRefused) {
  std::filesystem::copy(options_.directory, folder_ / "copy", std::filesystem::copy_options::recursive);
  for (const std::string& directory : {options_.directory, folder_ / "copy"}) {
    const auto journal = OpenAt(directory);
    journal->Commit({.events = {{.kind = "note", .site = "", .text = directory}}});
  }
  std::filesystem::copy_file(folder_ / "copy/log/000003.log", At("log/000003.log"),
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(Message(), HasSubstr("is not the one that was acknowledged"));
}

TEST_F(StateLogTest, AProcessThatTakesTheDirectoryEndsTheOneBefore) {
  const auto first = Open();
  std::filesystem::remove(At("lock"));
  const auto second = Open();  // nothing keeps it out
  bool told = false;
  first->Commit({.events = {{.kind = "note", .site = "", .text = "late"}}, .durable = [&] { told = true; }});
  first->Flush();
  EXPECT_FALSE(told);
  EXPECT_TRUE(absl::IsFailedPrecondition(first->status())) << first->status();
  EXPECT_THAT(std::string(first->status().message()), HasSubstr("another coordinator has taken this directory"));
  second->Commit({.durable = [&] { told = true; }});
  second->Flush();
  EXPECT_TRUE(told);
}

TEST_F(StateLogTest, LogThatGrowsWhileItIsReadIsReadAgain) {
  const auto first = Open();
  const StateLog::Found found = Found();
  first->Commit({.events = {{.kind = "note", .site = "", .text = "meanwhile"}}});
  first->Flush();
  EXPECT_TRUE(absl::IsAborted(StateLog::Begin(options_.directory, found, 9, "").status()));
}

TEST_F(StateLogTest, LongLogGoesOnInAnotherFile) {
  {
    const auto journal = Open();
    const std::string text(1 << 20, 't');
    for (int i = 0; i < 40; ++i) {
      journal->Commit({.events = {{.kind = "note", .site = "", .text = text}}});
      journal->Flush();
    }
    EXPECT_TRUE(journal->status().ok()) << journal->status();
  }
  EXPECT_THAT(Logs(), ElementsAre("000003.log", "000004.log"));
  const auto journal = Open();
  EXPECT_EQ(Load(*journal).rounds.versions, std::vector<core::Version>{4});
  EXPECT_THAT(*journal->History(0, 100), SizeIs(40));
}

TEST_F(StateLogTest, DirectoryOfFormatThreeGoesOnWithItsRowsAndPayloads) {
  const StoredRun before = Load(*Open());
  MakeFormer();
  const auto journal = Open();
  const StoredRun after = Load(*journal);
  EXPECT_EQ(after.rounds.versions, before.rounds.versions);
  EXPECT_EQ(journal->epoch(), 4u);
  ASSERT_THAT(after.fragments[0].to_replay, SizeIs(4));
  EXPECT_EQ(after.fragments[0].to_replay[3].contributions[0].extent,
            before.fragments[0].to_replay[3].contributions[0].extent);
  EXPECT_EQ(FilesIn(At("set_aside")), std::vector<std::string>{"journal-format3.sqlite"});
}

TEST_F(StateLogTest, PayloadThatWasDamagedIsNamedWhenItIsRead) {
  const std::string path = At("segments/000003.segment");
  std::string bytes = ReadAll(path);
  const Extent extent = Load(*Open()).fragments[0].to_replay[2].contributions[1].extent;
  bytes[static_cast<size_t>(extent.offset)] ^= 1;
  Write(path, bytes);
  const auto journal = Open();
  const absl::Status status = journal->ReadChunk(extent, 0).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(path), HasSubstr("is damaged")));
}

}  // namespace
}  // namespace causeway::server
