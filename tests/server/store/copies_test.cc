#include "server/store/copies.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "absl/strings/match.h"
#include "tests/server/store/journal_for_test.h"

namespace causeway::server {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::string Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class CopiesTest : public JournalTest {
 protected:
  CopiesTest() { options_.copy = {.directory = folder_ / "copies", .run_id = "demo"}; }
  const std::string& copies() const { return options_.copy.directory; }

  std::unique_ptr<Journal> Open() {
    auto journal = JournalTest::Open();
    if (journal != nullptr) journal->BeginCopies();
    return journal;
  }
  // A run with a round of each fragment after its snapshot, and an open contribution; its last set has all of that.
  void Play() {
    const auto journal = Open();
    Seed(*journal, 2);
    for (int p = 0; p < 2; ++p) {
      PlayRound(*journal, p, 0);
      ASSERT_TRUE(journal->SaveSnapshot(p, State(1), DigestOf(1)).ok());
      PlayRound(*journal, p, 1);
    }
    journal->Commit({.admitted = {Contribution(1, "eu", 2)}});
    journal->Flush();
  }
  CopyFigures Await(const Journal& journal, const std::function<bool(const CopyFigures&)>& seen) const {
    CopyFigures figures;
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!seen(figures = journal.figures().copies)) {
      if (std::chrono::steady_clock::now() > until) {
        ADD_FAILURE() << "set " << figures.set << ", hook ended " << figures.hook_ended << ", " << figures.failed;
        return figures;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return figures;
  }
  std::vector<std::string> Sets() const { return FilesIn(copies() + "/sets"); }
  JournalOptions Restoring(const std::string& from) const {
    JournalOptions options = options_;
    options.directory = folder_ / "restored";
    options.copy = {.run_id = "demo", .restore_from = from};
    options.progress = [this](const std::string& text) { said_.push_back(text); };
    return options;
  }
  absl::Status Refused(const std::string& from) const {
    const JournalOptions options = Restoring(from);
    const absl::Status status = Journal::Open(options).status();
    EXPECT_FALSE(fs::exists(options.directory + "/log/000001.log"));
    return status;
  }

  mutable std::vector<std::string> said_;
};

TEST_F(CopiesTest, AStartFromTheLastSetHasAllThatTheJournalHadAndBeginsALineage) {
  Play();
  std::string lineage, secret;
  {
    options_.copy.directory.clear();
    const auto journal = Open();
    lineage = journal->identity().lineage;
    secret = journal->identity().secret;
  }
  options_.copy.directory = folder_ / "copies";
  const JournalOptions options = Restoring(copies());
  const auto journal = Journal::Open(options);
  ASSERT_TRUE(journal.ok()) << journal.status();
  const JournalIdentity& identity = (*journal)->identity();
  EXPECT_NE(identity.lineage, lineage);
  EXPECT_THAT(identity.former_lineages, ElementsAre(lineage));
  EXPECT_NE(identity.secret, secret);
  EXPECT_THAT(said_.back(), HasSubstr("was restored from the copy "));
  const StoredRun stored = Load(**journal);
  ASSERT_EQ(stored.fragments.size(), 2u);
  for (const StoredFragment& fragment : stored.fragments) {
    EXPECT_EQ(fragment.snapshot, 1);
    ASSERT_EQ(fragment.to_replay.size(), 1u);
    EXPECT_EQ(Payload(**journal, fragment.to_replay[0].contributions[0].extent), Written(PayloadOf("eu", 1)));
    EXPECT_EQ(fragment.to_replay[0].update.segment, 0);  // it is made again
    EXPECT_TRUE(fragment.updates.empty());
  }
  ASSERT_EQ(stored.fragments[1].open.size(), 1u);
  EXPECT_EQ(Payload(**journal, stored.fragments[1].open[0].extent), Written(PayloadOf("eu", 2)));
  EXPECT_EQ((*journal)->LoadSnapshot(0, 1)->anchor, State(1).anchor);
}

TEST_F(CopiesTest, ARestoredDirectoryWithAStateGoesOnInTheLineageThatItHasBegun) {
  Play();
  const JournalOptions options = Restoring(copies());
  const std::string lineage = Journal::Open(options).value()->identity().lineage;
  const auto again = Journal::Open(options);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*again)->identity().lineage, lineage);
  EXPECT_THAT(said_.back(), HasSubstr("restores nothing"));
}

