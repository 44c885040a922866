// The model of a run in the journal: it is found again before and after the seed, and by programs of before not at all.
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

TEST_F(ModelRecordTest, SeededModelKeepsItsNumber) {
  const auto journal = Open();
  journal->Commit({.model = ModelRecord{.generation = 2, .run = RunOf(2), .seeder = "eu"}});
  Seed(*journal, 2);
  EXPECT_EQ(Load(*journal).model, (ModelRecord{2, RunOf(2), "eu"}));
}

TEST_F(ModelRecordTest, SeededDirectoryOfBeforeIsGenerationOne) {
  const auto journal = Open();
  Seed(*journal, 2);
  EXPECT_EQ(Load(*journal).model, (ModelRecord{1, RunOf(2), ""}));
}

TEST_F(ModelRecordTest, ModelThatAProgramOfBeforeHasSeededInTheMeantimeIsTheNextOne) {
  const auto journal = Open();
  journal->Commit({.model = ModelRecord{.generation = 1, .run = RunOf(3), .seeder = "eu"}});
  Seed(*journal, 2);
  EXPECT_EQ(Load(*journal).model, (ModelRecord{2, RunOf(2), ""}));
}

TEST_F(ModelRecordTest, NumberThatIsNoneIsDamage) {
  Open()->Commit({.model = ModelRecord{.generation = 1, .run = RunOf(1), .seeder = ""}});
  Sql("UPDATE meta SET value = 'x' WHERE key = 'model_generation'");
  EXPECT_TRUE(absl::IsDataLoss(Open()->Load().status()));
}

}  // namespace
}  // namespace causeway::server
