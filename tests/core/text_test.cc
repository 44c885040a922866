#include "core/text.h"

#include <gtest/gtest.h>

namespace causeway::core {
namespace {

TEST(Clipped, TextThatFitsStaysAsItIs) {
  EXPECT_EQ(Clipped("", 3), "");
  EXPECT_EQ(Clipped("leaves", 6), "leaves");
}

TEST(Clipped, LongerOneEndsAtTheBorderOfACharacter) {
  EXPECT_EQ(Clipped("leaves!", 6), "lea…");
  EXPECT_EQ(Clipped("aäöü and so on", 8), "aäö…");
  EXPECT_EQ(Clipped("aäöü and so on", 7), "aä…") << "half of a character is none";
  EXPECT_EQ(Clipped("日本語です", 7), "日…");
  EXPECT_EQ(Clipped("日本", 3), "…");
}

TEST(Clipped, BytesThatAreNoCharactersAreCutTo) { EXPECT_EQ(Clipped(std::string(100, '\x80'), 50), "…"); }

}  // namespace
}  // namespace causeway::core
