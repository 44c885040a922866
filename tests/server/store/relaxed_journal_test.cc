#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "server/store/high_water.h"
#include "server/store/rows.h"
#include "server/store/segments.h"
#include "tests/server/store/journal_for_test.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;
using KeptRows = JournalTest;

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
    EXPECT_GT(journal->figures().syncs.count, 0u);
  }
  options_.relaxed = false;
  auto journal = Open();
  const StoredRun stored = Load(*journal);
  EXPECT_TRUE(journal->identity().repaired.empty());
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
    EXPECT_THAT(cut->identity().repaired, SizeIs(first ? 1 : 0));
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
  EXPECT_THAT(cut->identity().repaired, SizeIs(1));
}

TEST_F(RelaxedJournal, IsCutNowhereWhereItsRecordsAreThereThoughItWasKilled) {
  const auto journal = Open();
  Seed(*journal, 1);
  for (core::Version base = 0; base < 3; ++base) PlayRound(*journal, 0, base);
  const auto killed = OpenAt(Copy("killed"));
  EXPECT_THAT(Load(*killed).rounds.versions, ElementsAre(3));
  EXPECT_THAT(killed->identity().repaired, IsEmpty());
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

// Which rows and files of a journal stay, and which go.

TEST_F(KeptRows, CommandsStayWhenOtherEventsGo) {
  const auto journal = Open();
  journal->Commit({.events = {{.kind = "command", .text = "first"}}});
  journal->Commit({.events = std::vector<Event>(core::kMaxHistoryEvents + 10, Event{.kind = "round", .text = "text"})});
  journal->Commit({.events = {{.kind = "command", .text = "second"}}});
  journal->Flush();
  const auto commands = *journal->History(0, 10, "command");
  ASSERT_EQ(commands.size(), 2u);
  EXPECT_EQ(commands[0].text, "first");
  EXPECT_EQ(commands[1].text, "second");
  EXPECT_EQ(journal->History(commands[0].id, 1)->at(0).id, 13) << "the others' oldest have gone";
}

TEST_F(KeptRows, OldestCommandsGoBeyondTheirOwnNumber) {
  Open()->Flush();  // makes the tables
  const auto database = *Database::Open(options_.directory + "/journal.sqlite", Database::Mode::kReadWrite);
  ASSERT_TRUE(
      database
          ->Run("WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) INSERT INTO events "
                "(unix_ms, kind, site, fragment, text) SELECT 1, 'command', '', -1, 'pause' FROM n",
                {kMaxCommands})
          .ok());
  EventRows rows;
  for (int64_t more = 0; more <= 2; ++more) {
    int64_t count = 0, oldest = 0;
    ASSERT_TRUE(database
                    ->Query("SELECT count(*), min(id) FROM events WHERE kind = 'command'", {},
                            [&](const SqlRow& row) {
                              count = row.Integer(0);
                              oldest = row.Integer(1);
                              return absl::OkStatus();
                            })
                    .ok());
    EXPECT_EQ(count, kMaxCommands);
    EXPECT_EQ(oldest, 1 + more);
    ASSERT_TRUE(rows.Write(*database, {.kind = "command", .text = "stop"}, 2).ok());
  }
}

TEST_F(KeptRows, OldestEventsGoWhenTheirTextsComeToMoreThanTheHistoryMayHave) {
  constexpr int64_t kText = 1 << 16, kEvents = core::kMaxHistoryBytes / kText;
  const auto write = [](Journal& journal, int64_t events) {
    for (int64_t i = 0; i < events; ++i)
      journal.Commit({.events = {{.kind = "join", .text = std::string(kText, 'x')}}});
    journal.Flush();
    ASSERT_TRUE(journal.status().ok());
  };
  {
    const auto journal = Open();
    journal->Commit({.events = {{.kind = "command", .text = "first"}}});
    write(*journal, kEvents);
    EXPECT_EQ(journal->History(1, 1)->at(0).id, 2) << "as many as may be";
  }
  const auto journal = Open();
  write(*journal, 2);
  EXPECT_EQ(journal->History(1, 1)->at(0).id, 1002) << "a thousand have gone; they were counted anew after the restart";
  EXPECT_THAT(*journal->History(0, 10, "command"), SizeIs(1));
}

// eu in each round from `first` on, with norm base + 1, scaled by a half in each fourth.
void MergeRounds(Journal& journal, core::Version first, core::Version end, const core::SiteId& site = "eu") {
  for (core::Version base = first; base < end; ++base) {
    ContributionRecord contribution = Contribution(0, site, base);
    contribution.admitted.norm = 1.0 + static_cast<double>(base);
    RoundRecord round = Round(0, base, {site});
    if (base % 4 == 0) round.contributors[0].factor = 0.5F;
    journal.Commit({.admitted = {contribution}, .decided = {round}});
    journal.Commit({.merged = {Merged(0, base)}});
  }
}

core::RoundState StateOf(const std::vector<core::SiteId>& sites) {
  core::RoundState state;
  for (const core::SiteId& site : sites) {
    state.sites[site] = {
        .session = site, .state = core::SiteState::kTraining, .first_versions = {0}, .last_merged = {0}};
  }
  return state;
}

TEST_F(KeptRows, LengthsOfEachSiteComeBackWithTheirFactorsAndThoseThatAreTakenBackDoNot) {
  {
    const auto journal = Open();
    Seed(*journal, 1);
    journal->Commit({.state = StateOf({"eu"})});
    MergeRounds(*journal, 0, 20);
  }
  {
    const auto journal = Open();
    const std::deque<core::Merged> merged = Load(*journal).rounds.sites.at("eu").merged.at(0);
    ASSERT_THAT(merged, SizeIs(16));
    EXPECT_EQ(merged.front().version, 5);
    EXPECT_EQ(merged.front().length(), 2.5);
    EXPECT_EQ(merged.back().version, 20);
    EXPECT_EQ(merged.back().length(), 20);
    ContributionRecord open = Contribution(0, "us", 20);
    open.admitted.norm = 1e30;
    RoundRecord back = Round(0, 20, {});
    back.rolled_back_to = 18;
    journal->Commit({.admitted = {open}});
    journal->Commit({.decided = {back}});
  }
  const StoredRun stored = Load(*Open());
  EXPECT_EQ(stored.rounds.sites.at("eu").merged.at(0).back().version, 18);
  EXPECT_EQ(stored.rounds.versions, std::vector<core::Version>{21});
  EXPECT_THAT(stored.fragments[0].open, SizeIs(0));
  EXPECT_EQ(stored.fragments[0].to_replay.back().record.rolled_back_to, 18);
}

TEST_F(KeptRows, ASiteThatIsReleasedOrForgottenHasNoLengthsAnyMoreAndOthersKeepTheirs) {
  core::RoundState state = StateOf({"asia", "eu", "us"});
  {
    const auto journal = Open();
    Seed(*journal, 1);
    journal->Commit({.state = state});
    MergeRounds(*journal, 0, 2, "asia");
    MergeRounds(*journal, 2, 4, "eu");
    MergeRounds(*journal, 4, 6, "us");
  }
  {
    const auto journal = Open();  // which remembers nothing of the rows that were written
    ++state.sites["asia"].releases;
    state.sites.erase("us");
    journal->Commit({.state = state});
    state.sites["us"] = StateOf({"us"}).sites["us"];
    journal->Commit({.state = state});
  }
  const StoredRun stored = Load(*Open());
  EXPECT_THAT(stored.rounds.sites.at("asia").merged, SizeIs(0));
  EXPECT_THAT(stored.rounds.sites.at("eu").merged.at(0), SizeIs(2));
  EXPECT_THAT(stored.rounds.sites.at("us").merged, SizeIs(0));
}

TEST_F(KeptRows, AVersionThatIsKeptStaysAndOneThatIsNotIsRefusedWithThoseThatAre) {
  options_.keep = 2;
  const auto journal = Open();
  Seed(*journal, 1);
  const auto save = [&](core::Version version) {
    ASSERT_TRUE(journal->SaveSnapshot(0, State(version), DigestOf(version)).ok()) << version;
  };
  for (core::Version base = 0; base < 6; ++base) {
    journal->Commit({.admitted = {Contribution(0, "eu", base)}, .decided = {Round(0, base, {"eu"})}});
    journal->Commit({.merged = {Merged(0, base)}});
  }
  save(1);
  ASSERT_TRUE(journal->Keep(1, 1).ok());
  for (core::Version version : {2, 3, 4}) save(version);
  EXPECT_TRUE(journal->LoadSnapshot(0, 1).ok());
  EXPECT_EQ(journal->Keep(2, 1).message(), "version 2 is not kept; expected one of 1, 3, 4");
  save(5);
  EXPECT_TRUE(absl::IsNotFound(journal->LoadSnapshot(0, 1).status()));
}

TEST_F(KeptRows, TokensAndRevisionOfARoundComeBackWithItAndTokensWithTheSnapshotOfItsVersion) {
  RoundRecord round = Round(0, 0, {"eu"});
  round.run_tokens = 700;
  round.revision = 3;
  {
    const auto journal = Open();
    Seed(*journal, 1);
    journal->Commit({.admitted = {Contribution(0, "eu", 0)}, .decided = {round}});
  }
  {
    const auto journal = Open();
    const StoredRun stored = Load(*journal);
    EXPECT_THAT(stored.rounds.tokens, ElementsAre(700));
    EXPECT_EQ(stored.fragments[0].facts.run_tokens, 0);
    EXPECT_EQ(stored.fragments[0].to_replay.at(0).record, round);
    core::FragmentState state = State(1);
    state.run_tokens = 700;
    ASSERT_TRUE(journal->SaveSnapshot(0, state, DigestOf(1)).ok());
  }
  const StoredRun stored = Load(*Open());
  EXPECT_THAT(stored.rounds.tokens, ElementsAre(700));
  EXPECT_EQ(stored.fragments[0].facts.run_tokens, 700);
}

}  // namespace
}  // namespace causeway::server
