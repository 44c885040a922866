#include "server/store/scrubber.h"

#include <fstream>
#include <optional>

#include "absl/strings/str_format.h"
#include "tests/server/store/fault_hook.h"
#include "tests/server/store/journal_for_test.h"

namespace causeway::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A scrubber that reads a running journal's directory when a test says so, as fast as it can.
class ScrubberTest : public JournalTest {
 protected:
  ScrubberTest() {
    { const auto before = Open(); }  // so that the log has two files
    options_.damaged = [this](const DiskDamage& damage) { told_.push_back(damage); };
    journal_ = Open();
    Seed(*journal_, 1);
    for (core::Version base = 0; base < 4; ++base) PlayRound(*journal_, 0, base);
    EXPECT_TRUE(journal_->SaveSnapshot(0, State(2), DigestOf(2)).ok());
  }

  Scrubber Make() {
    return Scrubber(
        {.state_dir = options_.directory,
         .bytes_per_s = 1 << 20,
         .durable = [this] { return durable_ ? *durable_ : (*StateLog::Read(options_.directory))->end.sequence; },
         .found = [this](const DiskDamage& damage) { found_.push_back(damage); },
         .wait_until = [this](core::Clock::TimePoint) { return ++pieces_ != stop_after_; }});
  }
  std::vector<DiskDamage> Pass() {
    Scrubber scrubber = Make();
    EXPECT_TRUE(scrubber.Pass().ok());
    return scrubber.figures().damages;
  }
  std::string At(const std::string& name) const { return options_.directory + "/" + name; }
  static void Flip(const std::string& path, int64_t at) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(at);
    const char byte = static_cast<char>(file.get());
    file.seekp(at);
    file.put(static_cast<char>(byte ^ 4));
  }
  // A pass with a bit flipped there.
  std::vector<DiskDamage> AfterFlip(const std::string& name, int64_t at) {
    durable_ = (*StateLog::Read(options_.directory))->end.sequence;
    Flip(At(name), at);
    std::vector<DiskDamage> damages = Pass();
    Flip(At(name), at);
    return damages;
  }

  std::unique_ptr<Journal> journal_;
  std::optional<uint64_t> durable_;
  std::vector<DiskDamage> found_, told_;
  int pieces_ = 0, stop_after_ = 0;
};

auto Is(const std::string& file, int64_t offset) {
  return AllOf(testing::Field(&DiskDamage::file, file), testing::Field(&DiskDamage::offset, offset));
}

TEST_F(ScrubberTest, FindsNothingWhereNothingIsWrong) {
  EXPECT_THAT(Pass(), IsEmpty());
  EXPECT_GT(pieces_, 20);
}

TEST_F(ScrubberTest, EachFlippedBitOfTheLogIsFoundWithItsRecord) {
  for (const std::string& name : FilesIn(At("log"))) {
    const LogContents log = *ReadLogFile(At("log/" + name), std::nullopt);
    int64_t begin = 0;
    for (const LogRecord& record : log.records) {
      const auto size = static_cast<int64_t>(96 + record.contents.size());
      for (const int64_t at : {begin, begin + 24, begin + 40, begin + 64, begin + size - 1}) {
        const auto damages = AfterFlip("log/" + name, at);
        ASSERT_THAT(damages, ElementsAre(Is(At("log/" + name), begin))) << at;
        EXPECT_THAT(damages[0].cause, HasSubstr(absl::StrCat("record ", record.mark.sequence, " is not")));
      }
      begin += size;
    }
    EXPECT_THAT(AfterFlip("log/" + name, begin + 1000), IsEmpty()) << "nothing lies there";
  }
}

TEST_F(ScrubberTest, LogThatHasLostItsEndIsFound) {
  durable_ = (*StateLog::Read(options_.directory))->end.sequence;
  const std::string path = At("log/000002.log");
  const LogContents log = *ReadLogFile(path, std::nullopt);
  const auto begin = log.end - static_cast<int64_t>(96 + log.records.back().contents.size());
  std::filesystem::resize_file(path, static_cast<uint64_t>(begin));
  EXPECT_THAT(Pass(), ElementsAre(Is(path, begin)));
}

TEST_F(ScrubberTest, EachMarkIsRead) {
  EXPECT_THAT(AfterFlip("high_water", 9), ElementsAre(Is(At("high_water"), 0)));
  EXPECT_THAT(AfterFlip("high_water", 4096 + 9), ElementsAre(Is(At("high_water"), 4096)));
}

TEST_F(ScrubberTest, PayloadsThatRowsNameAreReadWithTheirFrames) {
  const StoredFragment stored = Load(*journal_).fragments[0];
  const Extent& contribution = stored.to_replay[1].contributions[1].extent;
  const Extent& update = stored.updates[0].update;
  for (const Extent& extent : {contribution, update}) {
    const std::string name = absl::StrFormat("segments/%06d.segment", extent.segment);
    EXPECT_THAT(AfterFlip(name, extent.offset + 2), ElementsAre(Is(At(name), extent.offset)));
    const int64_t second = extent.offset + extent.chunk_bytes[0];
    EXPECT_THAT(AfterFlip(name, second + 1), ElementsAre(Is(At(name), second)));
    for (int64_t at = 1; at <= 64; ++at) {
      EXPECT_THAT(AfterFlip(name, extent.offset - at), ElementsAre(Is(At(name), extent.offset - 64))) << at;
    }
    std::filesystem::rename(At(name), At("elsewhere"));
    EXPECT_THAT(Pass(), ElementsAre(Is(At(name), 0)));
    std::filesystem::rename(At("elsewhere"), At(name));
  }
  EXPECT_THAT(Pass(), IsEmpty());
}