TEST_F(CopiesTest, ARestoreThatWasInterruptedBeginsAgain) {
  Play();
  const JournalOptions options = Restoring(copies());
  ASSERT_TRUE(Journal::Open(options).ok());
  fs::remove_all(options.directory + "/log");
  const absl::Status others = Journal::Open(options).status();  // snapshots, which may be all that is left of a run
  EXPECT_THAT(others.message(), HasSubstr("expected an empty state directory, got files in"));
  EXPECT_TRUE(fs::exists(options.directory + "/snapshots/" + SnapshotFileName(0, 1)));
  std::ofstream(options.directory + "/restoring") << "interrupted";
  fs::resize_file(options.directory + "/snapshots/" + SnapshotFileName(0, 1), 100);
  const auto again = Journal::Open(options);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*again)->LoadSnapshot(0, 1)->anchor, State(1).anchor);
}

TEST_F(CopiesTest, AFileOfASetNeverChangesAndOneThatNoSetNamesGoes) {
  options_.copy.keep = 2;
  const auto journal = Open();
  Seed(*journal, 1);
  std::map<std::string, std::string> seen;
  std::string last;
  fs::create_directories(copies() + "/files/0123456789abcdef-a folder of the user's");
  std::ofstream(copies() + "/files/thesis.doc") << "the user's, too";
  for (core::Version version = 0; version < 8; ++version) {
    PlayRound(*journal, 0, version);
    ASSERT_TRUE(journal->SaveSnapshot(0, State(version + 1), DigestOf(version + 1)).ok());
    last = Await(*journal, [&](const CopyFigures& figures) { return figures.set > last; }).set;
    for (const std::string& name : FilesIn(copies() + "/files")) {
      if (name == "thesis.doc" || fs::is_directory(copies() + "/files/" + name)) continue;
      const std::string bytes = Read(copies() + "/files/" + name);
      EXPECT_EQ(seen.try_emplace(name, bytes).first->second, bytes) << name;
    }
  }
  std::set<std::string> named = {"thesis.doc"};
  for (const std::string& set : Sets()) {
    const auto files = nlohmann::json::parse(Read(copies() + "/sets/" + set)).at("files");
    for (const auto& file : files) {
      named.insert(absl::StrCat(file.at("xxh3_64").get<std::string>(), "-",
                                fs::path(file.at("name").get<std::string>()).filename().string()));
    }
  }
  EXPECT_EQ(Sets().size(), 2u);
  std::vector<std::string> left = FilesIn(copies() + "/files");
  std::erase(left, "0123456789abcdef-a folder of the user's");
  EXPECT_THAT(left, testing::ElementsAreArray(named));
  EXPECT_GT(seen.size(), named.size());
}

TEST_F(CopiesTest, RestartsPushOutNoOlderState) {
  options_.copy.keep = 2;
  Play();
  {
    const auto journal = Open();
    PlayRound(*journal, 0, 2);
  }
  const std::string older = Sets()[0];
  for (int i = 0; i < 3; ++i) Open();
  ASSERT_EQ(Sets().size(), 2u);
  EXPECT_EQ(Sets()[0], older);
}

TEST_F(CopiesTest, ALifeThatIsNotServedOrEndsInDoubtMakesNoSetAndWaitsForNoHook) {
  Play();
  const std::vector<std::string> before = Sets();
  options_.copy.hook = "sleep 1000";
  JournalTest::Open();
  EXPECT_EQ(Sets(), before);
  {
    const auto journal = Open();
    Await(*journal, [](const CopyFigures& figures) { return !figures.set.empty(); });
    journal->EndsInDoubt();
  }
  EXPECT_EQ(Sets().size(), before.size());
}

TEST_F(CopiesTest, ARunThatWentBackToAnOlderSetGoesOnInItsFolder) {
  Play();
  const std::string older = copies() + "/sets/" + Sets().back();
  {
    const auto journal = Open();
    PlayRound(*journal, 0, 2);
  }
  for (const std::string& from : {copies(), older}) {
    options_.directory = absl::StrCat(folder_ / "again", from.size());
    options_.copy.restore_from = from;
    const auto journal = Open();
    EXPECT_THAT(Await(*journal, [](const CopyFigures& figures) { return !figures.set.empty(); }).failed, IsEmpty());
  }
}

