// The model and the config of a run in the journal: the model is found again before and after the seed, and so
// are the sites' statements about their data.
#include "tests/server/store/journal_for_test.h"

namespace causeway::server {
namespace {

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
