#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include "formats/run_advice.h"

namespace causeway::formats {
namespace {

using core::CodecId;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(CodecAdvice, HasNoneForTheDefaultsNorForOneBitWithoutFeedback) {
  EXPECT_THAT(CodecAdvice({}), IsEmpty());
  EXPECT_THAT(CodecAdvice({CodecId::kRotatedSign, CodecId::kSign, 0, 0}), IsEmpty());
  EXPECT_THAT(CodecAdvice({.exempt = {core::TensorKind::kNorm}}), IsEmpty());
}

TEST(CodecAdvice, NamesTheLegWhereOneBitHasFeedback) {
  EXPECT_THAT(CodecAdvice({CodecId::kInt4, CodecId::kRotatedSign, 1, 1}),
              ElementsAre(HasSubstr("codec.feedback_down is 1 with rotated_sign: at 1 bit 0 trains better")));
}

TEST(CodecAdvice, HasNoneForOneBitThatAutoFallsBackTo) {
  core::CodecConfig codec{CodecId::kRotatedSign, CodecId::kRotatedSign};
  codec.allow_up = codec.allow_down = {CodecId::kRotatedLm2, CodecId::kRotatedSign};
  EXPECT_THAT(CodecAdvice(codec), IsEmpty());
  codec.allow_up = {CodecId::kRotatedSign};
  EXPECT_THAT(CodecAdvice(codec), ElementsAre(HasSubstr("codec.feedback_up is 1 with rotated_sign")));
}

TEST(CodecAdvice, WarnsThatTopkWithoutFeedbackLosesValues) {
  EXPECT_THAT(CodecAdvice({CodecId::kTopk, CodecId::kInt4, 0, 1}),
              ElementsAre(HasSubstr("codec.feedback_up is 0 with topk")));
}

TEST(CodecAdvice, SaysThatExemptLowersFloat32) {
  EXPECT_THAT(CodecAdvice({CodecId::kFloat32, CodecId::kInt4, 0, 1, {core::TensorKind::kNorm}}),
              ElementsAre(HasSubstr("codec.exempt lowers")));
}

TEST(RunAdvice, HasTheDoubtsAboutCodecsAndThoseAboutSteps) {
  core::RunConfig config;
  config.steps = 10;
  config.sync.sync_every = 4;
  config.sync.num_fragments = 1;
  config.codec = {CodecId::kTopk, CodecId::kInt4, 0, 1};
  EXPECT_THAT(RunAdvice(config), ElementsAre(HasSubstr("feedback_up"), HasSubstr("the last 2 steps")));
}

}  // namespace
}  // namespace causeway::formats