TEST_F(CopiesTest, ASetHasTheSnapshotThatARollbackGoesBackTo) {
  {
    const auto journal = Open();
    Seed(*journal, 1);
    PlayRound(*journal, 0, 0);
    ASSERT_TRUE(journal->SaveSnapshot(0, State(1), DigestOf(1)).ok());
    RoundRecord back = Round(0, 1, {});
    back.rolled_back_to = 0;
    journal->Commit({.decided = {back}});
    journal->Flush();
  }
  const auto journal = Journal::Open(Restoring(copies()));
  ASSERT_TRUE(journal.ok()) << journal.status();
  EXPECT_EQ(Load(**journal).fragments[0].to_replay[0].record.rolled_back_to, 0);
  EXPECT_EQ((*journal)->LoadSnapshot(0, 0)->anchor, State(0).anchor);
}

TEST_F(CopiesTest, TheSecretIsInNoFileOfASet) {
  Play();
  options_.copy.directory.clear();
  const std::string secret = Open()->identity().secret;
  for (const std::string& name : FilesIn(folder_ / "copies/files")) {
    EXPECT_THAT(Read(absl::StrCat(folder_ / "copies/files/", name)), Not(HasSubstr(secret))) << name;
  }
}

TEST_F(CopiesTest, AMissingOrDamagedFileIsNamedAndSoIsTheNewestWholeSet) {
  Play();
  {
    const auto journal = Open();
    PlayRound(*journal, 0, 2);
  }
  const std::string newest = Sets().back(), whole = Sets()[Sets().size() - 2];
  const auto files = nlohmann::json::parse(Read(copies() + "/sets/" + newest)).at("files");
  const auto log = std::ranges::find(files, "log/000001.log", [](const auto& file) { return file.at("name"); });
  const std::string path = copies() + "/files/" + log->at("xxh3_64").template get<std::string>() + "-000001.log";
  const std::string bytes = Read(path);
  std::string damaged = bytes;
  damaged[100] ^= 1;
  std::ofstream(path, std::ios::binary) << damaged;
  const absl::Status changed = Refused(copies());
  EXPECT_TRUE(absl::IsDataLoss(changed)) << changed;
  EXPECT_THAT(changed.message(), HasSubstr(path + " is damaged"));
  fs::remove(path);
  const absl::Status missing = Refused(copies());
  EXPECT_THAT(missing.message(), HasSubstr(path));
  const std::string advice = absl::StrCat(copies(), "/sets/", whole);
  EXPECT_THAT(missing.message(), HasSubstr("whole is --restore_from=" + advice));
  EXPECT_TRUE(Journal::Open(Restoring(advice)).ok());
}

TEST_F(CopiesTest, FoldersThatAreNoCopiesOfThisRunAreRefusedByName) {
  Play();
  EXPECT_THAT(Refused(folder_ / "nothing").message(), HasSubstr("nothing, where sets/ holds no set"));
  JournalOptions options = Restoring(copies());
  options.copy.run_id = "other";
  EXPECT_THAT(Journal::Open(options).status().message(),
              HasSubstr("expected a copy of run other, shard 0 of 1, in format 1, got one of run demo, shard 0 of 1"));
  options = Restoring(copies());
  options.shard = {1, 2};
  EXPECT_THAT(Journal::Open(options).status().message(), HasSubstr("expected a copy of run demo, shard 1 of 2"));
  std::ofstream(copies() + "/sets/" + Sets().back()) << "{";
  EXPECT_THAT(Refused(copies()).message(), HasSubstr("is damaged"));
}

TEST_F(CopiesTest, AFailureIsSaidEndsNothingAndTheNextSetIsWhole) {
  std::ofstream(folder_ / "copies") << "a file";
  const auto journal = Open();
  EXPECT_THAT(journal->figures().copies.failed, HasSubstr("copies"));
  Seed(*journal, 1);
  const auto next = [&](core::Version version) {
    PlayRound(*journal, 0, version);
    ASSERT_TRUE(journal->SaveSnapshot(0, State(version + 1), DigestOf(version + 1)).ok());
  };
  next(0);
  fs::remove(copies());
  next(1);
  Await(*journal, [](const CopyFigures& figures) { return absl::StrContains(figures.failed, "files/: No such file"); });
  fs::create_directory(copies());
  std::ofstream(copies() + "/sets") << "a file";
  next(2);
  Await(*journal, [](const CopyFigures& figures) { return absl::StrContains(figures.failed, "/sets"); });
  fs::remove(copies() + "/sets");
  next(3);
  EXPECT_THAT(Await(*journal, [](const CopyFigures& figures) { return !figures.set.empty(); }).failed, IsEmpty());
  EXPECT_TRUE(journal->status().ok());
}

