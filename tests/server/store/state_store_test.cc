#include "server/store/state_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bit>
#include <csignal>

#include "absl/strings/match.h"
#include "tests/formats/temporary_folder.h"

namespace causeway::server {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kValues = 4096;

core::AlignedFloats Values(float first) {
  core::AlignedFloats values(kValues, 0.0f);
  for (size_t i = 0; i < values.size(); ++i) values[i] = first / static_cast<float>(i + 1);
  values[1] = -0.0f;
  values[2] = 0x1p-149f;
  return values;
}

ChunkPtr Chunk(char fill, size_t bytes) { return std::make_shared<const std::string>(bytes, fill); }

// One of everything; `version` tells two states apart.
SavedState State(core::Version version) {
  SavedState state{.run_config = std::string("\x0a\x00\xff", 3), .epoch = 7, .lineage = "l1"};
  state.manifest = {{"w", {64, 64}, core::TensorKind::kMatrix, 2}, {"e", {5}, core::TensorKind::kEmbedding}};
  state.tensors_of_fragment = {{0}, {1}};
  state.rounds = {
      .seeded = true, .started = true, .versions = {version, 4}, .contributions = {{{"asia", {}}, {"eu", {}}}, {}}};
  state.rounds.sites["eu"] = {"s1", core::SiteState::kDraining, "a \"reason\"", {3, 4}, {-1, 2}};
  state.eval_loss = {.start = 5.5, .latest = 0.1, .versions = {3, 4}};
  auto first = std::make_shared<core::FragmentState>();
  *first = {version, Values(1.5f), Values(-2.5f), Values(3e-39f)};
  auto second = std::make_shared<core::FragmentState>();
  *second = {4, Values(7.0f), Values(8.0f), {}};
  const SavedUpdate update{3, {0.4f, 0.9f}, {"eu"}, {"asia", "eu"}, 0xfedcba9876543210, {Chunk('u', 100), Chunk(0, 7)}};
  state.fragments = {
      {first, {}, {{"asia", {Chunk('a', 300)}}, {"eu", {Chunk('e', 1), Chunk('f', 0)}}}},
      {second, {update}, {}},
  };
  return state;
}

std::vector<uint32_t> Bits(std::span<const float> values) {
  std::vector<uint32_t> bits;
  for (float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

std::vector<std::string> Bytes(const std::vector<ChunkPtr>& chunks) {
  std::vector<std::string> bytes;
  for (const ChunkPtr& chunk : chunks) bytes.push_back(*chunk);
  return bytes;
}

void ExpectEqual(const SavedFragment& got, const SavedFragment& expected) {
  EXPECT_EQ(got.state->version, expected.state->version);
  EXPECT_EQ(Bits(got.state->anchor), Bits(expected.state->anchor));
  EXPECT_EQ(Bits(got.state->momentum), Bits(expected.state->momentum));
  EXPECT_EQ(Bits(got.state->residual), Bits(expected.state->residual));
  ASSERT_EQ(got.updates.size(), expected.updates.size());
  for (size_t i = 0; i < got.updates.size(); ++i) {
    EXPECT_EQ(got.updates[i].base, expected.updates[i].base);
    EXPECT_EQ(got.updates[i].outer, expected.updates[i].outer);
    EXPECT_EQ(got.updates[i].merged, expected.updates[i].merged);
    EXPECT_EQ(got.updates[i].sites, expected.updates[i].sites);
    EXPECT_EQ(got.updates[i].digest, expected.updates[i].digest);
    EXPECT_EQ(Bytes(got.updates[i].chunks), Bytes(expected.updates[i].chunks));
  }
  ASSERT_EQ(got.contributions.size(), expected.contributions.size());
  for (const auto& [site, chunks] : expected.contributions) EXPECT_EQ(Bytes(got.contributions.at(site)), Bytes(chunks));
}

TEST(StateStore, LoadsWhatWasSavedBitForBit) {
  const TemporaryFolder folder;
  const SavedState expected = State(3);
  {
    auto store = StateStore::Open(folder / "state");
    ASSERT_TRUE(store.ok()) << store.status();
    EXPECT_FALSE((*store)->Load()->has_value());
    ASSERT_TRUE((*store)->Save(expected, 3).ok());
  }
  auto store = StateStore::Open(folder / "state");
  ASSERT_TRUE(store.ok()) << store.status();
  const auto loaded = (*store)->Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const SavedState& got = **loaded;
  EXPECT_EQ(got.run_config, expected.run_config);
  EXPECT_EQ(got.epoch, expected.epoch);
  EXPECT_EQ(got.lineage, expected.lineage);
  EXPECT_EQ(got.manifest, expected.manifest);
  EXPECT_EQ(got.tensors_of_fragment, expected.tensors_of_fragment);
  EXPECT_EQ(got.rounds, expected.rounds);
  EXPECT_EQ(got.eval_loss.start, expected.eval_loss.start);
  EXPECT_EQ(got.eval_loss.latest, expected.eval_loss.latest);
  EXPECT_EQ(got.eval_loss.versions, expected.eval_loss.versions);
  ASSERT_EQ(got.fragments.size(), 2u);
  for (size_t p = 0; p < 2; ++p) ExpectEqual(got.fragments[p], expected.fragments[p]);
}

TEST(StateStore, KeepsTheNewestAndLoadsTheLastOfThem) {
  const TemporaryFolder folder;
  auto store = *StateStore::Open(folder.path());
  for (core::Version version = 1; version <= 4; ++version) ASSERT_TRUE(store->Save(State(version), 2).ok());
  EXPECT_EQ((*store->Load())->rounds.versions[0], 4);
  EXPECT_FALSE(std::filesystem::exists(folder / "snapshots/000002"));
  EXPECT_TRUE(std::filesystem::exists(folder / "snapshots/000003"));
}

TEST(StateStore, SecondCoordinatorOnADirectoryIsRefused) {
  const TemporaryFolder folder;
  auto first = StateStore::Open(folder.path());
  const auto second = StateStore::Open(folder.path());
  EXPECT_TRUE(absl::IsFailedPrecondition(second.status()));
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("another coordinator runs on " + folder.path()));
  first->reset();
  EXPECT_TRUE(StateStore::Open(folder.path()).ok());
}

TEST(StateStore, WhatASaveThatWasCutShortLeftIsRemoved) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "snapshots/000009.tmp");
  folder.Write("snapshots/000009.tmp/state.json", "{");
  auto store = StateStore::Open(folder.path());
  ASSERT_TRUE(store.ok());
  EXPECT_FALSE(std::filesystem::exists(folder / "snapshots/000009.tmp"));
  EXPECT_FALSE((*store)->Load()->has_value());
}

