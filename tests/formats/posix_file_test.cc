#include "formats/posix_file.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "tests/formats/temporary_folder.h"

namespace causeway::formats {
namespace {

unsigned RightsOf(const std::string& path) {
  struct stat folder = {};
  EXPECT_EQ(stat(path.c_str(), &folder), 0) << path;
  return folder.st_mode & 0777;
}

TEST(PosixFile, APrivateFolderIsThisUsersAloneAndOneThatIsThereKeepsItsRights) {
  const TemporaryFolder folder;
  const mode_t before = umask(022);
  EXPECT_TRUE(MakePrivateFolder(folder / "above/own").ok());
  EXPECT_EQ(RightsOf(folder / "above"), 0755u);
  EXPECT_EQ(RightsOf(folder / "above/own"), 0700u);
  EXPECT_TRUE(MakePrivateFolder(folder / "above/").ok());
  EXPECT_EQ(RightsOf(folder / "above"), 0755u);
  EXPECT_TRUE(MakePrivateFolder(folder / "slash/").ok());
  EXPECT_EQ(RightsOf(folder / "slash"), 0700u);
  umask(before);
}

TEST(PosixFile, APrivateFolderWhereAFileIsSaysSo) {
  const TemporaryFolder folder;
  std::ofstream(folder / "file") << "x";
  for (const char* path : {"file", "file/below"}) {
    const absl::Status status = MakePrivateFolder(folder / path);
    EXPECT_TRUE(absl::IsUnavailable(status));
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("cannot create folder " + (folder / path) + ": "));
  }
}

}  // namespace
}  // namespace causeway::formats
