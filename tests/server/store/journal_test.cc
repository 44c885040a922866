#include "server/store/journal.h"

#include <atomic>
#include <future>

#include "server/store/state_directory.h"
#include "tests/server/store/fault_hook.h"
#include "tests/server/store/journal_for_test.h"

namespace causeway::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(JournalTest, NewDirectoryHoldsNothingAndSaysSo) {
  const auto journal = Open();
  EXPECT_EQ(journal->identity().epoch, 1u);
  EXPECT_EQ(journal->identity().lineage.size(), 16u);
  EXPECT_THAT(journal->identity().former_lineages, IsEmpty());
  const StoredRun stored = Load(*journal);
  EXPECT_EQ(stored.run_config, "");
  EXPECT_EQ(stored.rounds, core::RoundState());
  EXPECT_THAT(stored.fragments, IsEmpty());
}

TEST_F(JournalTest, EpochRisesAndLineageStaysWithEachStart) {
  const std::string lineage = Open()->identity().lineage;
  const auto journal = Open();
  EXPECT_EQ(journal->identity().epoch, 2u);
  EXPECT_EQ(journal->identity().lineage, lineage);
}

TEST_F(JournalTest, NewLineageKeepsTheFormerOnes) {
  const std::string first = Open()->identity().lineage;
  options_.new_lineage = true;
  const std::string second = Open()->identity().lineage;
  EXPECT_NE(second, first);
  options_.new_lineage = false;
  const auto journal = Open();
  EXPECT_EQ(journal->identity().lineage, second);
  EXPECT_THAT(journal->identity().former_lineages, ElementsAre(first));
}

TEST_F(JournalTest, SecondCoordinatorOnADirectoryIsRefused) {
  auto first = Open();
  const absl::Status second = OpenStatus();
  EXPECT_TRUE(absl::IsFailedPrecondition(second));
  EXPECT_THAT(std::string(second.message()), HasSubstr("another coordinator runs on " + options_.directory));
  first.reset();
  EXPECT_EQ(Open()->identity().epoch, 2u);  // the refused one raised nothing
}

TEST_F(JournalTest, RestartFindsRunSitesFlagsAndLosses) {
  core::RoundState rules{.seeded = true, .started = true, .finished = true, .paused = true, .stopped = true};
  rules.sites["eu"] = {"s1", core::SiteState::kDraining, core::Ended::kLeft, "a \"reason\"", {3, 4}, {-1, 2}, 7};
  rules.sites["us"] = {"s2", core::SiteState::kGone, core::Ended::kExpired, "", {0, 0}, {0, 0}, 0, 3, true, true, 2};
  {
    const auto journal = Open();
    Seed(*journal, 2);
    journal->Commit({.state = rules, .eval_loss = EvalLoss{.start = 5.5, .latest = 0.1, .versions = {3, 4}}});
    rules.sites["us"].reason = "back";
    rules.paused = false;
    journal->Commit({.state = rules});
  }
  const auto journal = Open();
  const StoredRun stored = Load(*journal);
  EXPECT_EQ(stored.run_config, options_.run_config);
  EXPECT_EQ(stored.run, RunOf(2));
  EXPECT_EQ(stored.eval_loss.start, 5.5);
  EXPECT_EQ(stored.eval_loss.latest, 0.1);
  EXPECT_THAT(stored.eval_loss.versions, ElementsAre(3, 4));
  rules.versions = {0, 0};
  rules.contributions.resize(2);
  rules.tokens.resize(2);
  EXPECT_EQ(stored.rounds, rules);
}

TEST_F(JournalTest, DirectoryOfAnotherShardIsRefused) {
  options_.shard = {1, 2};
  Seed(*Open(), 1);
  options_.shard = {1, 3};
  const absl::Status status = Journal::Open(options_).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("shard 1 of 2"), HasSubstr("shard 1 of 3")));
  options_.shard = {1, 2};
  EXPECT_EQ(Open()->identity().epoch, 2u);
}

