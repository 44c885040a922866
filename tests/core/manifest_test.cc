#include "core/manifest.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/limits.h"

namespace causeway::core {
namespace {

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

}  // namespace
}  // namespace causeway::core
