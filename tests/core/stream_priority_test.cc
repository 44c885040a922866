#include "core/stream_priority.h"

#include <gtest/gtest.h>

namespace causeway::core {
namespace {

TEST(StreamPriority, GradientsComeBeforeTheStepAndTheStepBeforeSyncs) {
  EXPECT_EQ(PriorityOf(StreamPurpose::kGradients, 0, -5), -5);  // the lower number is the greater priority
  EXPECT_EQ(PriorityOf(StreamPurpose::kStep, 0, -5), -3);
  EXPECT_EQ(PriorityOf(StreamPurpose::kSync, 0, -5), 0);
  EXPECT_EQ(PriorityOf(StreamPurpose::kStep, 0, -2), -1);
}

TEST(StreamPriority, OfTwoSyncsHaveTheLeastAlone) {
  EXPECT_EQ(PriorityOf(StreamPurpose::kGradients, 0, -1), -1);
  EXPECT_EQ(PriorityOf(StreamPurpose::kStep, 0, -1), -1);
  EXPECT_EQ(PriorityOf(StreamPurpose::kSync, 0, -1), 0);
}

TEST(StreamPriority, OfOneAllHaveIt) {
  for (const StreamPurpose purpose : {StreamPurpose::kGradients, StreamPurpose::kStep, StreamPurpose::kSync}) {
    EXPECT_EQ(PriorityOf(purpose, 0, 0), 0);
  }
}

}  // namespace
}  // namespace causeway::core