TEST_F(JournalTest, NothingIsReadOfTheFragmentsOfOtherShards) {
  options_.shard = {1, 2};
  {
    const auto journal = Open();
    ASSERT_TRUE(journal->SaveSnapshot(1, State(0), DigestOf(0)).ok());
    ASSERT_TRUE(journal->Begin(RunOf(3)).ok());
    journal->Commit({.admitted = {Contribution(1, "eu", 0)}, .decided = {Round(1, 0, {"eu"})}});
  }
  const StoredRun stored = Load(*Open());
  EXPECT_THAT(stored.rounds.versions, ElementsAre(0, 1, 0));
  EXPECT_THAT(stored.fragments, SizeIs(3));
}

TEST_F(JournalTest, CodecsOfARoundComeBackWithItAndWithTheSnapshotOfItsVersion) {
  const RoundCodecs first{core::CodecId::kRotatedSign, core::CodecId::kRotatedLm4, core::CodecId::kRotatedLm2};
  const RoundCodecs second{core::CodecId::kRotatedLm2, core::CodecId::kRotatedSign, core::CodecId::kRotatedLm4};
  {
    const auto journal = Open();
    Seed(*journal, 2);
    RoundRecord rounds[] = {Round(1, 0, {"eu"}), Round(1, 1, {"eu"})};
    rounds[0].codecs = first;
    rounds[1].codecs = second;
    journal->Commit({.admitted = {Contribution(1, "eu", 0)}, .decided = {rounds[0]}});
    journal->Commit({.admitted = {Contribution(1, "eu", 1)}, .decided = {rounds[1]}});
  }
  {
    const auto journal = Open();
    const StoredRun stored = Load(*journal);
    EXPECT_EQ(stored.fragments[0].facts.up, std::nullopt);
    EXPECT_EQ(stored.fragments[1].facts.up, std::nullopt);  // version 0 has no round
    ASSERT_THAT(stored.fragments[1].to_replay, SizeIs(2));
    EXPECT_EQ(stored.fragments[1].to_replay[0].record.codecs, first);
    EXPECT_EQ(stored.fragments[1].to_replay[1].record.codecs, second);
    ASSERT_TRUE(journal->SaveSnapshot(1, State(1), DigestOf(1)).ok());
  }
  const StoredRun stored = Load(*Open());
  EXPECT_EQ(stored.fragments[1].facts.up, core::CodecId::kRotatedLm2);
  ASSERT_THAT(stored.fragments[1].to_replay, SizeIs(1));
  EXPECT_EQ(stored.fragments[1].to_replay[0].record.codecs, second);
}

TEST_F(JournalTest, RunConfigStaysTheFormerOneUntilSomethingIsCommitted) {
  {
    const auto journal = Open();
    Seed(*journal, 1);
  }
  options_.run_config = "another";
  EXPECT_EQ(Load(*Open()).run_config, std::string("\x0a\x00\xff", 3));
  Open()->Commit({.events = {{.kind = "start"}}});
  EXPECT_EQ(Load(*Open()).run_config, "another");
}

TEST_F(JournalTest, RoundToReplayHasAllThatTheDecisionNamed) {
  {
    const auto journal = Open();
    Seed(*journal, 2);
    PlayRound(*journal, 1, 0);
    journal->Commit({.admitted = {Contribution(1, "eu", 1)}});  // too late for the next one
    journal->Commit({.admitted = {Contribution(1, "us", 1), Contribution(1, "asia", 0)}});
    RoundRecord round = Round(1, 1, {"asia", "us"});
    round.contributors = {{"asia", 0, 0.25f}, {"us", 1, 0.75f}};
    journal->Commit({.decided = {round}});
  }
  const auto journal = Open();
  const StoredRun stored = Load(*journal);
  EXPECT_THAT(stored.rounds.versions, ElementsAre(0, 2));
  const StoredFragment& fragment = stored.fragments[1];
  EXPECT_EQ(fragment.snapshot, 0);
  ASSERT_EQ(fragment.to_replay.size(), 2u);
  const StoredRound& first = fragment.to_replay[0];
  EXPECT_EQ(first.record, Round(1, 0, {"eu", "us"}));
  EXPECT_EQ(first.digest, DigestOf(1));
  EXPECT_EQ(Payload(*journal, first.update), Written(UpdateOf(0)));
  const StoredRound& second = fragment.to_replay[1];
  EXPECT_EQ(second.digest, std::nullopt);
  EXPECT_EQ(second.update.segment, 0);
  ASSERT_EQ(second.contributions.size(), 2u);
  EXPECT_EQ(second.contributions[0].site, "asia");
  EXPECT_EQ(second.contributions[0].admitted, (core::Admitted{.base = 0, .tokens = 640, .steps = 20}));
  EXPECT_EQ(second.contributions[0].weight, 0.25f);
  EXPECT_EQ(Payload(*journal, second.contributions[1].extent), Written(PayloadOf("us", 1)));
  EXPECT_THAT(second.record.contributors,
              ElementsAre(RoundRecord::Contributor{"asia", 0, 0.25f}, RoundRecord::Contributor{"us", 1, 0.75f}));
  ASSERT_EQ(fragment.open.size(), 1u);
  EXPECT_EQ(Payload(*journal, fragment.open[0].extent), Written(PayloadOf("eu", 1)));
  EXPECT_EQ(stored.rounds.contributions[1].at("eu").tokens, 641);
  EXPECT_THAT(stored.rounds.contributions[0], IsEmpty());
}