TEST_F(ScrubberTest, PayloadsThatNoRowNamesAreNot) {
  ASSERT_TRUE(journal_->SaveSnapshot(0, State(4), DigestOf(4)).ok());
  EXPECT_THAT(AfterFlip("segments/000001.segment", 70), IsEmpty());
}

TEST_F(ScrubberTest, EachSnapshotIsRead) {
  for (const std::string& name : Snapshots()) {
    const std::string path = "snapshots/" + name;
    const auto damages = AfterFlip(path, static_cast<int64_t>(std::filesystem::file_size(At(path)) / 2));
    ASSERT_THAT(damages, ElementsAre(Is(At(path), 0)));
    EXPECT_THAT(damages[0].Text(), AllOf(HasSubstr(path), HasSubstr("expected"), HasSubstr("next snapshot")));
  }
}

TEST_F(ScrubberTest, WhatIsPrunedWhileItReadsIsNotMissed) {
  for (int piece = 1; piece < 60; piece += 7) {
    const std::string copy = folder_ / absl::StrCat("copy", piece);
    std::filesystem::copy(options_.directory, copy, std::filesystem::copy_options::recursive);
    std::filesystem::remove(copy + "/lock");
    JournalOptions options = options_;
    options.directory = copy;
    options.keep = 1;
    options.max_update_log_bytes = 0;
    options.segment_bytes = 100;
    const auto journal = *Journal::Open(options);
    for (core::Version base = 4; base < 6; ++base) PlayRound(*journal, 0, base);
    int pieces = 0;
    std::vector<DiskDamage> found;
    Scrubber scrubber({.state_dir = copy,
                       .bytes_per_s = 1,
                       .durable = [&] { return (*StateLog::Read(copy))->end.sequence; },
                       .found = [&](const DiskDamage& damage) { found.push_back(damage); },
                       .wait_until =
                           [&](core::Clock::TimePoint) {
                             if (++pieces == piece) {
                               EXPECT_TRUE(journal->SaveSnapshot(0, State(6), DigestOf(6)).ok());
                             }
                             return true;
                           }});
    EXPECT_TRUE(scrubber.Pass().ok());
    EXPECT_THAT(found, IsEmpty()) << piece << ": " << (found.empty() ? "" : found[0].Text());
    if (pieces < piece) return;
  }
}

TEST_F(ScrubberTest, DamageIsToldOnceAndForgottenWhenItIsGone) {
  durable_ = (*StateLog::Read(options_.directory))->end.sequence;
  Scrubber scrubber = Make();
  Flip(At("high_water"), 9);
  for (int pass = 1; pass <= 2; ++pass) {
    EXPECT_TRUE(scrubber.Pass().ok());
    EXPECT_THAT(scrubber.figures().damages, SizeIs(1));
    EXPECT_THAT(found_, SizeIs(1));
    EXPECT_EQ(scrubber.figures().passes, pass);
  }
  Flip(At("high_water"), 9);
  EXPECT_TRUE(scrubber.Pass().ok());
  EXPECT_THAT(scrubber.figures().damages, IsEmpty());
  EXPECT_GT(scrubber.figures().bytes, 3 * 4096 * 4);
  EXPECT_GT(scrubber.figures().ended_unix_ms, 0);
}

TEST_F(ScrubberTest, EndsInTheMiddleOfAPass) {
  stop_after_ = 3;
  Scrubber scrubber = Make();
  scrubber.Run();
  EXPECT_EQ(scrubber.figures().passes, 0);
  EXPECT_EQ(pieces_, 3);
}

// Its rows are in the index still: they begin a new file, and the damaged one is not needed.
TEST_F(ScrubberTest, JournalThatHearsOfADamagedLogLeavesItBehind) {
  journal_.reset();
  Flip(At("log/000002.log"), 100);  // its first record, for which the start has the file before
  core::Mutex mutex;
  core::Condition changed;
  options_.scrub_bytes_per_s = 1 << 30;
  options_.damaged = [&](const DiskDamage& damage) {
    const core::MutexLock lock(mutex);
    told_.push_back(damage);
    changed.NotifyAll();
  };
  const auto journal = Open();
  {
    core::MutexLock lock(mutex);
    lock.Wait(changed, [&] { return !told_.empty(); });
  }
  journal->Flush();
  EXPECT_TRUE(journal->status().ok()) << journal->status();
  EXPECT_THAT(FilesIn(At("log")), ElementsAre("000003.log", "000004.log"));
  const auto events = *journal->History(0, 10);
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].kind, "damage");
  EXPECT_THAT(events[0].text, AllOf(HasSubstr("log/000002.log"), HasSubstr("a new file of the log was begun")));
}

TEST(ScrubPace, ReadsNoFasterThanItMayAndMakesNothingUp) {
  using std::chrono::milliseconds;
  ScrubPace pace(8'000'000);
  const core::Clock::TimePoint start = core::Clock::TimePoint() + std::chrono::hours(1);
  EXPECT_EQ(pace.After(800'000, start), start + milliseconds(100));
  EXPECT_EQ(pace.After(800'000, start + milliseconds(30)), start + milliseconds(200));
  EXPECT_EQ(pace.After(800'000, start + milliseconds(500)), start + milliseconds(600));
}

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
