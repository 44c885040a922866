#include "formats/atomic_file.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "tests/formats/temporary_folder.h"

namespace causeway::formats {
namespace {

using testing::HasSubstr;

TEST(AtomicFile, WritesAndReplaces) {
  const TemporaryFolder folder;
  ASSERT_TRUE(WriteFileAtomically(folder / "a", "old").ok());
  EXPECT_EQ(ReadAll(folder / "a"), "old");
  ASSERT_TRUE(WriteFileAtomically(folder / "a", std::string("n\0w", 3)).ok());
  EXPECT_EQ(ReadAll(folder / "a"), std::string("n\0w", 3));
  EXPECT_FALSE(std::filesystem::exists(folder / "a.tmp"));
}

TEST(AtomicFile, WritesInTheCurrentFolder) {
  const TemporaryFolder folder;
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  EXPECT_TRUE(WriteFileAtomically("plain", "x").ok());
  std::filesystem::current_path(before);
  EXPECT_EQ(ReadAll(folder / "plain"), "x");
}

TEST(AtomicFile, IsNotSeenBeforeCommit) {
  const TemporaryFolder folder;
  folder.Write("a", "old");
  absl::StatusOr<AtomicFile> file = AtomicFile::Create(folder / "a");
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE(file->Append("one ").ok());
  ASSERT_TRUE(file->Append(std::string_view("two")).ok());
  EXPECT_EQ(ReadAll(folder / "a"), "old");
  ASSERT_TRUE(file->Commit().ok());
  EXPECT_EQ(ReadAll(folder / "a"), "one two");
}

TEST(AtomicFile, WithoutCommitLeavesNothingBehind) {
  const TemporaryFolder folder;
  folder.Write("a", "old");
  {
    absl::StatusOr<AtomicFile> file = AtomicFile::Create(folder / "a");
    ASSERT_TRUE(file.ok() && file->Append("half").ok());
    AtomicFile moved = *std::move(file);  // the one that is moved from removes nothing and the other does
    EXPECT_TRUE(std::filesystem::exists(folder / "a.tmp"));
  }
  EXPECT_EQ(ReadAll(folder / "a"), "old");
  EXPECT_FALSE(std::filesystem::exists(folder / "a.tmp"));
}

TEST(AtomicFile, OverwritesWhatACrashLeft) {
  const TemporaryFolder folder;
  folder.Write("a.tmp", "much longer than the new contents");
  ASSERT_TRUE(WriteFileAtomically(folder / "a", "new").ok());
  EXPECT_EQ(ReadAll(folder / "a"), "new");
}

TEST(AtomicFile, ErrorsNamePathAndReason) {
  const TemporaryFolder folder;
  const absl::Status status = WriteFileAtomically(folder / "absent/a", "x");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr(folder / "absent/a"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("No such file or directory"));

  std::filesystem::create_directory(folder / "taken");
  const absl::Status taken = WriteFileAtomically(folder / "taken", "x");
  EXPECT_THAT(std::string(taken.message()), HasSubstr("Is a directory"));
  EXPECT_FALSE(std::filesystem::exists(folder / "taken.tmp"));
}

// A disk that is full after 4096 bytes, as a file size limit in a child process.
TEST(AtomicFile, FullDiskKeepsTheOldFile) {
  const TemporaryFolder folder;
  folder.Write("a", "old");
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {4096, 4096};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(2);
    const absl::Status status = WriteFileAtomically(folder / "a", std::string(10'000, 'x'));
    _exit(status.message().find("File too large") != absl::string_view::npos ? 0 : 1);
  }
  int exit_status = 0;
  ASSERT_EQ(waitpid(child, &exit_status, 0), child);
  EXPECT_TRUE(WIFEXITED(exit_status));
  EXPECT_EQ(WEXITSTATUS(exit_status), 0);
  EXPECT_EQ(ReadAll(folder / "a"), "old");
  EXPECT_FALSE(std::filesystem::exists(folder / "a.tmp"));
}

}  // namespace
}  // namespace causeway::formats