TEST_F(JournalTest, EntriesBecomeDurableInTheirOrderAndManyInOneTransaction) {
  const auto journal = Open();
  Seed(*journal, 1);
  std::promise<void> first_is_written, all_are_committed;
  std::atomic<int> transactions = 0;
  std::vector<int> order;
  const FaultHook hook([&](const std::string& point) {
    if (point != "after_row" || ++transactions != 1) return;
    first_is_written.set_value();
    all_are_committed.get_future().wait();
  });
  const auto commit = [&](int i) {
    journal->Commit(
        {.admitted = {Contribution(0, absl::StrCat("site", i), 0)}, .durable = [&order, i] { order.push_back(i); }});
  };
  commit(0);
  first_is_written.get_future().wait();
  for (int i = 1; i < 50; ++i) commit(i);
  all_are_committed.set_value();
  journal->Flush();
  EXPECT_EQ(transactions, 2);
  ASSERT_EQ(order.size(), 50u);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST_F(JournalTest, EntryCommittedByACallbackIsDurableWhenTheJournalGoes) {
  {
    const auto journal = Open();
    Journal* again = journal.get();
    journal->Commit({.durable = [again] { again->Commit({.events = {{.kind = "second"}}}); }});
  }
  const auto events = Open()->History(0, 10);
  ASSERT_TRUE(events.ok());
  ASSERT_EQ(events->size(), 1u);
  EXPECT_EQ((*events)[0].kind, "second");
}

TEST_F(JournalTest, UpdateCanBeReadWhenItIsToldToBeStored) {
  const auto journal = Open();
  Seed(*journal, 1);
  journal->Commit({.admitted = {Contribution(0, "eu", 0)}, .decided = {Round(0, 0, {"eu"})}});
  MergedRecord merged = Merged(0, 0);
  std::vector<std::string> told;
  merged.stored = [&](const Extent& extent) { told.push_back(Payload(*journal, extent)); };
  journal->Commit({.merged = {merged}, .durable = [&] { told.push_back("durable"); }});
  journal->Flush();
  EXPECT_THAT(told, ElementsAre(Written(UpdateOf(0)), "durable"));
}

TEST_F(JournalTest, PayloadIsLetGoWhenItIsWritten) {
  const auto journal = Open();
  Seed(*journal, 1);
  ContributionRecord contribution = Contribution(0, "eu", 0);
  const std::weak_ptr<const std::string> chunk = contribution.chunks[0];
  bool gone = false;
  JournalEntry entry{.durable = [&] { gone = chunk.expired(); }};
  entry.admitted.push_back(std::move(contribution));
  journal->Commit(std::move(entry));
  journal->Flush();
  EXPECT_TRUE(gone);
}

TEST_F(JournalTest, ContributionAdmittedTwiceEndsTheJournal) {
  const auto journal = Open();
  Seed(*journal, 1);
  bool durable = false;
  journal->Commit({.admitted = {Contribution(0, "eu", 0)}});
  journal->Flush();
  journal->Commit({.admitted = {Contribution(0, "eu", 0)}, .durable = [&] { durable = true; }});
  journal->Commit({.durable = [&] { durable = true; }});
  journal->Flush();
  EXPECT_FALSE(durable);
  ASSERT_EQ(failures_.size(), 1u);
  EXPECT_EQ(journal->status(), failures_[0]);
  EXPECT_THAT(std::string(failures_[0].message()), HasSubstr("contribution of eu to fragment 0 from base version 0"));
  EXPECT_FALSE(journal->SaveSnapshot(0, State(1), 1).ok());
}

TEST_F(JournalTest, RoundOfAContributionThatWasNotAdmittedEndsTheJournal) {
  const auto journal = Open();
  Seed(*journal, 1);
  journal->Commit({.decided = {Round(0, 0, {"eu"})}});
  journal->Flush();
  EXPECT_THAT(std::string(journal->status().message()),
              HasSubstr("version 1 of fragment 0 merges the contribution of eu from base version 0"));
}

TEST_F(JournalTest, ContributionMergedTwiceEndsTheJournal) {
  const auto journal = Open();
  Seed(*journal, 1);
  PlayRound(*journal, 0, 0);
  RoundRecord again = Round(0, 1, {"eu"});
  again.contributors[0].base = 0;
  journal->Commit({.decided = {again}});
  journal->Flush();
  EXPECT_THAT(std::string(journal->status().message()),
              HasSubstr("version 2 of fragment 0 merges the contribution of eu from base version 0"));
}

TEST_F(JournalTest, RunThatBeginsTwiceEndsTheJournal) {
  const auto journal = Open();
  Seed(*journal, 1);
  EXPECT_FALSE(journal->Begin(RunOf(1)).ok());
  EXPECT_EQ(failures_.size(), 1u);
}

TEST_F(JournalTest, FailureIsToldWhenTheStatusAlreadySaysIt) {
  absl::Status seen;
  std::unique_ptr<Journal> journal;
  options_.failed = [&](const absl::Status&) { seen = journal->status(); };
  journal = Open();
  Seed(*journal, 1);
  journal->Commit({.decided = {Round(0, 0, {"eu"})}});
  journal->Flush();
  EXPECT_FALSE(seen.ok());
}

TEST_F(JournalTest, ReplayThatGivesTheSameDigestStoresNothingTwice) {
  Extent before;
  {
    const auto journal = Open();
    Seed(*journal, 1);
    PlayRound(*journal, 0, 0);
    before = Load(*journal).fragments[0].to_replay[0].update;
  }
  const auto journal = Open();
  Extent after;
  MergedRecord merged = Merged(0, 0);
  merged.stored = [&](const Extent& extent) { after = extent; };
  journal->Commit({.merged = {merged}});
  journal->Flush();
  EXPECT_TRUE(journal->status().ok()) << journal->status();
  EXPECT_EQ(after, before);
}

TEST_F(JournalTest, ReplayThatGivesAnotherDigestIsDataLossWithBoth) {
  {
    const auto journal = Open();
    Seed(*journal, 1);
    PlayRound(*journal, 0, 0);
  }
  const auto journal = Open();
  MergedRecord merged = Merged(0, 0);
  merged.digest = 0xabc;
  journal->Commit({.merged = {merged}});
  journal->Flush();
  EXPECT_TRUE(absl::IsDataLoss(journal->status()));
  const std::string message(journal->status().message());
  EXPECT_THAT(message, HasSubstr("version 1 of fragment 0 has digest 0000000000000abc"));
  EXPECT_THAT(message, HasSubstr("fedcba9876543201"));
}

TEST_F(JournalTest, HistoryComesInPagesAndTheOldestGo) {
  const auto journal = Open();
  std::vector<Event> many(core::kMaxHistoryEvents + 10, Event{.kind = "round", .fragment = 2, .text = "text"});
  many.back() = {.kind = "join", .site = "eu", .text = "a 'quoted' name"};
  journal->Commit({.events = std::move(many)});
  journal->Flush();
  const auto first = *journal->History(0, 3);
  ASSERT_EQ(first.size(), 3u);
  EXPECT_EQ(first[0].id, 11);
  EXPECT_EQ(first[0].fragment, 2);
  EXPECT_GT(first[0].unix_ms, 1'600'000'000'000);
  EXPECT_EQ(journal->History(first.back().id, 1)->at(0).id, first.back().id + 1);
  const auto last = *journal->History(core::kMaxHistoryEvents + 9, 100);
  ASSERT_EQ(last.size(), 1u);
  EXPECT_EQ(last[0].site, "eu");
  EXPECT_EQ(last[0].fragment, -1);
  EXPECT_EQ(last[0].text, "a 'quoted' name");
}

TEST_F(JournalTest, PageOfHistoryEndsWithTheEventThatFillsIt) {
  const auto journal = Open();
  const std::string text(core::kMaxHistoryAnswerBytes / 4 + 1, 'x');
  journal->Commit({.events = std::vector<Event>(10, Event{.kind = "join", .text = text})});
  journal->Flush();
  const auto page = *journal->History(0, core::kMaxHistoryAnswer);
  ASSERT_EQ(page.size(), 4u);
  EXPECT_EQ(journal->History(page.back().id, core::kMaxHistoryAnswer)->at(0).id, page.back().id + 1);
}

TEST_F(JournalTest, AddressesAreWrittenAsJson) {
  const auto journal = Open();
  ASSERT_TRUE(WriteAddresses(options_.directory, "127.0.0.1:1", "[::1]:2").ok());
  EXPECT_EQ(ReadAll(options_.directory + "/addresses.json"), "{\"grpc\":\"127.0.0.1:1\",\"http\":\"[::1]:2\"}\n");
}

TEST(Journal, RunThatIsNotAcceptedChangesNothing) {
  const TemporaryFolder folder;
  {
    auto first = *Journal::Open({.directory = folder.path(), .run_config = "first", .failed = nullptr});
    first->Commit({.events = {{.kind = "start", .site = "", .text = ""}}});
  }
  const auto refuse = [](const std::string& stored, bool) -> absl::StatusOr<std::string> {
    return absl::FailedPreconditionError("not " + stored);
  };
  const auto refused = Journal::Open(
      {.directory = folder.path(), .run_config = "second", .new_lineage = true, .accept = refuse, .failed = nullptr});
  EXPECT_EQ(refused.status().message(), "not first");
  const auto again = *Journal::Open({.directory = folder.path(), .run_config = "first", .failed = nullptr});
  EXPECT_EQ(again->identity().epoch, 2u);
  EXPECT_TRUE(again->identity().former_lineages.empty());
}

// The model and the config of a run in the journal: the model is found again before and after the seed, and so
// are the sites' statements about their data.

class ModelRecordTest : public JournalTest {
 protected:
  ModelRecord StoredModel() { return Load(*Open()).model; }
};

TEST_F(ModelRecordTest, DeclaredModelIsFoundAgainAndTheNewestCounts) {
  EXPECT_EQ(StoredModel().generation, 0u);
  Open()->Commit({.model = ModelRecord{.generation = 1, .run = RunOf(2), .seeder = "eu"}});
  EXPECT_EQ(StoredModel(), (ModelRecord{1, RunOf(2), "eu"}));
  Open()->Commit({.model = ModelRecord{.generation = 2, .run = RunOf(3), .seeder = ""}});
  EXPECT_EQ(StoredModel(), (ModelRecord{2, RunOf(3), ""}));
  const StoredRun stored = Load(*Open());
  EXPECT_FALSE(stored.rounds.seeded);
  EXPECT_TRUE(stored.run.manifest.empty());
}

TEST_F(ModelRecordTest, TypesAliasesAndFrozenTensorsAreFoundAgain) {
  RunRecord run = RunOf(2);
  run.manifest[0].dtype = core::DType::kFloat16;
  run.manifest.push_back({.name = "base", .shape = {8}, .frozen = true, .values_digest = ~uint64_t{0}});
  run.manifest.push_back({.name = "tied", .shape = {64, 64}, .alias_of = "w1"});
  Open()->Commit({.model = ModelRecord{.generation = 1, .run = run, .seeder = "eu"}});
  EXPECT_EQ(StoredModel(), (ModelRecord{1, run, "eu"}));
}

TEST_F(ModelRecordTest, TensorsOfBeforeAreFloat32AndSynced) {
  Open()->Commit({.model = ModelRecord{.generation = 1, .run = RunOf(1), .seeder = "eu"}});
  Sql(R"(UPDATE meta SET value = '[{"name":"w0","shape":[64,64],"kind":1,"layer":0}]' WHERE key = 'model_manifest')");
  EXPECT_EQ(StoredModel(), (ModelRecord{1, RunOf(1), "eu"}));
}

TEST_F(ModelRecordTest, SeededModelKeepsItsNumber) {
  const auto journal = Open();
  journal->Commit({.model = ModelRecord{.generation = 2, .run = RunOf(2), .seeder = "eu"}});
  Seed(*journal, 2);
  EXPECT_EQ(Load(*journal).model, (ModelRecord{2, RunOf(2), "eu"}));
}

TEST_F(ModelRecordTest, HigherGenerationForgetsTheSeedOfTheOneBeforeAndTakesAnother) {
  const auto journal = Open();
  Seed(*journal, 2);
  ASSERT_TRUE(Load(*journal).rounds.seeded);
  const ModelRecord next{.generation = 2, .run = RunOf(3), .seeder = ""};
  journal->Commit({.model = next});
  journal->Flush();
  const StoredRun stored = Load(*journal);
  EXPECT_FALSE(stored.rounds.seeded);
  EXPECT_TRUE(stored.run.manifest.empty());
  EXPECT_EQ(stored.model, next);
  Seed(*journal, 3);
  journal->Commit({.model = next});
  journal->Flush();
  EXPECT_TRUE(Load(*journal).rounds.seeded) << "the same one again";
}

TEST_F(ModelRecordTest, NumberThatIsNoneIsDamage) {
  Open()->Commit({.model = ModelRecord{.generation = 1, .run = RunOf(1), .seeder = ""}});
  Sql("UPDATE meta SET value = 'x' WHERE key = 'model_generation'");
  EXPECT_TRUE(absl::IsDataLoss(Open()->Load().status()));
}

TEST(Journal, ConfigThatAcceptGivesIsStored) {
  const TemporaryFolder folder;
  for (const char* given : {"first", "second", "third"}) {
    const auto accept = [&](const std::string& stored, bool) -> absl::StatusOr<std::string> {
      return stored + ", " + given;
    };
    auto journal =
        *Journal::Open({.directory = folder.path(), .run_config = given, .accept = accept, .failed = nullptr});
    journal->Commit({.events = {{.kind = "start", .site = "", .text = ""}}});
  }
  const auto journal = *Journal::Open({.directory = folder.path(), .run_config = "", .failed = nullptr});
  EXPECT_EQ((*journal->Load()).run_config, "first, second, third");
}

TEST_F(ModelRecordTest, DataAndLossesOfSitesAreFoundAgainAndADirectoryOfBeforeHasNone) {
  const core::DataOfSites data = {
      {"eu", {.training = core::DataFingerprint{7, 0xfedcba9876543210}, .held_out = core::DataFingerprint{1, 2}}},
      {"us", {.training = core::DataFingerprint{8, 0}, .held_out = std::nullopt}}};
  EXPECT_EQ(Load(*Open()).data, core::DataOfSites());
  EvalLoss losses;
  losses.by_site["eu"] = {.loss = 0.1, .versions = {3, 4}};
  JournalEntry entry;
  entry.eval_loss = losses;
  entry.data = data;
  Open()->Commit(std::move(entry));
  const StoredRun stored = Load(*Open());
  EXPECT_EQ(stored.data, data);
  EXPECT_EQ(stored.eval_loss.by_site, losses.by_site);
  Sql("UPDATE meta SET value = '{\"eu\": {\"training\": 3}}' WHERE key = 'data_of_sites'");
  EXPECT_TRUE(absl::IsDataLoss(Open()->Load().status()));
}

}  // namespace
}  // namespace causeway::server
