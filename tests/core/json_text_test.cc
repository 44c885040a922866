#include "core/json_text.h"

#include <gtest/gtest.h>

namespace causeway::core {
namespace {

std::string ErrorOf(std::string_view text) { return std::string(JsonError(text, "costs.json").message()); }

TEST(JsonText, FaultIsNamedByLineColumnAndCause) {
  const std::string begin = "costs.json: expected JSON, line 2, column ";
  const auto error = [](std::string_view value) { return ErrorOf("{\"a\": 1,\n \"é\": " + std::string(value) + "}"); };
  EXPECT_EQ(error("NaN"), begin + "7: got NaN, which JSON does not have");
  EXPECT_EQ(error("-Infinity"), begin + "7: got -Infinity, which JSON does not have");
  EXPECT_EQ(error("1 // one"), begin + "9: got a comment, which JSON does not have");
  EXPECT_EQ(error("1, /* two */"), begin + "10: got a comment, which JSON does not have");
  EXPECT_EQ(error("1, "), begin + "10: got a comma before }");
  EXPECT_EQ(error("[1, 2,]"), begin + "13: got a comma before ]");
  EXPECT_EQ(error("True"), begin + "7: got True, which is Python's; JSON's is true");
  EXPECT_EQ(error("None"), begin + "7: got None, which is Python's; JSON's is null");
  EXPECT_EQ(error("'x'"), begin + "7: got a single quote; JSON has double ones");
  EXPECT_EQ(error("1e999"), begin + "7: got 1e999, which is beyond the range of float64");
  EXPECT_EQ(error("0x10"), begin + "7: got 0x10");
  EXPECT_EQ(error("\"\xFF\""), begin + "8: got byte 0xff, which is no UTF-8");
  EXPECT_EQ(error("\"\\ud83d\""), begin + "8: got \\ud83d, half of a character (a lone surrogate)");
  EXPECT_EQ(error("\"a\nb\""), begin + "9: got the control character 0x0a");
}

TEST(JsonText, ATextThatEndsTooEarlyAndAnEmptyOneAreNamedSo) {
  EXPECT_EQ(ErrorOf("{\"a\": 1"), "costs.json: expected JSON, line 1, column 8: got the end of the text");
  EXPECT_EQ(ErrorOf(" \n"), "costs.json: expected JSON, line 2, column 1: got an empty text");
  EXPECT_EQ(ErrorOf(""), "costs.json: expected JSON, line 1, column 1: got an empty text");
}

}  // namespace
}  // namespace causeway::core
