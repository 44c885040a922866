#include "server/run/waiters.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace causeway::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class WaitersTest : public ::testing::Test {
 protected:
  Waiter WaiterOf(const std::string& name) {
    return {owner_, [this, name](const absl::Status& status) {
              answers_.push_back(absl::StrCat(name, ": ", absl::StatusCodeToString(status.code())));
              messages_.push_back(std::string(status.message()));
            }};
  }

  std::shared_ptr<int> owner_ = std::make_shared<int>();
  std::vector<std::string> answers_, messages_;
};

TEST_F(WaitersTest, OnlyWhoWaitsForThatIsWokenAndOnce) {
  Waiters waiters;
  waiters.Add({1, 0, 4}, WaiterOf("a"));
  waiters.Add({1, 0, 5}, WaiterOf("b"));
  waiters.Add({1, 1, 4}, WaiterOf("c"));
  waiters.Wake({1, 0, 4});
  waiters.Wake({1, 0, 4});
  EXPECT_THAT(answers_, ElementsAre("a: OK"));
  waiters.WakeFragment(0);
  EXPECT_THAT(answers_, ElementsAre("a: OK", "b: OK"));
  waiters.WakeAll();
  EXPECT_THAT(answers_, ElementsAre("a: OK", "b: OK", "c: OK"));
  EXPECT_EQ(waiters.size(), 0u);
}

TEST_F(WaitersTest, NewGenerationAnswersWhoWaitsForAnEarlierOne) {
  Waiters waiters;
  waiters.Add({1, 0, 0}, WaiterOf("a"));
  waiters.Add({2, 0, 0}, WaiterOf("b"));
  waiters.BeginGeneration(2);
  EXPECT_THAT(answers_, ElementsAre("a: ABORTED"));
  EXPECT_THAT(messages_, ElementsAre("the model is generation 2 now; retry"));
  EXPECT_EQ(waiters.size(), 1u);
  waiters.WakeAll();
}

TEST_F(WaitersTest, WhoIsLetGoOfWithoutAnAnswerIsToldToRetry) {
  {
    Waiters waiters;
    waiters.Add({1, 0, 0}, WaiterOf("a"));
  }
  EXPECT_THAT(answers_, ElementsAre("a: ABORTED"));
  { const Waiter never_added = WaiterOf("b"); }
  EXPECT_THAT(answers_, ElementsAre("a: ABORTED"));
}

TEST_F(WaitersTest, WhoseOwnerIsGoneIsForgotten) {
  Waiters waiters;
  waiters.Add({1, 0, 0}, WaiterOf("a"));
  owner_ = std::make_shared<int>();
  waiters.Add({1, 0, 0}, WaiterOf("b"));
  EXPECT_EQ(waiters.size(), 1u);
  EXPECT_THAT(answers_, IsEmpty());
  waiters.WakeAll();
  EXPECT_THAT(answers_, ElementsAre("b: OK"));
}

TEST_F(WaitersTest, WhoIsWokenMayWaitAgainAtOnce) {
  Waiters waiters;
  waiters.Add({1, 0, 0}, Waiter(owner_, [&](const absl::Status&) { waiters.Add({1, 0, 0}, WaiterOf("again")); }));
  waiters.Wake({1, 0, 0});
  EXPECT_THAT(answers_, IsEmpty());
  EXPECT_EQ(waiters.size(), 1u);
}

}  // namespace
}  // namespace causeway::server
