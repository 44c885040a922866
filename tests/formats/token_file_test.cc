#include "formats/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <vector>

#include "tests/formats/temporary_folder.h"

namespace causeway::formats {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;

std::string Bin(std::initializer_list<uint16_t> tokens) {
  std::string bytes(tokens.size() * 2, '\0');
  std::memcpy(bytes.data(), std::data(tokens), bytes.size());
  return bytes;
}

std::string LlmcHeader(int32_t version, int32_t tokens, int32_t magic = 20240520) {
  const int32_t fields[256] = {magic, version, tokens};
  return std::string(reinterpret_cast<const char*>(fields), sizeof fields);
}

std::vector<uint32_t> Tokens(const absl::StatusOr<TokenFile>& file) {
  if (!file.ok()) ADD_FAILURE() << file.status();
  std::vector<uint32_t> tokens;
  for (int64_t i = 0; file.ok() && i < file->size(); ++i) tokens.push_back((*file)[i]);
  return tokens;
}

std::string ErrorOf(const std::string& path, int64_t vocab_size) {
  const absl::StatusOr<TokenFile> file = TokenFile::Open(path, vocab_size);
  return file.ok() ? "accepted" : std::string(file.status().message());
}

TEST(TokenFile, BytesOfATextAreTokens) {
  const TemporaryFolder folder;
  EXPECT_THAT(Tokens(TokenFile::Open(folder.Write("a.txt", "Hi\xff"), 256)), ElementsAre('H', 'i', 255));
}

TEST(TokenFile, NanoGptShardIsRawTokens) {
  const TemporaryFolder folder;
  EXPECT_THAT(Tokens(TokenFile::Open(folder.Write("a.bin", Bin({0, 999, 7})), 1000)), ElementsAre(0, 999, 7));
}

TEST(TokenFile, LlmcShardHasAHeader) {
  const TemporaryFolder folder;
  const std::string path = folder.Write("a.bin", LlmcHeader(1, 2) + Bin({5, 65535}));
  EXPECT_THAT(Tokens(TokenFile::Open(path, 65536)), ElementsAre(5, 65535));
}

TEST(TokenFile, FolderIsItsShardsInOrderOfTheirNames) {
  const TemporaryFolder folder;
  folder.Write("b.bin", LlmcHeader(1, 2) + Bin({3, 4}));
  folder.Write("a.bin", Bin({1, 2}));
  folder.Write("c.bin", Bin({5}));
  folder.Write("readme.txt", "not data");
  absl::StatusOr<TokenFile> file = TokenFile::Open(folder.path(), 10);
  EXPECT_THAT(Tokens(file), ElementsAre(1, 2, 3, 4, 5));
  const TokenFile moved = *std::move(file);
  EXPECT_EQ(moved[4], 5u);
}

TEST(TokenFile, TokenBeyondTheVocabularyIsNamedByPosition) {
  const TemporaryFolder folder;
  EXPECT_THAT(ErrorOf(folder.Write("a.bin", Bin({1, 9, 10})), 10),
              EndsWith("a.bin: token 2: expected less than vocab_size 10, got 10"));
}

TEST(TokenFile, MissingEmptyAndUnreadableFilesAreErrors) {
  const TemporaryFolder folder;
  EXPECT_THAT(ErrorOf(folder / "none.txt", 256), AllOf(HasSubstr("none.txt"), HasSubstr("No such file")));
  EXPECT_THAT(ErrorOf(folder.Write("empty.txt", ""), 256), EndsWith("empty.txt: expected tokens, got an empty file"));
  EXPECT_THAT(ErrorOf(folder.Write("empty.bin", ""), 256), EndsWith("empty.bin: expected tokens, got an empty file"));
  EXPECT_THAT(ErrorOf(folder.Write("header.bin", LlmcHeader(1, 0)), 256),
              EndsWith("header.bin: expected tokens, got a header alone"));
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(ErrorOf(folder / "pipe", 256), EndsWith("pipe: expected a regular file, got a pipe or device"));
  std::filesystem::create_directory(folder / "sub");
  EXPECT_THAT(ErrorOf(folder / "sub", 256), EndsWith("sub: expected .bin files in the folder, got none"));
  if (geteuid() == 0) return;  // who may read everything cannot be refused
  ASSERT_EQ(chmod(folder.Write("secret.txt", "x").c_str(), 0), 0);
  EXPECT_THAT(ErrorOf(folder / "secret.txt", 256), HasSubstr("Permission denied"));
}

TEST(TokenFile, LlmcShardOfUint32TokensIsRefusedByName) {
  const TemporaryFolder folder;
  const std::string two_tokens = Bin({5, 0, 57345, 1});
  const std::string path = folder.Write("b.bin", LlmcHeader(7, 2, 20240801) + two_tokens);
  folder.Write("a.bin", Bin({1, 2}));
  for (const std::string& data : {path, folder.path()}) {
    const absl::Status status = TokenFile::Open(data, 128256).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(path), HasSubstr("expected uint16 tokens"),
                      EndsWith("magic 20240801, version 7: uint32 tokens, which are not read yet")));
  }
}

TEST(TokenFile, OtherFilesOfLlmcAreRefusedAndTokensThatLookALittleLikeThemAreNot) {
  const TemporaryFolder folder;
  EXPECT_THAT(ErrorOf(folder.Write("eval.bin", LlmcHeader(1, 2, 20240522) + Bin({1, 2})), 65536),
              EndsWith("got llm.c's header of magic 20240522, version 1, which is of no file of tokens that is known"));
  std::string header = LlmcHeader(1, 2, 20240522);
  header[1000] = 1;  // no header of llm.c has a field there
  EXPECT_EQ(Tokens(TokenFile::Open(folder.Write("tokens.bin", header), 65536)).size(), 512u);
  EXPECT_EQ(Tokens(TokenFile::Open(folder.Write("other.bin", LlmcHeader(1, 2, 20250101)), 65536)).size(), 512u);
}

TEST(TokenFile, SizesThatDoNotFitAreErrors) {
  const TemporaryFolder folder;
  EXPECT_THAT(ErrorOf(folder.Write("a.txt", "text"), 255),
              EndsWith("a.txt: expected a vocab_size of 256 or more for bytes as tokens, got 255"));
  EXPECT_THAT(ErrorOf(folder.Write("odd.bin", "abc"), 65536),
              EndsWith("odd.bin: expected 2 bytes for each token, got 3 bytes"));
  EXPECT_THAT(ErrorOf(folder.Write("short.bin", LlmcHeader(1, 3) + Bin({1, 2})), 256),
              EndsWith("short.bin: expected 3 tokens of 2 bytes, as its header says, got 4 bytes"));
  EXPECT_THAT(ErrorOf(folder.Write("negative.bin", LlmcHeader(1, -1)), 256), HasSubstr("expected -1 tokens"));
  EXPECT_THAT(ErrorOf(folder.Write("new.bin", LlmcHeader(7, 1) + Bin({1})), 256),
              EndsWith("new.bin: expected a header of version 1, got 7"));
}

}  // namespace
}  // namespace causeway::formats
