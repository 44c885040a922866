#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "server/store/mirror_directory.h"
#include "server/store/mirror_feed.h"
#include "tests/server/store/journal_for_test.h"

namespace causeway::server {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kLeader[] = "hub:7077", kStandby[] = "spare:7077";

void Write(const std::string& path, const std::string& bytes) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

class Mirror : public JournalTest {
 protected:
  const std::string copy_ = folder_ / "copy";

  // A stream from the journal to the copy, as replicate_reactor.cc and standby.cc have it.
  struct Stream {
    std::shared_ptr<MirrorFeed> feed;
    std::unique_ptr<MirrorDirectory> directory;
    int64_t bytes = 0;  // that it took
  };

  Stream Follow(Journal& journal) {
    Stream stream{std::make_shared<MirrorFeed>(options_.directory)};
    auto directory = MirrorDirectory::Open(copy_, kLeader);
    EXPECT_TRUE(directory.ok()) << directory.status();
    stream.directory = *std::move(directory);
    const auto files = stream.directory->Files();
    EXPECT_TRUE(files.ok()) << files.status();
    auto held = Agreeing(options_.directory, *files);
    if (!held.ok()) {
      EXPECT_TRUE(absl::IsFailedPrecondition(held.status())) << held.status();
      EXPECT_TRUE(stream.directory->SetAside().ok());
      held = std::map<std::string, int64_t>();
    }
    stream.feed->Serve(kStandby, *held);
    const auto place = journal.Mirror(stream.feed);
    EXPECT_TRUE(place.ok()) << place.status();
    EXPECT_TRUE(stream.directory->Begin(*place, kStandby).ok());
    return stream;
  }

  // Takes pieces up to the next mark.
  static void TakeToMark(Stream& stream) {
    while (true) {
      const auto piece = stream.feed->Next();
      ASSERT_TRUE(piece.ok()) << piece.status();
      stream.bytes += std::ssize(piece->bytes);
      if (piece->name.empty() && piece->mark.sequence == 0) continue;  // a beat
      const absl::Status taken = stream.directory->Take(*piece);
      ASSERT_TRUE(taken.ok()) << taken;
      if (piece->mark.sequence == 0) continue;
      stream.feed->Acknowledged(piece->mark.sequence);
      return;
    }
  }

  // Takes all that the journal has written.
  static void TakeAll(Stream& stream) {
    while (stream.feed->figures().records_behind > 0) TakeToMark(stream);
    EXPECT_EQ(stream.feed->figures().bytes_behind, 0);
  }

  static void End(Journal& journal, Stream& stream) {
    journal.mirrors().End(stream.feed);
    stream.directory.reset();
  }

