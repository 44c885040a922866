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

TEST(Printable, WhatTurnsTheDirectionOfWritingOrIsNoUtf8IsShownToo) {
  EXPECT_EQ(Printable("a\xE2\x80\xAE"
                      "b\xE2\x81\xA9"
                      "c\xE2\x80\xA8"),
            "a\\u202eb\\u2069c\\u2028");
  EXPECT_EQ(Printable("a\x9B"
                      "b\xE2\x80"),
            "a\\x9bb\\xe2\\x80");
}

TEST(InOneLine, KeepsNoLineBreak) { EXPECT_EQ(InOneLine("one\n[error] two\tθ"), "one\\n[error] two\\tθ"); }

TEST(Quoted, ShowsLineBreaksToo) { EXPECT_EQ(Quoted("eu\r\n\t"), "'eu\\r\\n\\t'"); }

TEST(ByteOrderMark, IsTakenOffOnceAndAtTheBeginningAlone) {
  EXPECT_EQ(WithoutByteOrderMark("\xEF\xBB\xBF\xEF\xBB\xBFx"), "\xEF\xBB\xBFx");
  EXPECT_EQ(WithoutByteOrderMark("x\xEF\xBB\xBF"), "x\xEF\xBB\xBF");
  EXPECT_EQ(WithoutByteOrderMark("\xEF\xBB"), "\xEF\xBB");
}

TEST(Utf8, EndsWhereACharacterIsNone) {
  for (const char* text : {"", "plain text, longer than eight bytes", "é日本𝄞", "\xF4\x8F\xBF\xBF", "\xED\x9F\xBF"}) {
    EXPECT_EQ(Utf8Bytes(text), std::string_view(text).size()) << text;
  }
  for (const char* text :
       {"\xFF", "\xC0\x80", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xC3", "\x80", "\xE9t"}) {
    EXPECT_EQ(Utf8Bytes(std::string("eleven of it") + text), 12u) << text;
  }
}

TEST(Utf8, APartMayCutCharactersAtBothEnds) {
  const std::string text = "日本語";
  EXPECT_EQ(Utf8BytesOfPart(text.substr(1, 7)), 7u);
  EXPECT_EQ(Utf8BytesOfPart(text.substr(2, 5)), 5u);
  EXPECT_EQ(Utf8BytesOfPart("ab\xFF"), 2u);
  EXPECT_EQ(Utf8BytesOfPart("\x80\x80\x80\x80"), 3u) << "no character has so long a rest";
}

TEST(PlaceInText, CountsLinesAndCharacters) {
  EXPECT_EQ(PlaceInText("a\nüb", 4).line, 2u);
  EXPECT_EQ(PlaceInText("a\nüb", 4).column, 2u);
}

}  // namespace
}  // namespace causeway::core
