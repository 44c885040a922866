#include "core/fragment_map.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/run_config.h"

namespace causeway::core {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// embedding, five layers of two tensors, final norm, head.
Manifest FiveLayers() {
  Manifest manifest = {{"embed", {256, 16}, TensorKind::kEmbedding, kNoLayer}};
  for (int layer = 0; layer < 5; ++layer) {
    manifest.push_back({"layers." + std::to_string(layer) + ".w", {16, 16}, TensorKind::kMatrix, layer});
    manifest.push_back({"layers." + std::to_string(layer) + ".norm", {16}, TensorKind::kNorm, layer});
  }
  manifest.push_back({"norm", {16}, TensorKind::kNorm, kNoLayer});
  manifest.push_back({"head", {256, 17}, TensorKind::kHead, kNoLayer});
  return manifest;
}

std::vector<std::vector<std::string>> Names(const FragmentMap& map) {
  std::vector<std::vector<std::string>> names;
  for (const Fragment& fragment : map.fragments()) {
    names.emplace_back();
    for (const TensorPlace& place : fragment.tensors) names.back().push_back(map.manifest()[place.tensor].name);
  }
  return names;
}

FragmentMap Build(const Manifest& manifest, int num_fragments, FragmentAssignment assignment) {
  auto map = BuildFragmentMap(manifest, num_fragments, assignment);
  EXPECT_TRUE(map.ok()) << map.status();
  return *std::move(map);
}

TEST(FragmentMap, StridedGivesEveryPthLayerAndEmbeddingsAndHeadTheLastFragment) {
  EXPECT_THAT(Names(Build(FiveLayers(), 3, FragmentAssignment::kStrided)),
              ElementsAre(ElementsAre("layers.0.w", "layers.0.norm", "layers.2.w", "layers.2.norm", "layers.4.w",
                                      "layers.4.norm"),
                          ElementsAre("layers.1.w", "layers.1.norm", "layers.3.w", "layers.3.norm"),
                          ElementsAre("embed", "norm", "head")));
}

TEST(FragmentMap, SequentialGivesRunsOfLayersAndEmbeddingsAndHeadTheLastFragment) {
  EXPECT_THAT(Names(Build(FiveLayers(), 3, FragmentAssignment::kSequential)),
              ElementsAre(ElementsAre("layers.0.w", "layers.0.norm", "layers.1.w", "layers.1.norm", "layers.2.w",
                                      "layers.2.norm"),
                          ElementsAre("layers.3.w", "layers.3.norm", "layers.4.w", "layers.4.norm"),
                          ElementsAre("embed", "norm", "head")));
}

TEST(FragmentMap, BalancedPutsTheLargestTensorIntoTheLightestFragment) {
  const Manifest manifest = {{"a", {10}}, {"b", {40}}, {"c", {30}}, {"d", {20}}, {"e", {25}}};
  // 40 → 0, 30 → 1, 25 → 1's load is 30 and 0's 40: 1; 20 → 0; 10 → 1 (55 against 60).
  EXPECT_THAT(Names(Build(manifest, 2, FragmentAssignment::kBalanced)),
              ElementsAre(ElementsAre("b", "d"), ElementsAre("a", "c", "e")));
}

TEST(FragmentMap, OneFragmentHoldsEverythingInManifestOrder) {
  for (FragmentAssignment assignment :
       {FragmentAssignment::kStrided, FragmentAssignment::kSequential, FragmentAssignment::kBalanced}) {
    const FragmentMap map = Build(FiveLayers(), 1, assignment);
    ASSERT_EQ(map.fragment(0).tensors.size(), 13u);
    for (int i = 0; i < 13; ++i) EXPECT_EQ(map.fragment(0).tensors[i].tensor, i);
    EXPECT_EQ(map.fragment(0).parameters, NumParameters(FiveLayers()));
  }
}

TEST(FragmentMap, LayersShareAllFragmentsWhereNoTensorIsOutsideALayer) {
  const Manifest manifest = {{"a", {4}, TensorKind::kMatrix, 0}, {"b", {4}, TensorKind::kMatrix, 1}};
  EXPECT_THAT(Names(Build(manifest, 2, FragmentAssignment::kStrided)), ElementsAre(ElementsAre("a"), ElementsAre("b")));
}

TEST(FragmentMap, TensorsStartOnANewUnitBackToBack) {
  const Manifest manifest = {{"a", {1}}, {"b", {4096}}, {"c", {4097}}, {"d", {2, 3}}};
  const Fragment fragment = Build(manifest, 1, FragmentAssignment::kStrided).fragment(0);
  EXPECT_THAT(fragment.tensors, ElementsAre(TensorPlace{0, 0, 1}, TensorPlace{1, 1, 4096}, TensorPlace{2, 2, 4097},
                                            TensorPlace{3, 4, 6}));
  EXPECT_EQ(fragment.units, 5);
  EXPECT_EQ(fragment.padded_values(), 5 * 4096);
  EXPECT_EQ(fragment.parameters, 1 + 4096 + 4097 + 6);
}

absl::StatusOr<FragmentMap> BuildByPrefixes(const Manifest& manifest, std::vector<std::vector<std::string>> prefixes) {
  SyncConfig sync{.num_fragments = static_cast<int>(prefixes.size())};
  sync.fragments = std::move(prefixes);
  return BuildFragmentMap(manifest, sync);
}

TEST(FragmentMap, LongestPrefixOfATensorsNameDecides) {
  const auto map = BuildByPrefixes(FiveLayers(), {{"layers.0.", "layers.1", "head"}, {""}, {"layers.1.norm", "norm"}});
  ASSERT_TRUE(map.ok()) << map.status();
  EXPECT_THAT(Names(*map), ElementsAre(ElementsAre("layers.0.w", "layers.0.norm", "layers.1.w", "head"),
                                       ElementsAre("embed", "layers.2.w", "layers.2.norm", "layers.3.w",
                                                   "layers.3.norm", "layers.4.w", "layers.4.norm"),
                                       ElementsAre("layers.1.norm", "norm")));
}

TEST(FragmentMap, PrefixesThatLeaveATensorOrAFragmentOutAreRefused) {
  EXPECT_EQ(BuildByPrefixes(FiveLayers(), {{"embed", "norm"}, {"layers."}}).status().message(),
            "expected a prefix of tensor head in sync.fragments, got none");
  EXPECT_EQ(BuildByPrefixes(FiveLayers(), {{""}, {"Layers.", "embeddings"}}).status().message(),
            "expected a tensor in each of sync.fragments, got none in fragment 1 by the prefixes [Layers., "
            "embeddings]");
}

TEST(FragmentMap, TensorsThatAreNotSyncedHaveNoPlace) {
  Manifest manifest = FiveLayers();
  manifest.front().frozen = true;                   // embed
  manifest[manifest.size() - 2].frozen = true;      // norm
  manifest.back().alias_of = "embed";               // head
  manifest[9].frozen = manifest[10].frozen = true;  // layer 4
  EXPECT_THAT(Names(Build(manifest, 2, FragmentAssignment::kStrided)),
              ElementsAre(ElementsAre("layers.0.w", "layers.0.norm", "layers.2.w", "layers.2.norm"),
                          ElementsAre("layers.1.w", "layers.1.norm", "layers.3.w", "layers.3.norm")));
  EXPECT_THAT(Names(Build(manifest, 2, FragmentAssignment::kSequential)),
              ElementsAre(ElementsAre("layers.0.w", "layers.0.norm", "layers.1.w", "layers.1.norm"),
                          ElementsAre("layers.2.w", "layers.2.norm", "layers.3.w", "layers.3.norm")));
  EXPECT_THAT(Names(Build(manifest, 2, FragmentAssignment::kBalanced)),
              ElementsAre(ElementsAre("layers.0.w", "layers.0.norm", "layers.2.w", "layers.2.norm"),
                          ElementsAre("layers.1.w", "layers.1.norm", "layers.3.w", "layers.3.norm")));
  const auto by_prefix = BuildByPrefixes(manifest, {{"layers.0"}, {"layers."}});
  ASSERT_TRUE(by_prefix.ok()) << by_prefix.status();
  EXPECT_EQ(by_prefix->fragment(0).parameters + by_prefix->fragment(1).parameters, NumParameters(manifest));
}

TEST(FragmentMap, FragmentThatWouldBeEmptyIsNamed) {
  const auto strided = BuildFragmentMap(FiveLayers(), 7, FragmentAssignment::kStrided);
  EXPECT_EQ(strided.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(strided.status().message()), HasSubstr("7 fragments leave fragment 5 empty"));

  const auto balanced = BuildFragmentMap({{"only", {8}}}, 2, FragmentAssignment::kBalanced);
  EXPECT_THAT(std::string(balanced.status().message()), HasSubstr("2 fragments leave fragment 1 empty"));
}

// ---- Parts ----

SyncConfig InParts(int num_fragments, int parts) {
  return {.num_fragments = num_fragments, .parts = parts, .fragment_assignment = FragmentAssignment::kSequential};
}

TEST(FragmentMap, PartsOfAFragmentHaveAsManyValuesToWithinAUnitAndEachUnitOnce) {
  const Manifest manifest = {{"layers.0.w", {10, 4096}, TensorKind::kMatrix, 0},
                             {"layers.0.norm", {100}, TensorKind::kNorm, 0},
                             {"layers.1.w", {3, 5000}, TensorKind::kMatrix, 1},
                             {"embed", {256, 1000}, TensorKind::kEmbedding, kNoLayer}};
  for (int parts : {2, 3, 4, 5}) {
    const auto map = BuildFragmentMap(manifest, InParts(2, parts));
    ASSERT_TRUE(map.ok()) << map.status();
    ASSERT_EQ(map->num_fragments(), 2 * parts);
    std::vector<int64_t> next(manifest.size(), 0);  // unit
    for (const Fragment& fragment : map->fragments()) {
      int64_t whole = 0;
      for (int part = 0; part < parts; ++part) whole += map->fragment(fragment.id / parts * parts + part).parameters;
      EXPECT_LE(std::abs(fragment.parameters * parts - whole), parts * kUnitValues) << "fragment " << fragment.id;
      for (const TensorPlace& place : fragment.tensors) {
        EXPECT_EQ(place.begin_unit, next[place.tensor]);
        next[place.tensor] += place.units();
      }
    }
    for (size_t i = 0; i < manifest.size(); ++i) EXPECT_EQ(next[i], UnitsFor(manifest[i].NumValues())) << i;
    EXPECT_EQ(FragmentMap::FromParts(manifest, map->parts()), *map);
  }
}

TEST(FragmentMap, OnePartIsTheFragmentItself) {
  EXPECT_EQ(*BuildFragmentMap(FiveLayers(), InParts(3, 1)), Build(FiveLayers(), 3, FragmentAssignment::kSequential));
}

TEST(FragmentMap, MorePartsThanUnitsAreRefused) {
  const auto map = BuildFragmentMap(FiveLayers(), InParts(3, 7));
  EXPECT_EQ(map.status().message(),
            "sync.parts: expected at most 6, the units of 4096 values that fragment 0 has, got 7");
}

TEST(FragmentMap, PartsHaveTheOffsetOfTheirFragment) {
  SyncConfig sync = InParts(2, 3);
  sync.sync_every = 8;
  const FragmentSchedule schedule = sync.Schedule();
  std::vector<Step> offsets;
  for (FragmentId f = 0; f < schedule.num_fragments(); ++f) offsets.push_back(schedule.Offset(f));
  EXPECT_THAT(offsets, ElementsAre(4, 4, 4, 0, 0, 0));
}

}  // namespace
}  // namespace causeway::core
