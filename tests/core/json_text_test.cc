#include "core/json_text.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace causeway::core {
namespace {

std::string ErrorOf(std::string_view text) {
  return std::string(ParseJson<nlohmann::json>(text, "costs.json").status().message());
}

std::string Repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

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

TEST(JsonText, ATextThatIsTooDeepIsRefusedWhereItIs) {
  const std::string deepest = Repeated("[", kDeepestJson) + Repeated("]", kDeepestJson);
  EXPECT_TRUE(ParseJson<nlohmann::json>(deepest, "costs.json").ok());
  const std::string got = "more than 64 lists and objects in each other";
  EXPECT_EQ(ErrorOf("[\n" + deepest + "]"), "costs.json: expected JSON, line 2, column 64: got " + got);
  EXPECT_EQ(ErrorOf(Repeated("{\"a\":", 100'000)), "costs.json: expected JSON, line 1, column 321: got " + got);
  EXPECT_EQ(ErrorOf("{x" + Repeated("[", 100'000)), "costs.json: expected JSON, line 1, column 2: got x");
  EXPECT_TRUE(ParseJson<nlohmann::json>("\"\\\"" + Repeated("[", 100) + "\"", "costs.json").ok()) << "within a text";
}

TEST(JsonText, AValueIsShownCutAndInOneLine) {
  EXPECT_EQ(ShownJson(nlohmann::json{{"a", "\xE2\x80\xAE\n"}}), "{\"a\":\"\\u202e\\n\"}");
  EXPECT_EQ(ShownJson(nlohmann::json(std::string(5'000, 'x'))).size(), 200u);
}

}  // namespace
}  // namespace causeway::core