TEST_F(CopiesTest, SetsOfAnotherRunStayAsTheyAre) {
  Play();
  const std::vector<std::string> before = Sets();
  options_.directory = folder_ / "another";
  Play();  // begun anew with the same run_id
  EXPECT_EQ(Sets(), before);
  options_.directory = folder_ / "a third";
  options_.copy.run_id = "other";
  const auto journal = Open();
  Seed(*journal, 1);
  const CopyFigures figures = Await(*journal, [](const CopyFigures& figures) { return !figures.failed.empty(); });
  EXPECT_THAT(figures.failed, HasSubstr("expected a copy of run other"));
  EXPECT_EQ(Sets(), before);
}

TEST_F(CopiesTest, OnAnotherFileSystemFilesAreCopied) {
  struct stat here, there;
  if (::stat("/dev/shm", &there) != 0 || ::stat((folder_ / "").c_str(), &here) != 0 || here.st_dev == there.st_dev) {
    GTEST_SKIP() << "/dev/shm is no other file system";
  }
  const std::string other = absl::StrCat("/dev/shm/causeway-copies-", ::getpid());
  options_.copy.directory = other;
  Play();
  const auto journal = Journal::Open(Restoring(other));
  EXPECT_TRUE(journal.ok()) << journal.status();
  fs::remove_all(other);
}

TEST_F(CopiesTest, AHookGetsTheSetAndItsOutputIsForTheOwnerOfTheDirectoryAlone) {
  options_.copy.hook = "cat \"$CAUSEWAY_COPY_DIR/sets/$CAUSEWAY_COPY_SET.json\"; echo key=hunter2; exit 3";
  const auto journal = Open();
  Seed(*journal, 1);
  const CopyFigures figures = Await(*journal, [](const auto& figures) { return !figures.hook_ended.empty(); });
  EXPECT_EQ(figures.hook_ended, "with 3");
  EXPECT_THAT(figures.failed, HasSubstr("--copy_hook ended with 3, for the set " + figures.set));
  EXPECT_THAT(figures.failed, Not(HasSubstr("hunter2")));
  const std::string log = options_.directory + "/copy_hook.log";
  EXPECT_THAT(Read(log), HasSubstr("\"run_id\": \"demo\""));
  EXPECT_THAT(Read(log), HasSubstr("hunter2"));
  EXPECT_EQ(fs::status(log).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(CopiesTest, AHookThatHangsIsEndedWithItsChildrenAndSetsThatCameDueMeanwhileAreOne) {
  for (const std::string deaf : {"", "trap '' TERM; "}) {
    options_.directory = folder_ / absl::StrCat("state", deaf.size());
    options_.copy.directory = folder_ / absl::StrCat("copies", deaf.size());
    options_.copy.hook = deaf + "echo begins; sleep 1000 & echo $! >$CAUSEWAY_COPY_DIR/child; sleep 1000; true";
    options_.copy.hook_ms = options_.copy.last_hook_ms = 300;
    const auto journal = Open();
    Seed(*journal, 1);
    Await(*journal, [](const CopyFigures& figures) { return !figures.set.empty(); });
    for (core::Version version = 0; version < 3; ++version) {
      PlayRound(*journal, 0, version);
      ASSERT_TRUE(journal->SaveSnapshot(0, State(version + 1), DigestOf(version + 1)).ok());
    }
    EXPECT_EQ(Sets().size(), 1u);
    const CopyFigures figures = Await(*journal, [](const auto& figures) { return !figures.hook_ended.empty(); });
    EXPECT_THAT(figures.failed, HasSubstr("by the coordinator, which waits no longer"));
    const pid_t child = std::stoi(Read(copies() + "/child"));
    const std::string state = Read(absl::StrCat("/proc/", child, "/stat"));
    EXPECT_THAT(state, testing::AnyOf(IsEmpty(), HasSubstr(") Z "), Not(HasSubstr("(sleep)")))) << "it lives";
    EXPECT_EQ(Read(options_.directory + "/copy_hook.log"), deaf.empty() ? "begins\n" : "");
  }
}

}  // namespace
}  // namespace causeway::server
