#include <gmock/gmock-more-matchers.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/run_advice.h"

namespace causeway::formats {
namespace {

using core::CodecId;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

core::RunConfig Config(int64_t steps, int64_t sync_every, int fragments) {
  core::RunConfig config;
  config.steps = steps;
  config.sync.sync_every = sync_every;
  config.sync.num_fragments = fragments;
  return config;
}

std::string Mistake(const core::RunConfig& config) {
  const Origin origin;
  FieldCheck check(origin);
  CheckSteps(config, check);
  return std::string(check.status().message());
}

TEST(StepsCheck, RunThatEndsBeforeItsFirstSendIsRefusedWithTheStepsThatItNeeds) {
  EXPECT_THAT(
      Mistake(Config(10, 20, 1)),
      HasSubstr("run.steps: expected at least 20, when fragment 0 is sent for the first time (sync.sync_every is 20), "
                "or 0, without an end, got 10"));
  EXPECT_EQ(Mistake(Config(20, 20, 1)), "");
}

TEST(StepsCheck, TheLastFragmentToBeSentDecides) {
  EXPECT_THAT(Mistake(Config(34, 20, 4)), HasSubstr("at least 35, when fragment 2 is sent"));
  EXPECT_EQ(Mistake(Config(35, 20, 4)), "");
  core::RunConfig config = Config(20, 20, 4);
  config.sync.first_send = core::FirstSend::kOffset;
  EXPECT_EQ(Mistake(config), "");
  config.sync.fragment_offsets = {3, 19, 7, 1};
  config.steps = 18;
  EXPECT_THAT(Mistake(config), HasSubstr("at least 19, when fragment 1 is sent"));
}

TEST(StepsCheck, RunWithoutAnEndIsFine) {
  EXPECT_EQ(Mistake(Config(0, 20, 4)), "");
  EXPECT_THAT(StepsAdvice(Config(0, 20, 4)), IsEmpty());
}

TEST(StepsAdvice, StepsBehindTheLastSendAreCounted) {
  EXPECT_THAT(StepsAdvice(Config(10, 4, 1)),
              ElementsAre(HasSubstr("the last 2 steps come after the last send, at step 8")));
  EXPECT_THAT(StepsAdvice(Config(12, 4, 1)), IsEmpty());
  EXPECT_THAT(StepsAdvice(Config(1000, 20, 4)), IsEmpty());
  EXPECT_THAT(StepsAdvice(Config(1003, 20, 4)), ElementsAre(HasSubstr("the last 3 steps")));
}

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
