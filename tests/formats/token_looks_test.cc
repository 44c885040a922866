#include "formats/token_looks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace causeway::formats {
namespace {

// Tokens of a text, in which small numbers are frequent, as those of a tokenizer are.
std::vector<int64_t> TokensOfAText(int64_t count, int64_t vocabulary) {
  std::mt19937 random(7);
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < count; ++i) {
    const double share = std::uniform_real_distribution<>(0, 1)(random);
    tokens.push_back(static_cast<int64_t>(std::pow(static_cast<double>(vocabulary), share)) - 1);
  }
  return tokens;
}

template <typename Value>
std::string As(const std::vector<int64_t>& tokens, bool big_endian = false) {
  std::string bytes;
  for (const int64_t token : tokens) {
    const auto value = static_cast<Value>(token);
    std::string one(reinterpret_cast<const char*>(&value), sizeof value);
    bytes += big_endian ? std::string(one.rbegin(), one.rend()) : one;
  }
  return bytes;
}

// The upper half of a float32: bfloat16, cut off.
std::string AsBfloat16(const std::vector<int64_t>& tokens) {
  std::string bytes;
  for (const int64_t token : tokens) bytes += As<float>({token}).substr(2);
  return bytes;
}

std::string_view Look(const std::string& bytes) { return LookOfTokens(std::as_bytes(std::span<const char>(bytes))); }

TEST(TokenLooks, EachTypeIsToldForFewTokensAndManyAndForEachVocabulary) {
  for (const int64_t vocabulary : {65, 256, 1'000, 50'257, 128'256}) {
    for (const int64_t count : {8, 600, 20'001}) {
      const std::vector<int64_t> tokens = TokensOfAText(count, vocabulary);
      const auto where = testing::Message() << count << " tokens below " << vocabulary;
      EXPECT_EQ(Look(As<int64_t>(tokens)), "int64") << where;
      EXPECT_EQ(Look(As<int64_t>(tokens, true)), "big-endian int64") << where;
      EXPECT_EQ(Look(As<double>(tokens)), "float64") << where;
      EXPECT_EQ(Look(As<double>(tokens, true)), "big-endian float64") << where;
      EXPECT_EQ(Look(As<float>(tokens)), "float32") << where;
      EXPECT_EQ(Look(As<float>(tokens, true)), "big-endian float32") << where;
      if (vocabulary > 65'536) continue;
      EXPECT_EQ(Look(As<int32_t>(tokens)), "uint32") << where;
      EXPECT_EQ(Look(As<int32_t>(tokens, true)), "big-endian uint32") << where;
      EXPECT_EQ(Look(As<uint16_t>(tokens)), "") << where;
      if (count < 600) continue;
      EXPECT_EQ(Look(As<uint16_t>(tokens, true)), "big-endian uint16") << where;
      EXPECT_EQ(Look(AsBfloat16(TokensOfAText(count, 256))), "bfloat16") << where;
    }
  }
}

TEST(TokenLooks, PaddingBelowZeroIsThatOfAWiderType) {
  EXPECT_EQ(Look(As<int64_t>({5, 9, -100, -1})), "int64");
  EXPECT_EQ(Look(As<int32_t>({5, 9, -100, -1})), "uint32");
  EXPECT_EQ(Look(As<float>({5, 9, -100, -1})), "float32");
}

TEST(TokenLooks, TypesAreToldOfEvenlySpreadTokensToo) {
  std::vector<int64_t> tokens, large, bytes;
  std::mt19937 random(3);
  for (int64_t i = 0; i < 5'000; ++i) tokens.push_back(static_cast<int64_t>(random() % 50'257));
  for (int64_t i = 0; i < 5'000; ++i) large.push_back(static_cast<int64_t>(random() % 128'256));
  for (int64_t i = 0; i < 5'000; ++i) bytes.push_back(static_cast<int64_t>(random() % 65));
  EXPECT_EQ(Look(As<uint16_t>(tokens)), "");
  EXPECT_EQ(Look(As<uint16_t>(tokens, true)), "big-endian uint16");
  EXPECT_EQ(Look(As<uint32_t>(large)), "uint32") << "where each second uint16 is 0 or 1";
  EXPECT_EQ(Look(As<uint32_t>(large, true)), "big-endian uint32");
  EXPECT_EQ(Look(As<float>(large, true)), "big-endian float32");
  EXPECT_EQ(Look(As<uint16_t>(bytes)), "");
  EXPECT_EQ(Look(As<uint8_t>(bytes)), "uint8");
}

TEST(TokenLooks, TextAndZerosAreToldAndEvenlySpreadTokensAreNot) {
  std::string text;
  while (text.size() < 100) text += "A line of text; é.\n";
  EXPECT_EQ(Look(text), "text");
  EXPECT_EQ(Look(std::string(64, '\0')), "zeros alone");
  std::vector<int64_t> all, some;
  for (int64_t i = 0; i < 65'536; ++i) all.push_back(i * 7 % 65'536);
  for (int64_t i = 0; i < 1'000; ++i) some.push_back(60'000 + i);
  EXPECT_EQ(Look(As<uint16_t>(all)), "");
  EXPECT_EQ(Look(As<uint16_t>(some)), "");
  EXPECT_EQ(Look(As<uint16_t>(std::vector<int64_t>(1'000, 50'256))), "") << "one token";
}

TEST(TokenLooks, TokensOfALargeVocabularyFitInOneOrderOfBytesAlone) {
  const std::string swapped = As<uint32_t>(TokensOfAText(100, 128'256), true);
  const auto bytes = std::as_bytes(std::span<const char>(swapped));
  EXPECT_TRUE(FitsBigEndian(bytes, 4, 128'256));
  EXPECT_FALSE(FitsBigEndian(bytes, 4, 1'000));
  EXPECT_FALSE(FitsBigEndian(bytes.first(16), 4, 128'256)) << "too few to tell";
}

}  // namespace
}  // namespace causeway::formats
