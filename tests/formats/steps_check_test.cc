#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/run_advice.h"

namespace causeway::formats {
namespace {

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

}  // namespace
}  // namespace causeway::formats
