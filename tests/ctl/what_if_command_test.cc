#include "ctl/what_if_command.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

namespace causeway::ctl {
namespace {

using ::testing::HasSubstr;

plan::Work OneStep() {
  return {.speeds = {{"cpu", 100}, {"link node", 1}},
          .steps = {{{.name = "forward", .seconds = 0.006, .uses = {{"cpu", 1}}},
                     {.name = "gather", .seconds = 0.004, .uses = {{"link node", 1}}}}},
          .seconds_per_step = 0.01};
}

TEST(WhatIfCommand, SaysWhatEachBuysAndWhatBindsThen) {
  const auto text = WhatIfText(OneStep(), 2, {{"link node", 10}, {"cpu", 2}});
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(
      *text,
      HasSubstr("a step takes 10 ms in 1 traced steps, simulated 10 ms; it is bound by cpu 60.0 %, link node 40.0 %"));
  EXPECT_THAT(*text, HasSubstr("cpu           +42.9 %, then link node binds"));
  EXPECT_THAT(*text, HasSubstr("link node    × 10          6.4 ms,  +56.2 % more speed, then cpu binds"));
}

TEST(WhatIfCommand, NamesTheFactorThatIsNotOne) {
  EXPECT_EQ(ParseFactors("cpu=2,link node=10")->size(), 2u);
  EXPECT_EQ(std::string(ParseFactors("cpu=fast").status().message()),
            "plan what-if: --faster: expected RESOURCE=FACTOR above 0, got cpu=fast");
  EXPECT_EQ(std::string(WhatIfText(OneStep(), 2, {{"gpu", 2}}).status().message()),
            "plan what-if: --faster: expected a resource of the trace, cpu, link node, got gpu");
}

}  // namespace
}  // namespace causeway::ctl
