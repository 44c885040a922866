#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "server/store/high_water.h"
#include "tests/server/store/journal_for_test.h"

namespace causeway::server {
namespace {

class RelaxedJournal : public JournalTest {};

// A process that is killed leaves behind what it has written.
TEST_F(RelaxedJournal, HasEverythingThatItToldWhenItsFilesAreReadBesideIt) {
  options_.relaxed = true;
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
  options_.relaxed = true;
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
  options_.relaxed = true;
  auto journal = Open();
  Seed(*journal, 1);
  for (core::Version base = 0; base < 20; ++base) PlayRound(*journal, 0, base);
  const auto written = StateLog::Read(options_.directory);
  ASSERT_TRUE(written.ok()) << written.status();
  const auto synced = [&] {
    const auto marks = HighWater::Read(options_.directory + "/high_water");
    return marks.ok() && marks->mark == (*written)->end;
  };
  for (int i = 0; i < 2000 && !synced(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_TRUE(synced());
}

}  // namespace
}  // namespace causeway::server
