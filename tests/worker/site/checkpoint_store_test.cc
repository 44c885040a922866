#include "worker/site/checkpoint_store.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "formats/atomic_file.h"
#include "formats/file_digest.h"
#include "formats/posix_file.h"
#include "formats/safetensors.h"
#include "tests/formats/temporary_folder.h"

namespace causeway::worker {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

const CheckpointIdentity kIdentity = {.run = "run", .site = "eu", .session = "5e551071", .lineage = "11"};

class CheckpointStoreTest : public ::testing::Test {
 protected:
  absl::Status Save(CheckpointStore& store, core::Step step, int64_t keep = 2) {
    checkpoint_.facts.step = step;
    return store.Save(
        kIdentity, checkpoint_,
        [](const std::string& path) -> absl::StatusOr<formats::FileDigest> {
          if (auto status = formats::WriteFileAtomically(path, "θ"); !status.ok()) return status;
          return formats::DigestOfFile(path);
        },
        keep);
  }

  void FillFragment() {
    FragmentFacts& facts = checkpoint_.facts.fragments.emplace_back();
    facts = {.version = 8, .applied = 7, .first = 2, .resolved = 6, .merged = true, .sites = {"eu", "us"}};
    facts.merged_amount = {.tokens = 30, .steps = 3};
    facts.sent = SentFacts{.base = 7, .amount = {.tokens = 50, .steps = 5}, .weight = {.tokens = 20, .steps = 2}};
    checkpoint_.arrays.push_back(
        {.anchor = anchor_, .momentum = momentum_, .step = step_, .step_lr = 0.1f, .pending = true});
    checkpoint_.chunks.push_back(std::make_shared<const std::vector<core::Bytes>>(
        std::vector<core::Bytes>{std::string("one"), std::string(3, 0)}));
  }

  const TemporaryFolder folder_;
  std::vector<float> anchor_ = {1, -0.0f}, momentum_ = {2, 0x1p-149f}, step_ = {3, 0.1f};
  SiteCheckpoint checkpoint_ = {
      .facts = {.trained = {.tokens = 70, .steps = 7}, .sites = {"eu", "us"}, .fragments = {}}};
};

TEST_F(CheckpointStoreTest, NothingIsThereAtFirst) {
  auto store = CheckpointStore::Open(folder_ / "new");
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_FALSE((*store)->Load("run", "eu")->has_value());
  EXPECT_EQ((*store)->LoadSession("run", "eu"), "");
}

TEST_F(CheckpointStoreTest, ComesBackAsItWasToTheLastBit) {
  FillFragment();
  auto store = *CheckpointStore::Open(folder_.path());
  ASSERT_TRUE(Save(*store, 42).ok());
  const auto loaded = store->Load("run", "eu");
  ASSERT_TRUE(loaded.ok() && loaded->has_value()) << loaded.status();
  EXPECT_EQ((*loaded)->identity, kIdentity);
  const SiteFacts& facts = (*loaded)->site.facts;
  EXPECT_EQ(facts.step, 42);
  EXPECT_EQ(facts.trained.tokens, 70);
  EXPECT_THAT(facts.sites, ElementsAre("eu", "us"));
  ASSERT_EQ(facts.fragments.size(), 1u);
  const FragmentFacts& fragment = facts.fragments[0];
  EXPECT_THAT((std::vector<core::Version>{fragment.version, fragment.applied, fragment.first, fragment.resolved}),
              ElementsAre(8, 7, 2, 6));
  ASSERT_EQ((*loaded)->site.arrays.size(), 1u);
  const replica::ReplicaArrays& arrays = (*loaded)->site.arrays[0];
  EXPECT_TRUE(fragment.merged && arrays.pending && !fragment.sent->admitted);
  EXPECT_EQ(fragment.sent->base, 7);
  EXPECT_EQ(fragment.sent->weight.steps, 2);
  EXPECT_THAT(*(*loaded)->site.chunks.at(0), ElementsAre(std::string("one"), std::string(3, 0)));
  EXPECT_EQ(arrays.step_lr, 0.1f);
  EXPECT_EQ(std::memcmp(arrays.anchor.data(), anchor_.data(), sizeof(float) * 2), 0);
  EXPECT_EQ(std::memcmp(arrays.momentum.data(), momentum_.data(), sizeof(float) * 2), 0);
  EXPECT_THAT(arrays.step, ElementsAre(3, 0.1f));
  EXPECT_THAT(arrays.residual, ElementsAre());
  EXPECT_TRUE(std::filesystem::exists((*loaded)->trainer_path));
}

TEST_F(CheckpointStoreTest, TheNewestCountsAndOldOnesGo) {
  auto store = *CheckpointStore::Open(folder_.path());
  for (core::Step step : {30, 40, 20}) ASSERT_TRUE(Save(*store, step).ok());  // a joiner may be given an earlier step
  EXPECT_EQ((*store->Load("run", "eu"))->site.facts.step, 20);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "000001"));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "000002"));
}

