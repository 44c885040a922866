#include "formats/posix_file.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>

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

// From here on flock fails in this process as it does on a file system without locks.
void TakeLocksAway() {
  sock_filter filter[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_flock, 0, 1),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOLCK),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program = {.len = std::size(filter), .filter = filter};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    std::fprintf(stderr, "no seccomp here: No locks available; name a folder on a disk");
    std::exit(0);
  }
}

TEST(PosixFileDeathTest, ALockThatTheFileSystemDoesNotHaveIsNotAnothersLock) {
  const TemporaryFolder folder;
  EXPECT_EXIT(
      {
        TakeLocksAway();
        std::fprintf(stderr, "%s",
                     std::string(LockFolder("--state_dir", folder.path(), "coordinator").status().message()).c_str());
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "No locks available; name a folder on a disk");
  const auto lock = LockFolder("--state_dir", folder.path(), "coordinator");
  ASSERT_TRUE(lock.ok()) << lock.status();
  EXPECT_THAT(std::string(LockFolder("--state_dir", folder.path(), "coordinator").status().message()),
              ::testing::HasSubstr("--state_dir: another coordinator runs on " + folder.path()));
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
