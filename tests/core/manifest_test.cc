#include "core/manifest.h"

#include <gmock/gmock.h>
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