TEST_F(CheckpointStoreTest, OneThatFailsLeavesTheOthers) {
  auto store = *CheckpointStore::Open(folder_.path());
  ASSERT_TRUE(Save(*store, 30).ok());
  const auto fails = [](const std::string&) -> absl::StatusOr<formats::FileDigest> {
    return absl::ResourceExhaustedError("disk full");
  };
  EXPECT_EQ(store->Save(kIdentity, checkpoint_, fails, 1).message(), "disk full");
  EXPECT_EQ((*store->Load("run", "eu"))->site.facts.step, 30);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "000002.tmp"));
}

TEST_F(CheckpointStoreTest, ADirectoryThatWasRemovedIsMadeAgainAndBelongsToThisWorker) {
  const std::string directory = folder_ / "checkpoints";
  auto store = *CheckpointStore::Open(directory);
  ASSERT_TRUE(Save(*store, 30).ok());
  std::filesystem::remove_all(directory);
  ASSERT_TRUE(Save(*store, 40).ok());
  EXPECT_EQ((*store->Load("run", "eu"))->site.facts.step, 40);
  EXPECT_EQ(store->LoadSession("run", "eu"), kIdentity.session);
  EXPECT_TRUE(absl::IsFailedPrecondition(CheckpointStore::Open(directory).status()));
}

TEST_F(CheckpointStoreTest, OfAnotherSiteIsRefused) {
  auto store = *CheckpointStore::Open(folder_.path());
  ASSERT_TRUE(Save(*store, 30).ok());
  EXPECT_THAT(std::string(store->Load("run", "us").status().message()),
              HasSubstr("holds checkpoints of site eu in run run; this is site us in run run"));
}

// ---- Folders of others ----

class SharedFolder : public CheckpointStoreTest {
 protected:
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
      const std::string name = entry.path().filename();
      if (name != "lock") names.push_back(name);
    }
    return names;
  }
};

TEST_F(SharedFolder, IsLeftAsItIsButForItsOwnCheckpoints) {
  for (const char* name : {"202401/notes", "thesis.tmp/chapter", "202402.tmp/data", "000002.csv", "7"}) {
    std::filesystem::create_directories(std::filesystem::path(folder_ / name).parent_path());
    folder_.Write(name, "x");
  }
  std::filesystem::create_directories(folder_ / "000003.tmp");
  folder_.Write("000003.tmp/sync.safetensors", "from an interrupted save");
  auto store = *CheckpointStore::Open(folder_.path());
  EXPECT_FALSE(store->Load("run", "eu")->has_value());
  for (core::Step step : {10, 20, 30, 40}) ASSERT_TRUE(Save(*store, step).ok());
  EXPECT_EQ((*store->Load("run", "eu"))->site.facts.step, 40);
  EXPECT_THAT(Names(),
              UnorderedElementsAre("202401", "thesis.tmp", "202402.tmp", "000002.csv", "7", "000003", "000004"));
}

TEST_F(SharedFolder, ACopyStaysAndCountsOnlyWhereThereIsNoOther) {
  auto store = *CheckpointStore::Open(folder_.path());
  for (core::Step step : {10, 20}) ASSERT_TRUE(Save(*store, step).ok());
  std::filesystem::copy(folder_ / "000002", folder_ / "20261128");
  for (core::Step step : {30, 40, 50}) ASSERT_TRUE(Save(*store, step).ok());
  EXPECT_EQ((*store->Load("run", "eu"))->site.facts.step, 50);
  EXPECT_THAT(Names(), UnorderedElementsAre("20261128", "000004", "000005"));
  for (const char* name : {"000004", "000005"}) std::filesystem::remove_all(folder_ / name);
  EXPECT_EQ((*store->Load("run", "eu"))->site.facts.step, 20);
  ASSERT_TRUE(Save(*store, 60).ok());
  EXPECT_EQ((*store->Load("run", "eu"))->site.facts.step, 60);
}

TEST_F(SharedFolder, CheckpointsOfAnotherRunBesideOwnOnesAreNoneOfOurs) {
  auto store = *CheckpointStore::Open(folder_.path());
  for (core::Step step : {10, 20, 30}) ASSERT_TRUE(Save(*store, step).ok());
  const CheckpointIdentity other = {.run = "other", .site = "eu", .session = "1", .lineage = "2"};
  const auto trainer = [](const std::string& path) -> absl::StatusOr<formats::FileDigest> {
    if (auto status = formats::WriteFileAtomically(path, "θ"); !status.ok()) return status;
    return formats::DigestOfFile(path);
  };
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(store->Save(other, checkpoint_, trainer, 1).ok());
  EXPECT_THAT(Names(), UnorderedElementsAre("000002", "000003", "000005"));
  EXPECT_EQ((*store->Load("run", "eu"))->site.facts.step, 30);
  EXPECT_EQ((*store->Load("other", "eu"))->identity, other);
}

// ---- Damage ----

