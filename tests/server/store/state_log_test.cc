#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "core/random.h"
#include "server/store/sync_meter.h"
#include "tests/core/fake_clock.h"
#include "tests/server/store/journal_for_test.h"

namespace causeway::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// The log of a run of two lives, and what a start finds in it.

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
  // The records, without the zeros that lie ahead of the next one.
  static std::string RecordsIn(const std::string& path) {
    const auto contents = ReadLogFile(path, std::nullopt);
    EXPECT_TRUE(contents.ok()) << contents.status();
    return ReadAll(path).substr(0, contents.ok() ? static_cast<size_t>(contents->end) : 0);
  }
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
  // The bytes of records that follow `end`, of that many bytes each.
  std::string RecordsAfter(const LogMark& end, const std::vector<size_t>& sizes) const {
    const std::string path = folder_ / "next.log";
    std::filesystem::remove(path);
    auto file = LogFile::Create(path, end, 2);
    EXPECT_TRUE(file.ok()) << file.status();
    for (const size_t size : sizes) EXPECT_TRUE(file->Append(RecordKind::kRows, std::string(size, 'r')).ok());
    return RecordsIn(path);
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

// Any bit of the newest file's records: it is found, or was not needed.
TEST_F(StateLogTest, NoFlippedBitOfTheNewestFileIsTakenForTheTruth) {
  const std::string path = At("log/000002.log"), good = RecordsIn(path);
  const StateLog::Found before = Found();
  int refused = 0, repaired = 0;
  for (int i = 0; i < 2000; ++i) {
    std::string bad = good;
    const uint64_t at = core::SplitMix64(static_cast<uint64_t>(i));
    bad[at % bad.size()] ^= static_cast<char>(1 << (at >> 61));
    Write(path, bad + std::string(i % 2 == 0 ? 0 : 2000, '\0'));
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
  EXPECT_EQ(journal->identity().epoch, 4u);
}

TEST_F(StateLogTest, CutLogIsNotTakenForATornOne) {
  const std::string path = At("log/000002.log"), good = RecordsIn(path);
  for (const size_t zeros : {size_t{0}, size_t{5000}}) {
    for (const size_t size : {good.size() - 5, good.size() - 40, good.size() / 2, size_t{200}, size_t{1}, size_t{0}}) {
      Write(path, good.substr(0, size) + std::string(zeros, '\0'));
      EXPECT_THAT(Message(), AllOf(HasSubstr(path), HasSubstr("acknowledged up to"))) << size << " and " << zeros;
    }
  }
  std::filesystem::remove(path);
  EXPECT_THAT(Message(), HasSubstr("000001.log: ends with record"));
}

TEST_F(StateLogTest, ZerosLieAheadOfTheRecordsAndAreNotNeeded) {
  const std::string path = At("log/000002.log"), records = RecordsIn(path);
  const StateLog::Found before = Found();
  EXPECT_GT(ReadAll(path).size(), records.size() + 100'000);
  for (const size_t zeros : {0, 1, 63, 64, 500, 100'000}) {
    Write(path, records + std::string(zeros, '\0'));
    EXPECT_EQ(Found().end, before.end) << zeros;
    EXPECT_THAT(Found().repaired, IsEmpty()) << zeros;
  }
}

// Nothing else changes the file's length while its commits fit: that is what a commit need not wait for.
TEST_F(StateLogTest, CommitsThatFitTheZerosKeepTheFilesLength) {
  const auto journal = Open();
  const auto size = [&] { return std::filesystem::file_size(At("log/000003.log")); };
  const auto before = size();
  for (int i = 0; i < 100; ++i) {
    journal->Commit({.events = {{.kind = "note", .site = "", .text = "short"}}});
    journal->Flush();
  }
  EXPECT_EQ(size(), before);
  journal->Commit({.events = {{.kind = "note", .site = "", .text = std::string(before, 't')}}});
  journal->Flush();
  EXPECT_GT(size(), 2 * before);
}

TEST_F(StateLogTest, MarkIsNotDueWhereAPayloadHasNotedTheEnd) {
  const auto log = *StateLog::Begin(options_.directory, Found(), 3, "rows");
  const LogMark before = log->end();
  ASSERT_TRUE(log->Append("more rows").ok());
  EXPECT_TRUE(log->mark_due());
  log->NotedElsewhere(before);
  EXPECT_TRUE(log->mark_due());
  log->NotedElsewhere(log->end());
  EXPECT_FALSE(log->mark_due());
  EXPECT_EQ(HighWater::Read(At("high_water"))->mark, before);
  ASSERT_TRUE(log->Mark().ok());
  EXPECT_EQ(HighWater::Read(At("high_water"))->mark, log->end());
}

TEST_F(StateLogTest, FileOfAStartThatFailedTakesNoPlaceOfOneThatIsNeeded) {
  const StoredRun before = Load(*Open());  // the third file
  const std::string good = ReadAll(At("log/000003.log"));
  const size_t changes = Found().changes.size();
  for (const std::string& begun : {std::string(), good.substr(0, 20), good.substr(0, 200)}) {
    std::filesystem::remove(At("log/000005.log"));
    Write(At("log/000004.log"), begun);
    EXPECT_EQ(Load(*Open()).rounds.versions, before.rounds.versions);
    EXPECT_THAT(Logs(), ElementsAre("000003.log", "000004.log", "000005.log"));
    std::string bad = ReadAll(At("log/000005.log"));
    bad[100] ^= 1;
    Write(At("log/000005.log"), bad);
    EXPECT_THAT(Found().repaired, ElementsAre(AllOf(HasSubstr("000005.log"), HasSubstr("is damaged"))));
    EXPECT_EQ(Found().changes.size(), changes + 1);  // the second one of that file
    std::filesystem::remove(At("high_water"));
    std::filesystem::remove(At("log/000005.log"));
  }
}

TEST_F(StateLogTest, CutLogBeforeAStartThatFailedIsNamed) {
  const std::string path = At("log/000002.log"), good = RecordsIn(path);
  const StateLog::Found before = Found();
  const size_t last = 64 + before.changes.back().size() + 32;
  Write(At("log/000003.log"), "");
  EXPECT_EQ(Found().end, before.end);
  for (const size_t less : {size_t{1}, last, last + 1}) {
    Write(path, good.substr(0, good.size() - less));
    EXPECT_THAT(Message(), AllOf(HasSubstr(path), HasSubstr("acknowledged up to"))) << less;
  }
}

TEST_F(StateLogTest, CutLogBehindOneThatIsWholeIsNamedBesideAStartThatFailed) {
  const std::string path = At("log/000002.log");
  Write(path, ReadAll(path).substr(0, 200));
  Write(At("log/000003.log"), "");
  EXPECT_THAT(Message(), AllOf(HasSubstr(path), HasSubstr("acknowledged up to")));
}

// The mark may be of that record still when the next start begins its own file.
TEST_F(StateLogTest, NumberOfADamagedFirstRecordIsNotUsedAgain) {
  const StateLog::Found before = Found();
  ASSERT_TRUE(StateLog::Begin(options_.directory, before, 3, std::string(1000, 'r')).ok());
  const std::string path = At("log/000003.log"), marks = ReadAll(At("high_water"));
  std::string bytes = ReadAll(path);
  bytes[100] ^= 1;
  Write(path, bytes);
  const StateLog::Found found = Found();
  EXPECT_THAT(found.repaired, SizeIs(1));
  EXPECT_EQ(found.changes, before.changes);
  EXPECT_EQ(found.end.sequence, before.end.sequence + 1);
  ASSERT_TRUE(StateLog::Begin(options_.directory, found, 4, std::string(1000, 'r')).ok());
  Write(At("high_water"), marks);
  EXPECT_EQ(Found().end.sequence, before.end.sequence + 2);
}

TEST_F(StateLogTest, MarkThatIsDamagedHasAnotherOneBesideIt) {
  const std::string path = At("high_water"), good = ReadAll(path);
  for (const size_t at : {size_t{3}, size_t{4096 + 3}}) {
    std::string bad = good;
    bad[at] ^= 1;
    Write(path, bad);
    EXPECT_THAT(Found().repaired, ElementsAre(HasSubstr("high_water")));
  }
  Write(path, good.substr(0, 1000));
  EXPECT_THAT(Found().repaired, ElementsAre(HasSubstr("one of its slots")));
  Write(path, good.substr(0, 40));
  EXPECT_THAT(Found().repaired, ElementsAre("high_water is damaged"));
  std::filesystem::remove(path);
  EXPECT_THAT(Found().repaired, ElementsAre("high_water is missing"));
}

TEST_F(StateLogTest, PayloadsAreWitnessesOfRecordsThatAreGone) {
  const std::string path = At("log/000002.log"), good = RecordsIn(path);
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
  std::filesystem::remove(At("segments/000001.segment"));  // as if a record that is lost had let it go
  EXPECT_THAT(std::string(OpenStatus().message()), HasSubstr("ends with record"));
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
  for (int i = 0; i < 40; ++i) {
    const auto page = *journal->History(i, 1);
    ASSERT_THAT(page, SizeIs(1));
    EXPECT_EQ(page[0].id, i + 1);
  }
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

// How long the disk took: the slowest sync of the last minute, and one that hangs.

class SyncMeterTest : public testing::Test {
 protected:
  void Sync(int64_t ms) {
    const auto sync = [&] {
      clock_.Advance(ms);
      return absl::OkStatus();
    };
    EXPECT_TRUE(meter_.Time(sync).ok());
  }
  double Slowest() const { return meter_.figures().slowest_s; }

  core::FakeClock clock_{100'000};
  SyncMeter meter_{&clock_};
};

TEST_F(SyncMeterTest, CountsAndAddsUp) {
  EXPECT_EQ(meter_.figures().count, 0u);
  for (int64_t ms : {250, 500, 125}) Sync(ms);
  EXPECT_EQ(meter_.figures().count, 3u);
  EXPECT_EQ(meter_.figures().seconds, 0.875);
  EXPECT_EQ(Slowest(), 0.5);
}

TEST_F(SyncMeterTest, SlowestIsForgottenAfterAMinuteAtTheLatestAndHalfOfOneAtTheEarliest) {
  Sync(4'000);
  clock_.Advance(29'999);
  EXPECT_EQ(Slowest(), 4);
  Sync(1);
  EXPECT_EQ(Slowest(), 4);
  clock_.Advance(30'000);
  EXPECT_EQ(Slowest(), 0.001);
  clock_.Advance(30'000);
  EXPECT_EQ(Slowest(), 0);
}

TEST_F(SyncMeterTest, OneThatHangsIsSeenWhileItDoes) {
  const auto sync = [&] {
    clock_.Advance(7'000);
    EXPECT_EQ(Slowest(), 7);
    EXPECT_EQ(meter_.figures().count, 0u);
    return absl::UnavailableError("no disk");
  };
  EXPECT_EQ(meter_.Time(sync), absl::UnavailableError("no disk"));
  EXPECT_EQ(Slowest(), 7);
}

// A last record that never reached the disk whole is let go; all else is damage.

class TornRecord : public StateLogTest {
 protected:
  // A record of 3 kB after those of the newest file, and what the rest of it is then.
  TornRecord() {
    auto file = LogFile::Create(folder_ / "next.log", before_.end, 2);
    EXPECT_TRUE(file.ok() && file->Append(RecordKind::kRows, std::string(3000, 'r')).ok());
    next_ = ReadAll(folder_ / "next.log").substr(0, 3000 + 96);
  }
  std::string Damaged() const { return absl::StrCat("record ", before_.end.sequence + 1); }

  const std::string path_ = At("log/000002.log"), good_ = RecordsIn(path_);
  const StateLog::Found before_ = Found();
  std::string next_;
};

// A write that was under way is no damage: no site was told of it.
TEST_F(TornRecord, ThatEndsEarlyIsLetGo) {
  for (const size_t bytes : {size_t{1}, size_t{63}, size_t{64}, size_t{2000}, next_.size() - 1}) {
    Write(path_, good_ + next_.substr(0, bytes));
    EXPECT_EQ(Found().end, before_.end) << bytes;
    EXPECT_THAT(Found().repaired, SizeIs(1));
  }
}

TEST_F(TornRecord, OfWhichAnySectorsAreMissingIsLetGo) {
  const size_t first = good_.size() / 512, last = (good_.size() + next_.size() - 1) / 512;
  ASSERT_GE(last - first, 5u);
  for (uint32_t there = 0; there + 1 < 1U << (last - first + 1); ++there) {
    std::string file = good_ + next_ + std::string(4000, '\0');
    for (size_t sector = first; sector <= last; ++sector) {
      if ((there >> (sector - first) & 1) != 0) continue;
      const size_t begin = std::max(good_.size(), sector * 512);
      file.replace(begin, (sector + 1) * 512 - begin, std::string((sector + 1) * 512 - begin, '\0'));
    }
    Write(path_, file);
    EXPECT_EQ(Found().end, before_.end) << there;
    EXPECT_THAT(Found().repaired, SizeIs(there == 0 ? 0 : 1)) << there;
  }
}

TEST_F(TornRecord, ThatIsThereInFullButNotAsItWasWrittenIsDamage) {
  for (const std::string& zeros : {std::string(), std::string(4000, '\0')}) {
    for (size_t bit = 0; bit < next_.size() * 8; bit += bit < 64 * 8 ? 1 : 97) {
      std::string flipped = good_ + next_;
      flipped[good_.size() + bit / 8] ^= static_cast<char>(1 << bit % 8);
      Write(path_, flipped + zeros);
      EXPECT_THAT(Message(), AllOf(HasSubstr(path_), HasSubstr(Damaged()))) << bit;
    }
  }
}

TEST_F(TornRecord, AfterWhichAPayloadWasWrittenIsDamage) {
  {
    const auto journal = Open();
    for (const char* site : {"eu", "us"}) {
      journal->Commit({.admitted = {Contribution(0, site, 4)}});
      journal->Flush();
    }
  }
  const std::string path = At("log/000003.log");
  const LogContents log = *ReadLogFile(path, std::nullopt);
  const size_t last = 96 + log.records.back().contents.size();
  std::filesystem::remove(At("high_water"));
  Write(path, ReadAll(path).substr(0, static_cast<size_t>(log.end) - last - 10));
  EXPECT_TRUE(ReadStatus().ok()) << "the log alone looks torn";
  const absl::Status status = OpenStatus();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(path), HasSubstr(absl::StrCat("record ", log.records.back().mark.sequence - 1)),
                    HasSubstr("is damaged"), HasSubstr(At("segments"))));
}

TEST_F(StateLogTest, LastRecordWhoseLengthIsWrongIsNotTakenForATornOne) {
  const std::string path = At("log/000002.log");
  const StateLog::Found before = Found();
  std::string bytes = RecordsIn(path);
  const size_t length = bytes.size() + 24;
  bytes += RecordsAfter(before.end, {300});
  for (const size_t byte : {size_t{0}, size_t{1}, size_t{7}}) {
    std::string bad = bytes;
    bad[length + byte] ^= 0x40;
    Write(path, bad);
    EXPECT_THAT(Message(), HasSubstr(absl::StrCat(path, ": record ", before.end.sequence + 1))) << byte;
  }
}

// It was durable before the one behind it was begun.
TEST_F(StateLogTest, RecordThatAnotherOneFollowsIsNotTakenForATornOne) {
  const std::string path = At("log/000002.log");
  const StateLog::Found before = Found();
  const std::string good = RecordsIn(path), next = RecordsAfter(before.end, {1500, 100});
  std::string bad = good + next;
  bad.replace(good.size(), 200, std::string(200, '\0'));
  bad.back() ^= 1;
  Write(path, bad);
  EXPECT_THAT(Message(), HasSubstr(absl::StrCat(path, ": record ", before.end.sequence + 1)));
}

}  // namespace
}  // namespace causeway::server
