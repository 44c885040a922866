#include "codecs/chunk_plan.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "codecs/codec.h"
#include "codecs/rotation.h"
#include "core/limits.h"
#include "core/run_config.h"
#include "tests/codecs/test_values.h"

namespace causeway::codecs {
namespace {

using core::CodecId;
using core::TensorKind;
using ::testing::ElementsAre;

struct Tensor {
  int64_t values;
  TensorKind kind = TensorKind::kMatrix;
};

core::FragmentMap MapOf(const std::vector<Tensor>& tensors) {
  core::Manifest manifest;
  std::vector<int> all;
  for (const Tensor& tensor : tensors) {
    all.push_back(static_cast<int>(manifest.size()));
    manifest.push_back({absl::StrCat("t", manifest.size()), {tensor.values}, tensor.kind});
  }
  return core::FragmentMap(manifest, {all});
}

class PlanOf : public ::testing::TestWithParam<CodecId> {};

TEST_P(PlanOf, PacksAsManyWholeUnitsOfOneTensorAsFitAndAnEighthOfTheFragmentAtMost) {
  const core::FragmentMap map = MapOf({{5}, {20'000'000}, {4096}, {4097}});
  const core::Fragment& fragment = map.fragment(0);
  int64_t tensor = 0, in_tensor = 0;
  for (const ChunkSpan& span : PlanChunks(fragment, {GetParam()})) {
    const core::TensorPlace& place = fragment.tensors[tensor];
    EXPECT_EQ(span.codec, GetParam());
    EXPECT_EQ(span.first_value(), place.first_unit * core::kUnitValues + in_tensor);
    EXPECT_LE(ChunkBytes(GetParam(), span.values), core::kMaxChunkBytes);
    in_tensor += span.values;
    if (in_tensor < place.values) {
      EXPECT_EQ(span.values % core::kUnitValues, 0);
      const bool full = ChunkBytes(GetParam(), span.values + core::kUnitValues) > core::kMaxChunkBytes;
      const bool shares = GetParam() != CodecId::kOnebitAdamSign;
      EXPECT_TRUE(full || (shares && span.units() == (fragment.units + 7) / 8)) << span.units();
    } else {
      EXPECT_EQ(in_tensor, place.values);
      ++tensor;
      in_tensor = 0;
    }
  }
  EXPECT_EQ(tensor, 4);
}

TEST_P(PlanOf, TakesTheUnitsOfTheDocumentsTable) {
  const auto units = [](CodecId codec) {
    switch (codec) {
      case CodecId::kFloat32: return 63;
      case CodecId::kBfloat16: return 127;
      case CodecId::kInt8: return 254;
      case CodecId::kInt4:
      case CodecId::kE3m0:
      case CodecId::kRotatedLm4: return 504;
      case CodecId::kSign:
      case CodecId::kRotatedSign: return 1927;
      case CodecId::kRotatedLm2: return 992;
      case CodecId::kTopk32: return 18'077;
      case CodecId::kTopk: return 9197;
      case CodecId::kTopk128: return 4639;
      case CodecId::kTopk256: return 2330;
      case CodecId::kTopk512: return 1167;
      case CodecId::kOnebitAdamSign: return 2047;
    }
    return 0;
  };
  const core::FragmentMap map = MapOf({{int64_t{160'000} * core::kUnitValues}});
  EXPECT_EQ(PlanChunks(map.fragment(0), {GetParam()})[0].units(), units(GetParam()));
}

TEST_P(PlanOf, HasTheFragmentsRotationSeedWhereTheCodecRotates) {
  const core::FragmentMap map({{"a", {10}}, {"b", {10}}}, {{0}, {1}});
  for (core::FragmentId id : {0, 1}) {
    const ChunkSpan span = PlanChunks(map.fragment(id), {GetParam(), {}, 99})[0];
    EXPECT_EQ(span.rotation_seed, GetCodec(GetParam()).rotates() ? RotationSeed(99, id) : 0);
  }
}

TEST_P(PlanOf, KindsThatAreExemptAreBfloat16) {
  const core::FragmentMap map = MapOf({{300, TensorKind::kEmbedding},
                                       {64, TensorKind::kNorm},
                                       {5000, TensorKind::kMatrix},
                                       {9, TensorKind::kExpert},
                                       {300, TensorKind::kHead}});
  const LegCodec leg = {GetParam(), {TensorKind::kNorm, TensorKind::kEmbedding}, 99};
  std::vector<CodecId> codecs;
  for (const ChunkSpan& span : PlanChunks(map.fragment(0), leg)) {
    codecs.push_back(span.codec);
    EXPECT_EQ(span.rotation_seed, GetCodec(span.codec).rotates() ? RotationSeed(99, 0) : 0);
  }
  const CodecId bf16 = CodecId::kBfloat16, other = GetParam();
  EXPECT_THAT(codecs, ElementsAre(bf16, bf16, other, other, other));
}

INSTANTIATE_TEST_SUITE_P(Codecs, PlanOf, ::testing::ValuesIn(core::kAllCodecs),
                         [](const auto& test) { return CodecTestName(test.param); });

TEST(LegCodec, OfARunIsItsConfigs) {
  core::RunConfig config;
  config.seed = 5;
  config.codec.up = CodecId::kTopk;
  config.codec.down = CodecId::kRotatedSign;
  config.codec.exempt = {TensorKind::kHead};
  const core::TensorPlace matrix = {.kind = TensorKind::kMatrix}, head = {.kind = TensorKind::kHead};
  EXPECT_EQ(UpLeg(config).CodecOf(matrix), CodecId::kTopk);
  EXPECT_EQ(DownLeg(config).CodecOf(matrix), CodecId::kRotatedSign);
  EXPECT_EQ(UpLeg(config).CodecOf(head), CodecId::kBfloat16);
  EXPECT_EQ(DownLeg(config).CodecOf(head), CodecId::kBfloat16);
  EXPECT_EQ(UpLeg(config).run_seed, 5u);
  EXPECT_EQ(DownLeg(config).run_seed, 5u);
}

TEST(LegCodec, OfParametersIsFloat32ForEveryKind) {
  for (TensorKind kind : {TensorKind::kMatrix, TensorKind::kNorm, TensorKind::kEmbedding}) {
    EXPECT_EQ(Unencoded().CodecOf({.kind = kind}), CodecId::kFloat32);
  }
}

}  // namespace
}  // namespace causeway::codecs