  // A start of the copy, if its standby is killed now and promoted.
  std::unique_ptr<Journal> StartOfCopy(const std::string& name) {
    fs::copy(copy_, folder_ / name, fs::copy_options::recursive);
    auto directory = MirrorDirectory::Open(folder_ / name, kLeader);
    EXPECT_TRUE(directory.ok()) << directory.status();
    const absl::Status promoted = (*directory)->Promote(/*handed_over=*/false);
    EXPECT_TRUE(promoted.ok()) << promoted;
    directory->reset();
    return OpenAt(folder_ / name);
  }
};

TEST_F(Mirror, IsAStateThatAStartTakesOnceItIsPromoted) {
  auto journal = Open();
  Seed(*journal, 2);
  PlayRound(*journal, 0, 0);
  Stream stream = Follow(*journal);
  PlayRound(*journal, 1, 0);
  PlayRound(*journal, 0, 1);
  TakeAll(stream);
  End(*journal, stream);
  const absl::Status refused = Journal::Open({.directory = copy_}).status();
  EXPECT_THAT(std::string(refused.message()), HasSubstr("is a copy that a standby of hub:7077 keeps"));
  const auto led = StartOfCopy("led");
  ASSERT_NE(led, nullptr);
  EXPECT_EQ(led->identity().lineage, journal->identity().lineage);
  EXPECT_EQ(led->identity().secret, journal->identity().secret);
  EXPECT_EQ(led->identity().epoch, (uint64_t{1} << 32) + (1 << 24));
  EXPECT_TRUE(led->identity().may_have_lost_its_end);
  const StoredRun expected = Load(*journal), stored = Load(*led);
  ASSERT_EQ(stored.fragments.size(), 2u);
  for (size_t p = 0; p < 2; ++p) {
    ASSERT_EQ(stored.fragments[p].to_replay.size(), expected.fragments[p].to_replay.size());
    for (size_t i = 0; i < stored.fragments[p].to_replay.size(); ++i) {
      const StoredRound& round = stored.fragments[p].to_replay[i];
      EXPECT_EQ(round.record, expected.fragments[p].to_replay[i].record);
      EXPECT_EQ(Payload(*led, round.update), Written(UpdateOf(round.record.base)));
    }
  }
  EXPECT_TRUE(led->LoadSnapshot(1, 0).ok());
  EXPECT_FALSE(fs::exists(folder_ / "led" + "/standby.json"));
}

TEST_F(Mirror, IsAStateAtEachOfItsMarksWhateverIsPrunedAndRenewedMeanwhile) {
  options_.keep = 1;
  options_.max_update_log_bytes = 0;
  options_.segment_bytes = 200;
  auto journal = Open();
  Seed(*journal, 1);
  Stream stream = Follow(*journal);
  core::Version seen = 0;
  for (core::Version base = 0; base < 8; ++base) {
    PlayRound(*journal, 0, base);
    const bool saves = base % 3 == 2;
    ASSERT_TRUE(!saves || journal->SaveSnapshot(0, State(base + 1), DigestOf(base + 1)).ok());
    TakeToMark(stream);
    const auto led = StartOfCopy(absl::StrCat("led-", base));
    ASSERT_NE(led, nullptr);
    const StoredRun stored = Load(*led);
    ASSERT_EQ(stored.fragments.size(), 1u);
    const core::Version version = stored.rounds.versions.front();
    EXPECT_GE(version, seen);
    seen = version;
    EXPECT_TRUE(led->LoadSnapshot(0, stored.fragments[0].snapshot).ok());
    for (const StoredRound& round : stored.fragments[0].to_replay) {
      EXPECT_EQ(Payload(*led, round.contributions[0].extent), Written(PayloadOf("eu", round.record.base)));
    }
  }
  TakeAll(stream);
  EXPECT_EQ(FilesIn(copy_ + "/segments"), Segments());
  EXPECT_EQ(FilesIn(copy_ + "/snapshots"), Snapshots());
}

TEST_F(Mirror, GoesOnWhereItsStreamBrokeAndOverAStartOfItsLeader) {
  auto journal = Open();
  Seed(*journal, 1);
  Stream first = Follow(*journal);
  TakeAll(first);
  End(*journal, first);
  PlayRound(*journal, 0, 0);
  Stream second = Follow(*journal);
  TakeAll(second);
  EXPECT_LT(second.bytes, 20'000) << "the snapshot was sent again";
  End(*journal, second);
  journal.reset();
  journal = Open();
  PlayRound(*journal, 0, 1);
  Stream third = Follow(*journal);
  TakeAll(third);
  EXPECT_LT(third.bytes, 40'000);
  EXPECT_FALSE(fs::exists(copy_ + "/set_aside"));
  End(*journal, third);
  EXPECT_EQ(Load(*StartOfCopy("led")).rounds.versions, std::vector<core::Version>{2});
}

TEST_F(Mirror, OfAnotherHistoryIsSetAsideWhole) {
  const std::string other = options_.directory;
  {
    auto journal = Open();
    Seed(*journal, 1);
    Stream stream = Follow(*journal);
    TakeAll(stream);
    End(*journal, stream);
  }
  fs::remove_all(other);
  auto journal = Open();
  Seed(*journal, 1);
  PlayRound(*journal, 0, 0);
  Stream stream = Follow(*journal);
  EXPECT_THAT(FilesIn(copy_ + "/set_aside"), ElementsAre("000001"));
  EXPECT_TRUE(fs::exists(copy_ + "/set_aside/000001/high_water"));
  EXPECT_THAT(std::string(stream.directory->Promote(false).message()), HasSubstr("is not whole"));
  TakeAll(stream);
  End(*journal, stream);
  EXPECT_EQ(Load(*StartOfCopy("led")).rounds.versions, std::vector<core::Version>{1});
}

TEST_F(Mirror, OfAnotherPlaceLeadsInAnotherEpoch) {
  EXPECT_EQ(EpochOfPromotion(7, 1), (uint64_t{1} << 32) + (1 << 24));
  EXPECT_EQ(EpochOfPromotion(7, 2), (uint64_t{1} << 32) + (2 << 24));
  EXPECT_EQ(EpochOfPromotion(EpochOfPromotion(7, 2) + 5, 1), (uint64_t{2} << 32) + (1 << 24));
  const auto place_of = [this](Journal& journal, const std::string& address) {
    const auto feed = std::make_shared<MirrorFeed>(options_.directory);
    feed->Serve(address, {});
    return *journal.Mirror(feed);
  };
  auto journal = Open();
  EXPECT_EQ(place_of(*journal, "a:1"), 1);
  EXPECT_EQ(place_of(*journal, "b:1"), 2);
  EXPECT_EQ(place_of(*journal, "a:1"), 1);
  journal.reset();
  EXPECT_EQ(place_of(*Open(), "c:1"), 3);
}

class Feed : public testing::Test {
 protected:
  // The next piece, as text.
  std::string Next() {
    const auto piece = feed_.Next();
    EXPECT_TRUE(piece.ok()) << piece.status();
    if (piece->mark.sequence > 0) return absl::StrCat("mark ", piece->mark.sequence);
    if (piece->removed) return absl::StrCat("removed ", piece->name);
    return piece->name.empty() ? "beat" : absl::StrCat(piece->name, " ", piece->offset, " ", piece->bytes);
  }
  static LogMark MarkOf(uint64_t sequence) { return {.sequence = sequence}; }

  const TemporaryFolder folder_;
  MirrorFeed feed_{folder_.path()};
};

TEST_F(Feed, GivesNoMarkBeforeTheStandbyHasHeardOfAFileThatVanished) {
  Write(folder_ / "log/000001.log", "recordsrecords");
  feed_.Grown("segments/000001.segment", 5);
  feed_.Grown("log/000001.log", 7, MarkOf(1));
  EXPECT_EQ(Next(), "log/000001.log 0 records");
  EXPECT_EQ(Next(), "beat");
  EXPECT_EQ(feed_.figures().records_behind, 1u);
  feed_.Swept({"log/000001.log"});
  feed_.Grown("log/000001.log", 14, MarkOf(2));
  EXPECT_EQ(Next(), "removed segments/000001.segment");
  EXPECT_EQ(Next(), "mark 1");
  EXPECT_EQ(Next(), "log/000001.log 7 records");
  EXPECT_EQ(Next(), "mark 2");
  feed_.Acknowledged(2);
  EXPECT_EQ(feed_.figures().records_behind, 0u);
  EXPECT_EQ(feed_.figures().seconds_behind, 0);
}

TEST_F(Feed, MakesOnePlaceOfMany) {
  const int places = static_cast<int>(MirrorFeed::kMostPlaces);
  Write(folder_ / "log/000001.log", std::string(places, 'r'));
  Write(folder_ / "segments/000001.segment", std::string(places, 'p'));
  Write(folder_ / "segments/000002.segment", "gone");
  feed_.Grown("segments/000002.segment", 4);
  for (int i = 1; i <= places; ++i) {
    feed_.Grown("segments/000001.segment", i);
    feed_.Grown("log/000001.log", i, MarkOf(i));
    if (i == 5) feed_.Swept({"log/000001.log", "segments/000001.segment"});
  }
  std::string payload = Next(), log;
  EXPECT_THAT(payload, HasSubstr("segments/000001.segment 0 pppp"));
  int64_t records = 0;
  for (std::string piece = Next(); !piece.starts_with("mark"); piece = Next()) {
    EXPECT_THAT(piece, Not(HasSubstr("gone")));
    if (piece.starts_with("log/")) records += std::ranges::count(piece, 'r');
  }
  EXPECT_GT(records, 1'000);
  EXPECT_EQ(feed_.figures().bytes_behind + records + std::ranges::count(payload, 'p'), 2 * places);
}

TEST(MirrorDirectory, TakesNoFileThatAStateHasNot) {
  const TemporaryFolder folder;
  const auto directory = MirrorDirectory::Open(folder / "copy", kLeader);
  ASSERT_TRUE(directory.ok()) << directory.status();
  for (const char* name : {"high_water", "../x", "log/../high_water", "log/a.log", "log/.log", "segments/1.log",
                           "snapshots/../../x", "snapshots/fragment-1-000001.safetensors/x", "/etc/passwd", "lock"}) {
    const absl::Status status = (*directory)->Take({.name = name, .bytes = "x"});
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << name << ": " << status;
  }
  EXPECT_TRUE((*directory)->Take({.name = "log/000001.log", .bytes = "abc"}).ok());
  const absl::Status apart = (*directory)->Take({.name = "log/000001.log", .offset = 4, .bytes = "x"});
  EXPECT_THAT(std::string(apart.message()), HasSubstr("expected bytes from 3 on, got those from 4 on"));
}

TEST_F(Mirror, AFormerLeaderThatIsPromotedMayLackAnEndAndTakesATermAfterThatOfItsStandby) {
  {
    const auto journal = Open();
    Seed(*journal, 1);
    journal->Commit({.handed_to = kStandby});
    journal->Flush();
  }
  {
    const auto directory = MirrorDirectory::Open(options_.directory, kStandby);
    ASSERT_TRUE(directory.ok()) << directory.status();
    ASSERT_TRUE((*directory)->Promote(/*handed_over=*/false).ok());
  }
  const auto journal = Open();
  ASSERT_NE(journal, nullptr);
  EXPECT_TRUE(journal->identity().may_have_lost_its_end);
  EXPECT_EQ(TermOf(journal->identity().epoch), 2u);
}

}  // namespace
}  // namespace causeway::server
