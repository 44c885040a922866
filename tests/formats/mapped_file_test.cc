#include "formats/mapped_file.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>

#include "formats/token_file.h"
#include "tests/formats/temporary_folder.h"

namespace causeway::formats {
namespace {

using ::testing::ExitedWithCode;
using ::testing::KilledBySignal;

constexpr char kChanged[] = "error: .*t.bin: changed while it is used: expected the 20000 bytes that it had";

// Tokens of two bytes, all 7.
std::string TenThousandTokens() {
  std::string bytes;
  for (int i = 0; i < 10'000; ++i) bytes += std::string("\x07\x00", 2);
  return bytes;
}

TEST(MappedFile, ThatIsTruncatedEndsTheProgramWithAWord) {
  const TemporaryFolder folder;
  const std::string path = folder.Write("t.bin", TenThousandTokens());
  const absl::StatusOr<MappedFile> file = MappedFile::Map(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto last = [&] { return std::to_integer<int>(file->bytes().back()); };
  EXPECT_EXIT((std::filesystem::resize_file(path, 100), std::exit(last())), ExitedWithCode(2), kChanged);
}

TEST(MappedFile, ThatIsGoneGivesItsPlaceToTheNextAndABusErrorElsewhereStaysOne) {
  const TemporaryFolder folder;
  const std::string path = folder.Write("t.bin", TenThousandTokens());
  for (int i = 0; i < 3; ++i) {
    MappedFile first = *MappedFile::Map(path), second = *MappedFile::Map(path);
    first = std::move(second);
  }
  EXPECT_EXIT(raise(SIGBUS), KilledBySignal(SIGBUS), "");
}

TEST(MappedFile, TokensThatAreOthersThanThoseCheckedEndTheProgramToo) {
  const TemporaryFolder folder;
  const std::string path = folder.Write("t.bin", TenThousandTokens());
  const absl::StatusOr<TokenFile> tokens = TokenFile::Open(path, {.vocab_size = 256});
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ((*tokens)[9'999], 7u);
  const auto overwrite = [&] {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(19'998);
    file << "\xff\xff";
  };
  EXPECT_EXIT((overwrite(), std::exit(static_cast<int>((*tokens)[9'999]))), ExitedWithCode(2), kChanged);
}

}  // namespace
}  // namespace causeway::formats
