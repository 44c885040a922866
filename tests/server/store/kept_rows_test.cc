// Which rows and files of a journal stay, and which go.
#include "server/store/rows.h"
#include "tests/server/store/journal_for_test.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

using KeptRows = JournalTest;

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

TEST_F(KeptRows, NormsOfTheLastRoundsComeBackAndThoseThatAreTakenBackDoNot) {
  {
    const auto journal = Open();
    Seed(*journal, 1);
    for (core::Version base = 0; base < 20; ++base) {
      ContributionRecord contribution = Contribution(0, "eu", base);
      contribution.admitted.norm = 1.0 + static_cast<double>(base);
      journal->Commit({.admitted = {contribution}, .decided = {Round(0, base, {"eu"})}});
      journal->Commit({.merged = {Merged(0, base)}});
    }
    journal->Flush();
  }
  {
    const auto journal = Open();
    const core::NormsOfRounds norms = Load(*journal).rounds.norms.at(0);
    ASSERT_THAT(norms, SizeIs(16));
    EXPECT_EQ(norms.front(), (core::RoundNorms{5, {5.0}}));
    EXPECT_EQ(norms.back(), (core::RoundNorms{20, {20.0}}));
    ContributionRecord open = Contribution(0, "us", 20);
    open.admitted.norm = 1e30;
    RoundRecord back = Round(0, 20, {});
    back.rolled_back_to = 18;
    journal->Commit({.admitted = {open}});
    journal->Commit({.decided = {back}});
  }
  const StoredRun stored = Load(*Open());
  EXPECT_EQ(stored.rounds.norms.at(0).back(), (core::RoundNorms{18, {18.0}}));
  EXPECT_EQ(stored.rounds.versions, std::vector<core::Version>{21});
  EXPECT_THAT(stored.fragments[0].open, SizeIs(0));
  EXPECT_EQ(stored.fragments[0].to_replay.back().record.rolled_back_to, 18);
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
