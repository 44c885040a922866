#include <gtest/gtest.h>

#include "core/check.h"
#include "formats/yaml_message.h"

namespace causeway::formats {
namespace {

TEST(LevelsYaml, LevelsOfASiteAndTheWanAreRead) {
  const auto levels = ParseLevelsYaml(
      "levels:\n"
      "  - {name: pair, of: 2, gbyte_per_s: 200, latency_us: 2}\n"
      "  - {name: node, of: 4, gbyte_per_s: 50}\n"
      "  - {name: wan, of: 3, mbit_per_s: 200, rtt_ms: 50}\n",
      "l.yaml");
  ASSERT_TRUE(levels.ok()) << levels.status();
  EXPECT_EQ(levels->ranks(), 8);
  EXPECT_EQ(levels->site[0], (core::LinkLevel{.name = "pair", .of = 2, .bytes_per_s = 200e9, .latency_s = 2e-6}));
  EXPECT_EQ(levels->site[1].latency_s, 0);
  EXPECT_EQ(*levels->wan, (core::LinkLevel{.name = "wan", .of = 3, .bytes_per_s = 25e6, .latency_s = 25e-3}));
}

std::string Refusal(const std::string& levels) {
  return std::string(ParseLevelsYaml("levels:\n" + levels, "l.yaml").status().message());
}

TEST(LevelsYaml, WhatIsWrongIsToldWithLineKeyAndExpectation) {
  EXPECT_EQ(Refusal("  - {name: a, of: 0, gbyte_per_s: 1}\n"), "l.yaml:2: levels[0].of: expected 1 to 1000000, got 0");
  EXPECT_EQ(Refusal("  - {name: a, of: 2}\n"),
            "l.yaml:2: levels[0]: expected gbyte_per_s (within a site) or mbit_per_s (between sites), got neither");
  EXPECT_EQ(Refusal("  - {name: a, of: 2, gbyte_per_s: 1, rtt_ms: 3}\n"),
            "l.yaml:2: levels[0]: expected latency_us beside gbyte_per_s, got rtt_ms");
  EXPECT_EQ(Refusal("  - {name: a, of: 2, gbyte_per_s: 1}\n  - {name: a, of: 2, gbyte_per_s: 1}\n"),
            "l.yaml:3: levels[1].name: expected each level's name once, got a again");
  EXPECT_EQ(Refusal("  - {name: w, of: 2, mbit_per_s: 1}\n  - {name: a, of: 2, gbyte_per_s: 1}\n"),
            "l.yaml:2: levels[0]: expected mbit_per_s (between sites) in the last level alone, got it before");
  EXPECT_EQ(Refusal("  - {name: w, of: 2, mbit_per_s: 1}\n"),
            "l.yaml:1: levels: expected 1 to 8 levels, with gbyte_per_s in the first, got 1 levels, 0 of them within a "
            "site");
  EXPECT_EQ(Refusal("  - {name: a, of: 1000000, gbyte_per_s: 1}\n  - {name: b, of: 2, gbyte_per_s: 1}\n"),
            "l.yaml:3: levels[1].of: expected 1 to 1000000 (ranks of a site, all levels together), got 2000000");
  EXPECT_EQ(Refusal("  - {name: a, of: 2, gbyte: 1}\n"),
            "l.yaml:2: levels[0].gbyte: expected one of name, of, gbyte_per_s, latency_us, mbit_per_s, rtt_ms, got an "
            "unknown key");
}

TEST(LevelsYaml, TheExampleIsRight) {
  const auto levels = ReadLevelsYaml(EXAMPLE_LEVELS);
  ASSERT_TRUE(levels.ok()) << levels.status();
  EXPECT_EQ(levels->ranks(), 384);
}

}  // namespace
}  // namespace causeway::formats
