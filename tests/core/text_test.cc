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

TEST(Printable, ControlCharactersAreWrittenAsEscapesButLinesStay) {
  EXPECT_EQ(Printable("eu\r"), "eu\\r");
  EXPECT_EQ(Printable("\x1b[2Jgone\x7f\a"), "\\x1b[2Jgone\\x7f\\x07");
  EXPECT_EQ(Printable(std::string("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(Printable("one\n\ttwo, θ and 日"), "one\n\ttwo, θ and 日");
  EXPECT_EQ(Printable("\xc2\x9b"
                      "2J"),
            "\\x9b2J")
      << "a terminal takes U+009B for the beginning of a command";
}

TEST(Quoted, ShowsLineBreaksToo) { EXPECT_EQ(Quoted("eu\r\n\t"), "'eu\\r\\n\\t'"); }

}  // namespace
}  // namespace causeway::core
