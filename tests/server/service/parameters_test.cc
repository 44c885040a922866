#include "server/service/parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "tests/server/service/coordinator_for_test.h"

namespace causeway::server {
namespace {

core::FragmentMap Map() { return *core::BuildFragmentMap(ManifestForTest(), 2, core::FragmentAssignment::kStrided); }

std::vector<SavedFragment> Zeros(const core::FragmentMap& map) {
  std::vector<SavedFragment> fragments;
  for (const core::Fragment& fragment : map.fragments()) {
    auto state = std::make_shared<core::FragmentState>();
    state->anchor.resize(fragment.padded_values());
    state->momentum.resize(fragment.padded_values());
    fragments.push_back({.state = std::move(state)});
  }
  return fragments;
}

MergeJob JobOf(const core::FragmentMap& map, core::Version base) {
  auto contribution = std::make_shared<Contribution>(codecs::PlanChunks(map.fragment(0), {core::CodecId::kInt4}));
  for (const std::string& chunk : ChunksOf(map.fragment(0), core::CodecId::kInt4, 1)) {
    if (!contribution->Add(chunk).ok()) std::abort();
  }
  return {.base = base, .contributors = {"a"}, .weights = {1}, .contributions = {contribution}, .sites = {"a"}};
}

TEST(Parameters, ReaderOfAnAnchorSeesOneVersionWhileRoundsAreMerged) {
  const core::FragmentMap map = Map();
  Parameters parameters(map, {}, [](core::FragmentId, core::AnchorDigest) {});
  parameters.Set(Zeros(map));
  const auto source = parameters.AnchorSource(0, 0, 0, [] {});
  ASSERT_NE(source, nullptr);
  const std::string first = *source->Get(0, [] {}).chunk;
  const uint64_t before = parameters.Committed(0).digest;
  parameters.Merge(JobOf(map, 0));
  parameters.Finish();
  EXPECT_EQ(parameters.Committed(0).version, 1);
  EXPECT_NE(parameters.Committed(0).digest, before);
  EXPECT_EQ(*source->Get(0, [] {}).chunk, first);
  EXPECT_EQ(source->Get(100, [] {}).end, before);
  EXPECT_EQ(parameters.AnchorSource(0, 1, 0, [] {})->Header([] {})->version, 1);
}

TEST(Parameters, WhoWaitsIsWokenWhenItIsThere) {
  const core::FragmentMap map = Map();
  Parameters parameters(map, {}, [](core::FragmentId, core::AnchorDigest) {});
  std::promise<void> set;
  EXPECT_EQ(parameters.AnchorSource(0, 0, 0, [&] { set.set_value(); }), nullptr);
  parameters.Set(Zeros(map));
  set.get_future().wait();

  std::promise<void> anchored, begun;
  EXPECT_EQ(parameters.AnchorSource(0, 1, 0, [&] { anchored.set_value(); }), nullptr);
  const auto update = *parameters.UpdateSource(0, 0);
  EXPECT_FALSE(update->Header([&] { begun.set_value(); }));
  parameters.Merge(JobOf(map, 0));
  begun.get_future().wait();
  EXPECT_EQ(update->Header([] {})->num_chunks, 3);
  anchored.get_future().wait();
  EXPECT_NE(parameters.AnchorSource(0, 1, 0, [] {}), nullptr);
  EXPECT_EQ(update->Get(3, [] {}).end, parameters.Committed(0).digest);
}

TEST(Parameters, FinishReturnsAfterTheLastRoundWasToldOf) {
  const core::FragmentMap map = Map();
  std::promise<void> go;
  std::shared_future<void> may_return = go.get_future().share();
  std::atomic<int> told = 0;
  Parameters parameters(map, {}, [&](core::FragmentId, core::AnchorDigest) {
    may_return.wait();
    ++told;
  });
  parameters.Set(Zeros(map));
  for (core::Version base = 0; base < 5; ++base) parameters.Merge(JobOf(map, base));
  auto finished = std::async(std::launch::async, [&] { parameters.Finish(); });
  go.set_value();
  finished.get();
  EXPECT_EQ(told, 5);
  EXPECT_TRUE(absl::IsNotFound(parameters.UpdateSource(0, 2).status()));
  EXPECT_TRUE(parameters.UpdateSource(0, 3).ok());
  EXPECT_TRUE(parameters.UpdateSource(0, 5).ok());  // to come
}

TEST(Parameters, SiteThatHoldsTheInitialParametersIsSentNothing) {
  const core::FragmentMap map = Map();
  Parameters parameters(map, {}, [](core::FragmentId, core::AnchorDigest) {});
  parameters.Set(Zeros(map));
  const uint64_t digest = parameters.Committed(0).digest;
  EXPECT_TRUE(parameters.AnchorSource(0, 0, digest, [] {})->Header([] {})->already_held);
  EXPECT_FALSE(parameters.AnchorSource(0, 0, digest + 1, [] {})->Header([] {})->already_held);
}

}  // namespace
}  // namespace causeway::server
