#include "formats/file_kind.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <string_view>

#include "formats/named_file.h"
#include "tests/formats/temporary_folder.h"

namespace causeway::formats {
namespace {

using namespace std::string_view_literals;
using testing::HasSubstr;

std::span<const std::byte> Bytes(const std::string& text) { return std::as_bytes(std::span<const char>(text)); }

// The kind of a file that begins so, in the words of a message.
std::string NameOf(std::string_view begin, std::string_view end = "") {
  const std::string file = std::string(begin).append(600, '\1').append(end);
  const FileKind* kind = RecognizeFile(Bytes(file));
  return kind == nullptr ? "none" : std::string(kind->name);
}

TEST(FileKind, CompressedFilesAndArchivesAreKnownByTheirFirstBytes) {
  EXPECT_EQ(NameOf("\x1F\x8B\x08\x08\x91\xB2\x6A\x69\x02\xFF"sv), "a gzip file (.gz)");
  EXPECT_EQ(NameOf("\x28\xB5\x2F\xFD\x24\x05"sv), "a zstd file (.zst)");
  EXPECT_EQ(NameOf("\x5D\x2A\x4D\x18\x04\0\0\0"sv), "a zstd file (.zst)") << "as parallel compressors begin one";
  EXPECT_EQ(NameOf("\xFD"
                   "7zXZ\0\0\4"sv),
            "an xz file (.xz)");
  EXPECT_EQ(NameOf("BZh91AY&SY"sv), "a bzip2 file (.bz2)");
  EXPECT_EQ(NameOf("\x04\x22\x4D\x18\x64\x40"sv), "an lz4 file (.lz4)");
  EXPECT_EQ(NameOf("PK\3\4\x14\0\0\0\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\5\0\0\0a.txt"sv), "a zip archive");
  EXPECT_EQ(NameOf(std::string("tokens/train.bin").append(241, '\0') + "ustar"), "a tar archive (.tar)");
}

TEST(FileKind, FilesOfOtherLibrariesAreKnown) {
  EXPECT_EQ(NameOf("PAR1\x15\4"sv), "a Parquet file (.parquet)");
  EXPECT_EQ(NameOf("\x89HDF\r\n\x1A\n"sv), "an HDF5 file (.h5)");
  EXPECT_EQ(NameOf("\x93NUMPY\1\0v\0"sv), "a NumPy array (.npy)");
  EXPECT_EQ(NameOf("PK\3\4\x2D\0\0\0\0\0\0\0!\0\0\0\0\0\0\0\0\0\0\0\0\0\7\0\0\0ids.npy"sv),
            "an archive of NumPy arrays (.npz)");
  EXPECT_EQ(NameOf("PK\3\4\0\0\x08\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x0E\0\0\0model/data.pkl"sv),
            "a file of torch.save (a zip archive)");
  EXPECT_THAT(NameOf("\x80\4\x95\x15\0\0\0\0\0\0\0]"sv), HasSubstr("a pickle of Python"));
  EXPECT_THAT(NameOf("\x80\3]q\0"sv, "e."), HasSubstr("a pickle of Python"));
  EXPECT_EQ(NameOf("\xFF\xFF\xFF\xFF\xF0\0\0\0\x10\0\0\0"sv), "an Arrow file, as Hugging Face's datasets keep them");
  EXPECT_EQ(NameOf("\x40\0\0\0\0\0\0\0{\"a\":"sv), "a safetensors file");
  EXPECT_EQ(NameOf("SQLite format 3\0"sv), "an SQLite database");
}

TEST(FileKind, FilesThatStandForAnotherAreKnown) {
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4\n";
  ASSERT_NE(RecognizeFile(Bytes(pointer)), nullptr);
  EXPECT_TRUE(RecognizeFile(Bytes(pointer))->stands_in);
  EXPECT_EQ(NameOf("\n<!DOCTYPE html>\n<html>"), "a web page (HTML)");
  EXPECT_EQ(NameOf("<HTML><head>"), "a web page (HTML)");
  EXPECT_THAT(NameOf("<?xml version=\"1.0\"?>\n<Error><Code>AccessDenied</Code>"), HasSubstr("an object store"));
  EXPECT_EQ(NameOf("<?xml version=\"1.0\"?>\n<corpus>"), "none");
}

TEST(FileKind, TextsAndTokensAreOfNoKnownKind) {
  for (const char* text :
       {"It rains.", "{\"text\": \"\"}", "[1, 2]", "PK", "BZh9 is a name", "version 2", "<a>", "GIF"}) {
    EXPECT_EQ(NameOf(text), "none") << text;
  }
  EXPECT_EQ(RecognizeFile({}), nullptr);
  std::mt19937 random(1);
  std::string tokens(512, '\0');
  for (int i = 0; i < 100'000; ++i) {
    for (size_t at = 0; at < 16; ++at) tokens[at] = static_cast<char>(random());
    EXPECT_EQ(RecognizeFile(Bytes(tokens)), nullptr) << tokens.substr(0, 16);
  }
}

TEST(TextFile, OneOfWindowsIsReadWithoutItsMarkAndOneOfAnotherKindIsNamed) {
  const TemporaryFolder folder;
  EXPECT_EQ(*ReadTextFile(folder.Write("a", "\xEF\xBB\xBFlayers"), 100), "layers");
  const auto error = [&](std::string_view contents) {
    return std::string(ReadTextFile(folder.Write("a", contents), 100).status().message());
  };
  EXPECT_THAT(error("\xFF\xFEl\0a\0"sv), HasSubstr("a: expected text, got text in UTF-16: write it as UTF-8: iconv"));
  EXPECT_THAT(error("<!doctype html>"), HasSubstr("expected text, got a web page (HTML): it came instead of the file"));
}

}  // namespace
}  // namespace causeway::formats
