
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "formats/token_file.h"
#include "tests/formats/temporary_folder.h"

namespace causeway::formats {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

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