TEST(StateStore, DirectoryThatCannotBeMadeIsRefusedWithItsName) {
  const TemporaryFolder folder;
  const std::string below_a_file = folder.Write("file", "") + "/state";
  const auto store = StateStore::Open(below_a_file);
  EXPECT_FALSE(store.ok());
  EXPECT_THAT(std::string(store.status().message()), HasSubstr("--state_dir: cannot create " + below_a_file));
}

class DamagedFile : public testing::TestWithParam<const char*> {};

TEST_P(DamagedFile, IsDataLossThatNamesIt) {
  const TemporaryFolder folder;
  auto store = *StateStore::Open(folder.path());
  ASSERT_TRUE(store->Save(State(3), 3).ok());
  const std::string name = std::string("snapshots/000001/") + GetParam();
  const std::string good = ReadAll(folder / name);
  ASSERT_GT(good.size(), 4u);
  const auto expect_data_loss = [&](const std::string& how) {
    const absl::Status status = store->Load().status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << how << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam())) << how;
  };
  for (size_t at : {size_t{0}, good.size() / 2, good.size() - 2}) {
    folder.Write(name, good.substr(0, at));
    expect_data_loss("truncated");
    std::string flipped = good;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x04);
    folder.Write(name, flipped);
    expect_data_loss("bit flipped");
  }
  std::filesystem::remove(folder / name);
  expect_data_loss("removed");
  folder.Write(name, good);
  EXPECT_TRUE(store->Load().ok());
}

INSTANTIATE_TEST_SUITE_P(StateStore, DamagedFile,
                         testing::Values("state.json", "fragment-0.safetensors", "fragment-1.safetensors",
                                         "update-1-3.chunks", "contribution-0-asia.chunks"));

TEST(StateStore, DamagedHashesAreDataLoss) {
  const TemporaryFolder folder;
  auto store = *StateStore::Open(folder.path());
  ASSERT_TRUE(store->Save(State(3), 3).ok());
  for (const char* wrong : {"", "[]", "{}", "{\"state.json\": 5}"}) {
    folder.Write("snapshots/000001/hashes.json", wrong);
    EXPECT_TRUE(absl::IsDataLoss(store->Load().status())) << wrong;
  }
}

// Exit code 0 in a process of its own whose files may not grow beyond a few bytes: the save failed, with the path.
int SaveWithoutRoom(StateStore& store) {
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{.rlim_cur = 1000, .rlim_max = 1000};
  if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 2;
  const absl::Status status = store.Save(State(99), 1);
  return !status.ok() && absl::StrContains(status.message(), "fragment-0.safetensors") ? 0 : 1;
}

TEST(StateStore, SaveThatFailsLeavesWhatWasSavedBefore) {
  const TemporaryFolder folder;
  auto store = *StateStore::Open(folder.path());
  ASSERT_TRUE(store->Save(State(3), 1).ok());
  const pid_t child = fork();
  if (child == 0) _exit(SaveWithoutRoom(*store));
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ((*store->Load())->rounds.versions[0], 3);
  EXPECT_FALSE(std::filesystem::exists(folder / "snapshots/000002.tmp"));
  EXPECT_TRUE(store->Save(State(4), 1).ok());
}

TEST(StateStore, AddressesAreWrittenAsJson) {
  const TemporaryFolder folder;
  auto store = *StateStore::Open(folder.path());
  ASSERT_TRUE(store->WriteAddresses("127.0.0.1:1", "[::1]:2").ok());
  EXPECT_EQ(ReadAll(folder / "addresses.json"), "{\"grpc\":\"127.0.0.1:1\",\"http\":\"[::1]:2\"}\n");
}

}  // namespace
}  // namespace causeway::server