class DamagedCheckpoint : public CheckpointStoreTest {
 protected:
  DamagedCheckpoint() {
    FillFragment();
    for (core::Step step : {30, 40}) EXPECT_TRUE(Save(*store_, step).ok());
  }

  void Flip(const std::string& name, size_t byte, int bit) const {
    std::string bytes = *formats::ReadFile(folder_ / name, 1 << 20);
    bytes.at(byte) ^= static_cast<char>(1 << bit);
    folder_.Write(name, bytes);
  }
  core::Step LoadedStep() {
    const auto loaded = store_->Load("run", "eu");
    return loaded.ok() && loaded->has_value() ? (*loaded)->site.facts.step : -1;
  }

  std::unique_ptr<CheckpointStore> store_ = *CheckpointStore::Open(folder_.path());
};

TEST_F(DamagedCheckpoint, EachFlippedBitOfEachFileIsFoundAndTheOneBeforeCounts) {
  ASSERT_EQ(LoadedStep(), 40);
  for (const char* file : {"sync.json", "sync.safetensors", "contribution-0.chunks", "trainer.safetensors"}) {
    const std::string name = absl::StrCat("000002/", file), path = folder_ / name;
    const size_t size = std::filesystem::file_size(path);
    for (size_t byte = 0; byte < size; ++byte) {
      Flip(name, byte, byte % 8);
      ASSERT_EQ(LoadedStep(), 30) << name << " byte " << byte;
      ASSERT_THAT(store_->damage().back(), HasSubstr(path));
      Flip(name, byte, byte % 8);
    }
  }
  EXPECT_EQ(LoadedStep(), 40);
}

TEST_F(DamagedCheckpoint, FileThatIsCutShortOrMissingIsFound) {
  for (const char* file : {"sync.json", "sync.safetensors", "contribution-0.chunks", "trainer.safetensors"}) {
    const std::string path = folder_ / absl::StrCat("000002/", file);
    const std::string whole = *formats::ReadFile(path, 1 << 20);
    std::filesystem::resize_file(path, whole.size() - 1);
    EXPECT_EQ(LoadedStep(), 30) << path;
    std::filesystem::remove(path);
    EXPECT_EQ(LoadedStep(), 30) << path;
    folder_.Write(absl::StrCat("000002/", file), whole);
  }
  EXPECT_EQ(LoadedStep(), 40);
}

TEST_F(DamagedCheckpoint, WhereNoneIsWholeAllAreKeptAsideAndTheSiteHasNone) {
  Flip("000001/trainer.safetensors", 0, 0);
  Flip("000002/sync.safetensors", 40, 3);
  const auto loaded = store_->Load("run", "eu");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_FALSE(loaded->has_value());
  EXPECT_THAT(store_->damage(), ElementsAre(AllOf(HasSubstr("000002/sync.safetensors is damaged: expected"),
                                                  HasSubstr(" bytes with XXH3-64 ")),
                                            HasSubstr("000001/trainer.safetensors is damaged")));
  for (const char* name : {"000001.damaged", "000002.damaged"}) EXPECT_TRUE(std::filesystem::exists(folder_ / name));
  ASSERT_TRUE(Save(*store_, 50).ok());
  EXPECT_EQ(LoadedStep(), 50);
}

TEST_F(DamagedCheckpoint, WithoutDigestsItIsPassedOver) {
  std::string text = *formats::ReadFile(folder_ / "000002/sync.json", 1 << 20);
  nlohmann::json json = nlohmann::json::parse(text);
  json.erase("digest");
  folder_.Write("000002/sync.json", json.dump(1));
  EXPECT_EQ(LoadedStep(), 30) << "with files, but without a digest of itself";
  json.erase("files");
  folder_.Write("000002/sync.json", json.dump(1));
  EXPECT_EQ(LoadedStep(), 30) << "and without files";
}

TEST_F(DamagedCheckpoint, OneOfAnotherFormatIsNotDamagedButRefused) {
  for (const int format : {1, 6}) {
    for (const char* name : {"000001/sync.json", "000002/sync.json"}) {
      nlohmann::json json = nlohmann::json::parse(*formats::ReadFile(folder_ / name, 1 << 20));
      json.erase("digest");
      json["format"] = format;
      folder_.Write(name, json.dump(1));
    }
    const absl::Status status = store_->Load("run", "eu").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("expected format 2 to 5, got ", format)));
  }
}

TEST_F(CheckpointStoreTest, SecondWorkerIsKeptOut) {
  const auto store = *CheckpointStore::Open(folder_.path());
  EXPECT_THAT(std::string(CheckpointStore::Open(folder_.path()).status().message()),
              HasSubstr("another worker runs on"));
}

TEST_F(CheckpointStoreTest, SessionIsRemembered) {
  auto store = *CheckpointStore::Open(folder_.path());
  ASSERT_TRUE(store->SaveSession(kIdentity).ok());
  EXPECT_EQ(store->LoadSession("run", "eu"), "5e551071");
  EXPECT_EQ(store->LoadSession("other", "eu"), "");
}

}  // namespace
}  // namespace causeway::worker
