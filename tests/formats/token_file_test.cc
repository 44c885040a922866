#include "formats/token_file.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <map>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/digest.h"
#include "tests/folders.h"
#include "tests/formats/run_python.h"
#include "tests/formats/temporary_folder.h"

namespace causeway::formats {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;

template <typename Token>
std::string BytesOf(std::initializer_list<Token> tokens) {
  return std::string(reinterpret_cast<const char*>(std::data(tokens)), tokens.size() * sizeof(Token));
}

template <typename Token>
std::string BytesOf(const std::vector<Token>& tokens) {
  return std::string(reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(Token));
}

std::string Bin(std::initializer_list<uint16_t> tokens) { return BytesOf(tokens); }
std::string WideBin(std::initializer_list<uint32_t> tokens) { return BytesOf(tokens); }

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

std::string TextOf(const absl::StatusOr<TokenFile>& file) {
  std::string text;
  for (const uint32_t token : Tokens(file)) text.push_back(static_cast<char>(token));
  return text;
}

std::string ErrorOf(const std::string& path, int64_t vocab_size, int64_t token_bytes = 2) {
  const absl::StatusOr<TokenFile> file = TokenFile::Open(path, {vocab_size, token_bytes});
  return file.ok() ? "accepted" : std::string(file.status().message());
}

TEST(TokenFile, BytesOfATextAreTokens) {
  const TemporaryFolder folder;
  EXPECT_THAT(Tokens(TokenFile::Open(folder.Write("a.txt", "Hié"), {256})), ElementsAre('H', 'i', 0xc3, 0xa9));
}

TEST(TokenFile, NanoGptShardIsRawTokens) {
  const TemporaryFolder folder;
  EXPECT_THAT(Tokens(TokenFile::Open(folder.Write("a.bin", Bin({0, 999, 7})), {1000})), ElementsAre(0, 999, 7));
}

TEST(TokenFile, LlmcShardHasAHeader) {
  const TemporaryFolder folder;
  const std::string path = folder.Write("a.bin", LlmcHeader(1, 2) + Bin({5, 65535}));
  EXPECT_THAT(Tokens(TokenFile::Open(path, {65536})), ElementsAre(5, 65535));
}

TEST(TokenFile, FolderIsItsShardsInOrderOfTheirNames) {
  const TemporaryFolder folder;
  folder.Write("b.bin", LlmcHeader(1, 2) + Bin({3, 4}));
  folder.Write("a.bin", Bin({1, 2}));
  folder.Write("c.bin", Bin({5}));
  folder.Write("readme.txt", "not data");
  absl::StatusOr<TokenFile> file = TokenFile::Open(folder.path(), {10});
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
  EXPECT_THAT(ErrorOf(folder / "sub", 256),
              EndsWith("sub: expected .bin, .npy, .txt or .jsonl files in the folder, got none"));
  if (geteuid() == 0) return;  // who may read everything cannot be refused
  ASSERT_EQ(chmod(folder.Write("secret.txt", "x").c_str(), 0), 0);
  EXPECT_THAT(ErrorOf(folder / "secret.txt", 256), HasSubstr("Permission denied"));
}

// The files are numpy's, and so is the reader that they are held against: tests/formats/token_files.py.
TEST(TokenFile, GoldenFilesHaveTheTokensThatNumpyReads) {
  for (const auto& [name, format] :
       std::initializer_list<std::pair<const char*, TokenFormat>>{{"nanogpt.bin", {65'536}},
                                                                  {"llmc_gpt2.bin", {65'536}},
                                                                  {"llmc_llama3.bin", {128'256}},
                                                                  {"raw_uint32.bin", {128'256, 4}},
                                                                  {"texts.jsonl", {256}}}) {
    const std::string path = InSource(absl::StrCat("tests/golden/tokens/", name));
    std::string printed;
    for (uint32_t token : Tokens(TokenFile::Open(path, format))) absl::StrAppend(&printed, token, "\n");
    EXPECT_EQ(printed, RunPython("tests/formats/token_files.py", path)) << name;
  }
}

TEST(TokenFile, LlmcShardOfUint32TokensIsCheckedAgainstItsHeader) {
  const TemporaryFolder folder;
  EXPECT_THAT(
      Tokens(TokenFile::Open(folder.Write("a.bin", LlmcHeader(7, 2, 20240801) + WideBin({5, 122'881})), {128'256})),
      ElementsAre(5, 122'881));
  EXPECT_THAT(ErrorOf(folder.Write("short.bin", LlmcHeader(7, 3, 20240801) + WideBin({1, 2})), 128'256),
              EndsWith("short.bin: expected 3 tokens of 4 bytes, as its header says, got 8 bytes"));
  EXPECT_THAT(ErrorOf(folder.Write("high.bin", LlmcHeader(7, 1, 20240801) + WideBin({128'256})), 128'256),
              EndsWith("high.bin: token 0: expected less than vocab_size 128256, got 128256"));
}

TEST(TokenFile, AHeaderSaysTheWidthWhateverTheConfigSaysOfRawFiles) {
  const TemporaryFolder folder;
  const std::string wide = folder.Write("wide.bin", LlmcHeader(7, 1, 20240801) + WideBin({7}));
  const std::string narrow = folder.Write("narrow.bin", LlmcHeader(1, 1) + Bin({7}));
  for (int64_t token_bytes : {2, 4}) {
    EXPECT_THAT(Tokens(TokenFile::Open(wide, {1'000, token_bytes})), ElementsAre(7));
    EXPECT_THAT(Tokens(TokenFile::Open(narrow, {1'000, token_bytes})), ElementsAre(7));
  }
}

std::string NoteOf(const absl::StatusOr<TokenFile>& file) {
  if (!file.ok()) return std::string(file.status().message());
  return file->notes().empty() ? "" : file->notes()[0];
}

TEST(TokenFile, RawUint32TokensAreReadWhereTheConfigSaysSoAndElseNamed) {
  const TemporaryFolder folder;
  const std::string path = folder.Write("a.bin", WideBin({5, 999, 0, 7}));
  EXPECT_THAT(Tokens(TokenFile::Open(path, {1'000, 4})), ElementsAre(5, 999, 0, 7));
  EXPECT_EQ(NoteOf(TokenFile::Open(path, {1'000, 4})), "");
  EXPECT_THAT(NoteOf(TokenFile::Open(path, {1'000})),
              EndsWith("a.bin: is read as uint16 (data.token_bytes: 2): 5, 0, 999, 0, 0, 0, …; it looks like uint32 as "
                       "well. If that is what it is: data.token_bytes: 4; a .npy, or llm.c's header, says which"));
  EXPECT_THAT(ErrorOf(folder.Write("large.bin", BytesOf<uint32_t>(std::vector<uint32_t>(64, 70'000))), 1'000),
              EndsWith("token 0: expected less than vocab_size 1000, got 4464 (the file looks like uint32: "
                       "data.token_bytes: 4)"));
  EXPECT_THAT(ErrorOf(path, 65'537), EndsWith("expected data.token_bytes: 4 for a vocab_size of 65537, got 2"));
  EXPECT_THAT(ErrorOf(folder.Write("narrow.bin", Bin({5, 9, 9, 5})), 1'000, 4),
              EndsWith("narrow.bin: token 0: expected less than vocab_size 1000, got 589829 (of uint16 tokens: "
                       "data.token_bytes: 2)"));
  EXPECT_THAT(ErrorOf(folder.Write("odd.bin", Bin({5, 9, 9})), 1'000, 4),
              EndsWith("odd.bin: expected 4 bytes for each token, got 6 bytes"));
}

TEST(TokenFile, JsonLinesAreTheirTextsEachWithANewline) {
  const TemporaryFolder folder;
  folder.Write("a.jsonl", "{\"id\": 1, \"text\": \"a\\u00e9\"}\r\n{\"text\": \"\"}\n");
  folder.Write("b.jsonl", "{\"text\": \"b\"}");
  EXPECT_THAT(Tokens(TokenFile::Open(folder.path(), {256})), ElementsAre('a', 0xc3, 0xa9, '\n', '\n', 'b', '\n'));
}

TEST(TokenFile, BadJsonLineIsNamedByFileLineAndCause) {
  const TemporaryFolder folder;
  const auto error = [&](const std::string& line) {
    return ErrorOf(folder.Write("a.jsonl", "{\"text\": \"fine\"}\n" + line + "\n{}"), 256);
  };
  const std::string expected = "a.jsonl:2: expected an object with \"text\", a string, got ";
  const std::string no_json = "a.jsonl: expected JSON, line 2, column ";
  EXPECT_THAT(error("text"), EndsWith(no_json + "1: got text"));
  EXPECT_THAT(error("{\"text\": \"a\", \"b\": NaN,}"), EndsWith(no_json + "24: got a comma before }"));
  EXPECT_THAT(error("{\"text\": \"a\""), EndsWith(no_json + "13: got the end of the line"));
  EXPECT_THAT(error("{\"text\": \"\xff\"}"), EndsWith(no_json + "11: got byte 0xff, which is no UTF-8"));
  EXPECT_THAT(error("{\"a\": \"\\udc00\", \"text\": \"x\\ud83d\"}"),
              EndsWith(no_json + "27: got \\ud83d in \"text\", half of a character (a lone surrogate)"));
  EXPECT_THAT(error("[1]"), EndsWith(expected + "array"));
  EXPECT_THAT(error("{\"body\": \"\"}"), EndsWith(expected + "an object without \"text\""));
  EXPECT_THAT(error("{\"text\": 7}"), EndsWith(expected + "a \"text\" that is number"));
  EXPECT_THAT(ErrorOf(folder.Write("blank.jsonl", "\n \n"), 256),
              EndsWith("blank.jsonl: expected lines with \"text\", got blank ones alone"));
}

TEST(TokenFile, OtherKeysOfJsonLinesAreIgnoredWhateverTheyHaveAndSoAreBlankLines) {
  const TemporaryFolder folder;
  const std::string path =
      folder.Write("a.jsonl",
                   "\xEF\xBB\xBF{\"text\": \"a\", \"score\": NaN}\r\n\r\n"
                   "{\"scores\": [-Infinity,Infinity, 1e999], \"text\": \"NaN\"}\n"
                   "{\"author\": \"\\ud83d x \\udc00\", \"text\": \"\\ud83d\\ude00\\\\ud83d\"}\n\n \n");
  EXPECT_EQ(TextOf(TokenFile::Open(path, {256})), "a\nNaN\n😀\\ud83d\n");
}

TEST(TokenFile, FilesOfAnotherKindAreRefusedWhateverTheirName) {
  const TemporaryFolder folder;
  const std::string gzip = std::string("\x1F\x8B\x08\0\0\0\0\0\0\3", 10) + "compressed";
  for (const char* name : {"a.gz", "a.txt", "a.bin", "a.jsonl", "a"}) {
    EXPECT_THAT(ErrorOf(folder.Write(name, gzip), 256),
                EndsWith(absl::StrCat(name,
                                      ": expected text, JSON lines or tokens, got a gzip file (.gz): unpack it with "
                                      "gunzip")));
  }
  EXPECT_THAT(ErrorOf(folder.Write("p.txt", "<html>login</html>"), 256), HasSubstr("got a web page (HTML)"));
  EXPECT_THAT(TextOf(TokenFile::Open(folder.Write("p.html", "<html>"), {256})), "<html>") << "that is its name";
}

TEST(TokenFile, TextThatIsNoUtf8IsRefusedByLine) {
  const TemporaryFolder folder;
  const std::string elsewhere = "; tokens are read from files that end in .bin, or from .npy";
  EXPECT_THAT(
      ErrorOf(folder.Write("latin1.txt", "one\ncaf\xE9 noir"), 256),
      EndsWith("latin1.txt: expected text in UTF-8, got byte 0xe9 in line 2: iconv converts text of another encoding" +
               elsewhere));
  EXPECT_THAT(ErrorOf(folder.Write("train.tokens", Bin({7, 8, 9, 10, 11})), 256),
              EndsWith("expected text in UTF-8, got bytes of which each second is 0" + elsewhere));
  EXPECT_THAT(ErrorOf(folder.Write("u16.txt", "\xFF\xFE" + Bin({'H', 'i'})), 256), HasSubstr("got text in UTF-16"));
  EXPECT_EQ(TextOf(TokenFile::Open(folder.Write("cut.txt", "caf\xC3"), {256})), "caf\xC3") << "as head -c cuts it";
  EXPECT_EQ(TokenFile::Open(folder.Write("zero.txt", std::string("a document\0another", 18)), {256})->size(), 18);
}

// A corpus may look like anything: what fits the vocabulary is read as the run says.
TEST(TokenFile, OddCorporaAreReadAsTheyAre) {
  const TemporaryFolder folder;
  std::mt19937 random(11);
  const auto below = [&](int most) { return static_cast<uint16_t>(random() % static_cast<unsigned>(most)); };
  const auto corpus = [&](int count, auto token) {
    std::vector<uint16_t> tokens;
    for (int i = 0; i < count; ++i) tokens.push_back(static_cast<uint16_t>(token(i)));
    return tokens;
  };
  const int n = 6000;
  const std::map<std::string, std::vector<uint16_t>> corpora = {
      {"80 % padding zeros", corpus(n, [&](int) { return random() % 5 == 0 ? below(50'257) : 0; })},
      {"99 % padding zeros", corpus(n, [&](int) { return random() % 100 == 0 ? below(50'257) : 0; })},
      {"padding behind each document", corpus(n, [&](int i) { return i % 64 < 20 ? below(50'257) : 0; })},
      {"padding of 50,256", corpus(n, [&](int i) { return i % 64 < 9 ? below(50'257) : 50'256; })},
      {"value, channel below 16", corpus(n, [&](int i) { return i % 2 == 0 ? below(50'257) : below(16); })},
      {"value, channel of 1", corpus(n, [&](int i) { return i % 2 == 0 ? below(50'257) : 1; })},
      {"channel below 4, value", corpus(n, [&](int i) { return i % 2 == 1 ? below(50'257) : below(4); })},
      {"token, separator 0", corpus(n, [&](int i) { return i % 2 == 0 ? below(50'257) : 0; })},
      {"separator 0, token", corpus(n, [&](int i) { return i % 2 == 1 ? below(50'257) : 0; })},
      {"token, three separators", corpus(n, [&](int i) { return i % 4 == 0 ? below(50'257) : 0; })},
      {"small token, separator 0", corpus(n, [&](int i) { return i % 2 == 0 ? below(256) : 0; })},
      {"8-bit audio × 256", corpus(n, [&](int) { return 256 * below(196); })},
      {"audio of a few levels × 256", corpus(n, [&](int) { return 256 * (96 + below(8)); })},
      {"multiples of 512", corpus(n, [&](int) { return 512 * below(98); })},
      {"multiples of 257", corpus(n, [&](int) { return 257 * below(195); })},
      {"both bytes alike in kind", corpus(n, [&](int) { return 256 * below(90) + below(90); })},
      {"zeros alone", corpus(n, [&](int) { return 0; })},
      {"a constant", corpus(n, [&](int) { return 8224; })},
      {"a constant like 1.0f's upper half", corpus(n, [&](int) { return 0x3F80; })},
      {"two constants in turn", corpus(n, [&](int i) { return i % 2 == 0 ? 0x4120 : 0; })},
      {"counting up", corpus(n, [&](int i) { return 8 * i; })}};
  for (const auto& [name, tokens] : corpora) {
    const auto file = TokenFile::Open(folder.Write("odd.bin", BytesOf<uint16_t>(tokens)), {50'257});
    ASSERT_TRUE(file.ok()) << name << ": " << file.status();
    ASSERT_EQ(file->size(), n) << name;
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ((*file)[i], tokens[static_cast<size_t>(i)]) << name << " at " << i;
  }
}

TEST(TokenFile, TokensThatLookLikeAnotherTypeAreNamedByIt) {
  const TemporaryFolder folder;
  const std::string ids = BytesOf<int64_t>({5, 999, 0, 7, 12});
  const auto expected = [](const char* tokens, const char* look, const char* type) {
    return AllOf(HasSubstr(absl::StrCat("a.bin: is read as ", tokens)),
                 HasSubstr(absl::StrCat("it looks like ", look,
                                        " as well. If that is what it is: write "
                                        "numpy.array(tokens, \"",
                                        type, "\").tofile(\"train.bin\")")));
  };
  const auto note = [&](const std::string& path, int64_t vocab_size, int64_t token_bytes = 2) {
    return NoteOf(TokenFile::Open(path, {vocab_size, token_bytes}));
  };
  for (const int64_t vocab_size : {1'000, 65'536}) {
    EXPECT_THAT(note(folder.Write("a.bin", ids), vocab_size), expected("uint16", "int64", "<u2"));
    EXPECT_THAT(note(folder / "a.bin", vocab_size, 4), expected("uint32", "int64", "<u2"));
  }
  EXPECT_THAT(note(folder / "a.bin", 128'256, 4), expected("uint32", "int64", "<u4"));
  EXPECT_THAT(ErrorOf(folder / "a.bin", 128'256),
              EndsWith("expected data.token_bytes: 4 for a vocab_size of 128256, got 2"));
  EXPECT_THAT(note(folder.Write("a.bin", BytesOf<double>({5, 999, 0, 7})), 65'536),
              expected("uint16", "float64", "<u2"));
  EXPECT_THAT(
      ErrorOf(folder / "a.bin", 1'000),
      EndsWith("got 16404 (the file looks like float64: write numpy.array(tokens, \"<u2\").tofile(\"train.bin\"))"));
  EXPECT_THAT(note(folder.Write("a.bin", BytesOf<float>({5, 999, 0, 7})), 65'536),
              expected("uint16", "float32", "<u2"));
  const std::string text =
      "it was a dark and stormy night; the rain fell in torrents, except at occasional intervals\n";
  EXPECT_THAT(ErrorOf(folder.Write("a.bin", text + text), 65'536),
              EndsWith("got what looks like text: name it .txt, or .jsonl if it is JSON lines"));
  EXPECT_THAT(
      ErrorOf(folder.Write("a.bin", Bin({0x0100, 0x0201, 0x0300, 0x0401, 0x0500, 0x0601, 0x0700, 0x0801})), 300),
      EndsWith("token 1: expected less than vocab_size 300, got 513 (the bytes look big-endian: write "
               "numpy.array(tokens, \"<u2\").tofile(\"train.bin\"))"));
}

// A file of numpy.save.
std::string Npy(const std::string& type, const std::string& shape, const std::string& values,
                const char* order = "False") {
  std::string header = absl::StrCat("{'descr': ", type, ", 'fortran_order': ", order, ", 'shape': ", shape, ", }");
  header.resize(117, ' ');
  return std::string("\x93NUMPY\1\0\x76\0", 10) + header + "\n" + values;
}

TEST(TokenFile, ArraysOfNumpyAreReadByTheirHeaderWhateverTheirName) {
  const TemporaryFolder folder;
  const std::string values = Bin({5, 999});
  for (const char* name : {"a.npy", "a.bin", "a.txt", "a"}) {
    EXPECT_THAT(Tokens(TokenFile::Open(folder.Write(name, Npy("'<u2'", "(2,)", values)), {1'000, 4})),
                ElementsAre(5, 999));
  }
  const auto open = [&](const std::string& npy) {
    return Tokens(TokenFile::Open(folder.Write("a.npy", npy), {128'256}));
  };
  EXPECT_THAT(open(Npy("'<i4'", "(2, 1)", WideBin({5, 70'000}))), ElementsAre(5, 70'000));
  EXPECT_THAT(open(Npy("'<i8'", "(3,)", BytesOf<int64_t>({5, 128'255, 0}))), ElementsAre(5, 128'255, 0));
  EXPECT_THAT(open(Npy("'|u1'", "(2,)", "\x05\xFF")), ElementsAre(5, 255));
}

TEST(TokenFile, ArraysOfNumpyThatAreNoTokensAreRefusedByType) {
  const TemporaryFolder folder;
  const auto error = [&](const std::string& npy) { return ErrorOf(folder.Write("a.npy", npy), 1'000); };
  const std::string expected = "a.npy: expected an array of whole numbers, little-endian, got ";
  const std::string advice = ": numpy.save(\"train.npy\", array.astype(\"<u4\"))";
  EXPECT_THAT(error(Npy("'<f4'", "(2,)", WideBin({5, 6}))), EndsWith(expected + "float32" + advice));
  EXPECT_THAT(error(Npy("'>u2'", "(2,)", Bin({5, 6}))), EndsWith(expected + "uint16, big-endian" + advice));
  EXPECT_THAT(error(Npy("'|O'", "(2,)", "x")), EndsWith(expected + "values of type |O" + advice));
  EXPECT_THAT(error(Npy("[('a', '<u2')]", "(2,)", "x")), HasSubstr("values of type [('a', '<u2')"));
  EXPECT_THAT(error(Npy("'<u2'", "(3,)", Bin({5, 6}))),
              EndsWith("expected (3) tokens of 2 bytes, as its header says, got 4 bytes"));
  EXPECT_THAT(error(Npy("'<u2'", "(2, 1)", Bin({5, 6}), "True")),
              HasSubstr("expected rows of tokens, got Fortran's order"));
  EXPECT_THAT(error(Npy("'<i8'", "(1,)", BytesOf<int64_t>({int64_t{1} << 32}))),
              EndsWith("token 0: expected less than vocab_size 1000, got 4294967296"));
  EXPECT_THAT(error(Npy("'<i2'", "(2,)", Bin({5, 0xFFFF}))),
              EndsWith("token 1: expected 0 to less than vocab_size 1000, got -1"));
  EXPECT_THAT(error(Npy("'<u2'", "(2,)", "").substr(0, 60)), EndsWith("got a header that is damaged or cut short"));
}

TEST(TokenFile, FingerprintIsOfTheTokensInWhateverFilesTheyLie) {
  const TemporaryFolder folder;
  std::vector<uint32_t> tokens;
  std::string narrow, wide;
  for (uint32_t i = 0; i < 40'000; ++i) {
    tokens.push_back(i * 7 % 60'000 + 1);
    narrow += Bin({static_cast<uint16_t>(tokens.back())});
    wide += WideBin({tokens.back()});
  }
  const core::DataFingerprint expected = {40'000, core::Xxh3(tokens.data(), tokens.size() * sizeof(uint32_t))};
  EXPECT_EQ(TokenFile::Open(folder.Write("narrow.bin", narrow), {60'001})->Fingerprint(), expected);
  EXPECT_EQ(TokenFile::Open(folder.Write("wide.bin", wide), {60'001, 4})->Fingerprint(), expected);
  std::filesystem::create_directory(folder / "cut");
  folder.Write("cut/a.bin", narrow.substr(0, 50'000));
  folder.Write("cut/b.bin", narrow.substr(50'000));
  EXPECT_EQ(TokenFile::Open(folder / "cut", {60'001})->Fingerprint(), expected);
  tokens[39'999] ^= 1;
  EXPECT_NE(core::Xxh3(tokens.data(), tokens.size() * sizeof(uint32_t)), expected.digest);
}

TEST(TokenFile, OtherFilesOfLlmcAreRefusedAndTokensThatLookALittleLikeThemAreNot) {
  const TemporaryFolder folder;
  EXPECT_THAT(ErrorOf(folder.Write("eval.bin", LlmcHeader(1, 2, 20240522) + Bin({1, 2})), 65536),
              EndsWith("expected tokens, with llm.c's header of magic 20240520, version 1 (uint16) or magic 20240801, "
                       "version 7 (uint32), or with none; got llm.c's header of magic 20240522, version 1"));
  std::string header = LlmcHeader(1, 2, 20240522);
  header[1000] = 1;  // no header of llm.c has a field there
  EXPECT_EQ(Tokens(TokenFile::Open(folder.Write("tokens.bin", header), {65536})).size(), 512u);
  EXPECT_EQ(Tokens(TokenFile::Open(folder.Write("other.bin", LlmcHeader(1, 2, 20250101)), {65536})).size(), 512u);
}

TEST(TokenFile, SizesThatDoNotFitAreErrors) {
  const TemporaryFolder folder;
  EXPECT_THAT(ErrorOf(folder.Write("a.txt", "text"), 255),
              EndsWith("a.txt: expected a vocab_size of 256 or more for bytes as tokens, got 255"));
  EXPECT_THAT(ErrorOf(folder.Write("odd.bin", "abc"), 65536),
              EndsWith("odd.bin: expected 2 bytes for each token, got 3 bytes"));
  EXPECT_THAT(ErrorOf(folder.Write("short.bin", LlmcHeader(1, 3) + Bin({1, 2})), 256),
              EndsWith("short.bin: expected 3 tokens of 2 bytes, as its header says, got 4 bytes"));
  EXPECT_THAT(ErrorOf(folder.Write("negative.bin", LlmcHeader(1, -1) + Bin({1})), 256),
              HasSubstr("expected -1 tokens"));
  EXPECT_THAT(ErrorOf(folder.Write("new.bin", LlmcHeader(7, 1) + Bin({1})), 256),
              EndsWith("got llm.c's header of magic 20240520, version 7"));
}

// The text of the folder's files, or the error.
std::string TextIn(const std::string& path, const std::string& held_out_path = "") {
  const absl::StatusOr<TokenFile> file = TokenFile::Open(path, {256}, held_out_path);
  if (!file.ok()) return std::string(file.status().message());
  std::string text;
  for (int64_t i = 0; i < file->size(); ++i) text.push_back(static_cast<char>((*file)[i]));
  return text;
}

TEST(TokenFolder, IsItsTextsInOrderOfTheirNamesAndNamesOnceWhatItSkips) {
  const TemporaryFolder folder;
  folder.Write("b.txt", "two");
  folder.Write("a.txt", "one ");
  folder.Write("._a.txt", "of macOS");
  folder.Write(".b.txt", "hidden");
  for (const char* name : {"1.npy.part", "2.npy.part", "3.npy.part", "4.npy.part", "c.txt.incomplete", "LICENSE"}) {
    folder.Write(name, "no data");
  }
  std::filesystem::create_directory(folder / ".ipynb_checkpoints");
  std::filesystem::create_directory(folder / "more.txt");
  EXPECT_EQ(TextIn(folder.path()), "one two");
  EXPECT_EQ(
      TokenFile::Open(folder.path(), {256})->skipped(),
      "skips 3 names that begin with \".\" (._a.txt, .b.txt, .ipynb_checkpoints); 1 without an ending (LICENSE); 1 "
      "of .incomplete (c.txt.incomplete); 4 of .part (1.npy.part, 2.npy.part, 3.npy.part, …); 1 folder (more.txt)");
  folder.Write("c.jsonl", "{\"text\": \"three\"}");
  EXPECT_THAT(TextIn(folder.path()),
              EndsWith("expected .txt or .jsonl files in the folder, got both: a.txt and c.jsonl"));
}

TEST(TokenFolder, ADocumentAloneBesideOtherFilesIsNoData) {
  for (const char* document : {"README.txt", "LICENSE.txt", "readme.zh.txt", "dataset_card.txt"}) {
    const TemporaryFolder folder;
    folder.Write(document, "About the data.");
    EXPECT_EQ(TextIn(folder.path()), "About the data.") << "nothing else is there";
    folder.Write("a.parquet", "");
    folder.Write("b.parquet", "");
    EXPECT_THAT(TextIn(folder.path()), EndsWith(std::string("expected data in the folder, got ") + document +
                                                " alone; skips 2 of .parquet (a.parquet, "
                                                "b.parquet): unpack or convert the data; to train on " +
                                                document + ", name that file"));
  }
  const TemporaryFolder folder;
  folder.Write("a.jsonl.gz", "");
  folder.Write("LICENSE", "");
  EXPECT_THAT(TextIn(folder.path()),
              EndsWith("expected .bin, .npy, .txt or .jsonl files in the folder, got none; skips 1 "
                       "without an ending (LICENSE); 1 of .gz (a.jsonl.gz)"));
}

TEST(TokenFolder, AHeldOutFileInItIsLeftOutByWhateverNameItHas) {
  const TemporaryFolder folder, elsewhere;
  folder.Write("a.txt", "train");
  const std::string val = folder.Write("val.txt", "held out");
  folder.Write("b.txt", "train more");
  EXPECT_EQ(TextIn(folder.path(), val), "traintrain more");
  EXPECT_EQ(TokenFile::Open(folder.path(), {256}, val)->skipped(), "skips val.txt, which --held_out holds out");
  std::filesystem::create_symlink(val, elsewhere / "link");
  std::filesystem::create_hard_link(val, elsewhere / "hard");
  std::filesystem::copy(val, elsewhere / "copy");
  for (const char* other : {"link", "hard", "copy"}) {
    EXPECT_EQ(TextIn(folder.path(), elsewhere / other), "traintrain more") << other;
  }
  EXPECT_EQ(TextIn(folder.path(), elsewhere.path()), "traintrain more") << "a folder of files";
  std::filesystem::create_symlink(folder.path(), elsewhere / "data");
  EXPECT_EQ(TextIn(elsewhere / "data", val), "traintrain more") << "the data is a link";
  EXPECT_EQ(TextIn(folder.path(), elsewhere.Write("same_size", "held uot")), "traintrain moreheld out");
}

TEST(TokenFolder, AFileByTwoNamesAndACopyCountOnceAndAreNamed) {
  const TemporaryFolder folder;
  folder.Write("s1.txt", "one ");
  folder.Write("s2.txt", "two ");
  folder.Write("s2 (1).txt", "two ");
  folder.Write("s3.txt", "six ");  // as long
  std::filesystem::create_symlink("s3.txt", folder / "latest.txt");
  EXPECT_EQ(TextIn(folder.path()), "one two six ");
  EXPECT_EQ(TokenFile::Open(folder.path(), {256})->skipped(),
            "skips s2.txt (s2 (1).txt again), latest.txt (s3.txt again)");
}

TEST(TokenFolder, ShardsThatAreNamedForValidationAreSaidWhereNothingIsHeldOut) {
  const TemporaryFolder folder;
  const std::string val = folder.Write("fineweb_val_000000.txt", "v");
  folder.Write("fineweb_train_000001.txt", "a");
  folder.Write("valley_test2.txt.txt", "b");
  folder.Write("contest.txt", "c");
  const auto file = TokenFile::Open(folder.path(), {256});
  ASSERT_EQ(file->notes().size(), 1u);
  EXPECT_THAT(file->notes()[0],
              EndsWith(": trains on fineweb_val_000000.txt, valley_test2.txt.txt too, whose names are of "
                       "validation data: --held_out=FILE holds a file out"));
  EXPECT_TRUE(TokenFile::Open(folder.path(), {256}, val)->notes().empty());
  EXPECT_TRUE(TokenFile::Open(val, {256})->notes().empty()) << "it was named";
}

TEST(TokenFolder, DataThatIsAllHeldOutIsRefused) {
  const TemporaryFolder folder;
  const std::string val = folder.Write("val.txt", "held out");
  EXPECT_THAT(TextIn(val, val), HasSubstr("val.txt: expected data beside what --held_out="));
  EXPECT_THAT(TextIn(folder.path(), val), HasSubstr("got none but what is held out; skips val.txt"));
}

}  // namespace
}  // namespace causeway::formats
