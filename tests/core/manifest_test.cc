#include "core/manifest.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/fragment_map.h"
#include "core/limits.h"
#include "core/run_config.h"

namespace causeway::core {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Manifest Small() { return {{"embed", {256, 16}, TensorKind::kEmbedding}, {"wq", {128, 128}, TensorKind::kMatrix, 0}}; }

std::string Refusal(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(CompareManifests, SameManifestsAreEqual) { EXPECT_TRUE(CompareManifests(Small(), Small()).ok()); }

TEST(CompareManifests, FirstDifferenceIsNamedWithBothSides) {
  Manifest other = Small();
  other[1].shape = {128, 64};
  EXPECT_EQ(Refusal(CompareManifests(Small(), other)),
            "the model differs from the run's at tensor 1: expected wq [128,128] matrix of layer 0, got wq [128,64] "
            "matrix of layer 0");
}

TEST(CompareManifests, NameKindAndLayerCountToo) {
  Manifest name = Small(), kind = Small(), layer = Small();
  name[0].name = "embedding";
  kind[0].kind = TensorKind::kHead;
  layer[1].layer = 3;
  EXPECT_THAT(Refusal(CompareManifests(Small(), name)), HasSubstr("got embedding [256,16]"));
  EXPECT_THAT(Refusal(CompareManifests(Small(), kind)), HasSubstr("got embed [256,16] head"));
  EXPECT_THAT(Refusal(CompareManifests(Small(), layer)), HasSubstr("got wq [128,128] matrix of layer 3"));
}

TEST(CompareManifests, MissingAndUnexpectedTensorsAreNamed) {
  Manifest more = Small();
  more.push_back({"norm", {16}, TensorKind::kNorm});
  EXPECT_THAT(Refusal(CompareManifests(more, Small())),
              HasSubstr("expected 3 tensors, got 2; the first missing one is norm [16] norm"));
  EXPECT_THAT(Refusal(CompareManifests(Small(), more)),
              HasSubstr("expected 2 tensors, got 3; the first unexpected one is norm [16] norm"));
}

// A base model that is not trained, an adapter that is, and a head that is tied to the embedding.
Manifest Adapted() {
  return {{.name = "embed", .shape = {256, 16}, .kind = TensorKind::kEmbedding},
          {.name = "wq", .shape = {128, 128}, .layer = 0, .frozen = true, .values_digest = 0xabc},
          {.name = "wq.lora", .shape = {128, 8}, .layer = 0, .dtype = DType::kBfloat16},
          {.name = "head", .shape = {256, 16}, .kind = TensorKind::kHead, .alias_of = "embed"}};
}

TEST(NumParameters, CountsWhatIsSynced) { EXPECT_EQ(NumParameters(Adapted()), 256 * 16 + 128 * 8); }

TEST(CompareManifests, SitesMayDifferInTypes) {
  Manifest other = Adapted();
  other[2].dtype = DType::kFloat16;
  EXPECT_TRUE(CompareManifests(Adapted(), other).ok());
}

TEST(CompareManifests, AnotherBaseModelIsNamedWithBothDigests) {
  Manifest other = Adapted();
  other[1].values_digest = 0xabd;
  EXPECT_EQ(Refusal(CompareManifests(Adapted(), other)),
            "the base model differs from the run's at tensor 1: expected wq [128,128] matrix of layer 0, frozen with "
            "values of digest 0000000000000abc, got 0000000000000abd");
  other[1].values_digest = 0;
  EXPECT_TRUE(CompareManifests(Adapted(), other).ok());
  EXPECT_TRUE(CompareManifests(other, Adapted()).ok());
}

TEST(CompareManifests, WhatIsFrozenOrTiedCounts) {
  Manifest frozen = Adapted(), tied = Adapted();
  frozen[0].frozen = true;
  tied[3].alias_of.clear();
  EXPECT_THAT(Refusal(CompareManifests(Adapted(), frozen)), HasSubstr("got embed [256,16] embedding, frozen"));
  EXPECT_THAT(Refusal(CompareManifests(Adapted(), tied)),
              HasSubstr("expected head [256,16] head, tied to embed, got head [256,16] head"));
}

TEST(ValidateManifest, AliasesNameATensorOfTheirShapeBeforeOrBehindThem) {
  EXPECT_TRUE(ValidateManifest(Adapted()).ok());
  Manifest behind = Adapted();
  std::swap(behind[0], behind[3]);
  EXPECT_TRUE(ValidateManifest(behind).ok());
  const auto refusal = [](auto change) {
    Manifest manifest = Adapted();
    change(manifest);
    return Refusal(ValidateManifest(manifest));
  };
  EXPECT_EQ(refusal([](Manifest& m) { m[3].alias_of = "embedding"; }),
            "manifest: tensor head: expected the name of a tensor to be tied to, got embedding, which is not listed");
  EXPECT_THAT(refusal([](Manifest& m) { m[3].alias_of = "head"; }), HasSubstr("got head, which is tied itself"));
  EXPECT_THAT(refusal([](Manifest& m) {
                m[3].shape = {16, 256};
              }),
              HasSubstr("head [16,256] head, tied to embed: expected the shape of embed [256,16] embedding"));
}

TEST(ValidateManifest, AModelHasATensorThatIsTrained) {
  EXPECT_THAT(Refusal(ValidateManifest({{.name = "a", .shape = {1}, .frozen = true}})),
              HasSubstr("expected a tensor that is trained, got 1 that are frozen or tied"));
  EXPECT_THAT(Refusal(ValidateManifest({{.name = "a", .shape = {1}, .values_digest = 255}})),
              HasSubstr("tensor a: expected a digest of values of a frozen tensor only, got 00000000000000ff"));
}

TEST(ValidateManifest, GoodOnesPass) {
  EXPECT_TRUE(ValidateManifest(Small()).ok());
  EXPECT_TRUE(ValidateManifest({{"scalar", {}}}).ok());
}

TEST(ValidateManifest, WhatAPeerCouldGetWrongIsRefused) {
  EXPECT_THAT(Refusal(ValidateManifest({})), HasSubstr("expected 1 to 20000 tensors, got 0"));
  EXPECT_THAT(Refusal(ValidateManifest({{"a", {1}}, {"a", {2}}})), HasSubstr("tensor a is listed twice"));
  EXPECT_THAT(Refusal(ValidateManifest({{"", {1}}})), HasSubstr("expected tensor names of 1 to 512 bytes"));
  EXPECT_THAT(Refusal(ValidateManifest({{std::string(513, 'x'), {1}}})), HasSubstr("got one of 513"));
  EXPECT_THAT(Refusal(ValidateManifest({{"a", {4, 0}}})), HasSubstr("expected positive dimensions"));
  EXPECT_THAT(Refusal(ValidateManifest({{"a", {-4}}})), HasSubstr("expected positive dimensions"));
  EXPECT_THAT(Refusal(ValidateManifest({{"a", {1}, TensorKind::kMatrix, -2}})), HasSubstr("layer -2"));
}

TEST(ValidateManifest, ProductsThatOverflowAreRefused) {
  constexpr int64_t kHuge = int64_t{1} << 62;
  EXPECT_THAT(Refusal(ValidateManifest({{"a", {kHuge, kHuge}}})), HasSubstr("at most 1099511627776 values"));
  EXPECT_THAT(Refusal(ValidateManifest({{"a", {kMaxParameters}}, {"b", {1}}})),
              HasSubstr("expected at most 1099511627776 parameters"));
}

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
