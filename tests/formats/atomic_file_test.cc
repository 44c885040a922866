#include "formats/atomic_file.h"

#include <fcntl.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>

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

TEST(AtomicFile, FollowsLinksWhichStay) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "behind");
  folder.Write("behind/a", "old");
  std::filesystem::create_symlink("behind/a", folder / "near");
  std::filesystem::create_symlink(folder / "near", folder / "link");
  std::filesystem::create_symlink("behind/new", folder / "dangling");
  ASSERT_TRUE(WriteFileAtomically(folder / "link", "x").ok());
  ASSERT_TRUE(WriteFileAtomically(folder / "dangling", "y").ok());
  EXPECT_EQ(ReadAll(folder / "behind/a"), "x");
  EXPECT_EQ(ReadAll(folder / "behind/new"), "y");
  for (const char* link : {"near", "link", "dangling"}) EXPECT_TRUE(std::filesystem::is_symlink(folder / link)) << link;

  std::filesystem::create_symlink("loop", folder / "loop");
  EXPECT_THAT(std::string(WriteFileAtomically(folder / "loop", "z").message()),
              HasSubstr("Too many levels of symbolic links"));
}

TEST(AtomicFile, WritesToAPipe) {
  const TemporaryFolder folder;
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  std::string read;
  std::thread reader([&] { read = ReadAll(folder / "pipe"); });
  const absl::Status written = WriteFileAtomically(folder / "pipe", "through");
  reader.join();
  EXPECT_TRUE(written.ok()) << written;
  EXPECT_EQ(read, "through");
  EXPECT_TRUE(std::filesystem::is_fifo(folder / "pipe"));
}

TEST(AtomicFile, WritesToADeviceAndReportsThatItIsFull) {
  EXPECT_TRUE(WriteFileAtomically("/dev/null", "x").ok());
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  EXPECT_THAT(std::string(WriteFileAtomically("/dev/full", "x").message()), HasSubstr("No space left on device"));
}

TEST(AtomicFile, WritesWhereADescriptorOfOursIs) {
  const TemporaryFolder folder;
  const FileDescriptor file(open((folder / "a").c_str(), O_RDWR | O_CREAT, 0600));
  ASSERT_TRUE(WriteAll(file, "a", std::as_bytes(std::span("one ", 4))).ok());
  ASSERT_TRUE(WriteFileAtomically("/dev/fd/" + std::to_string(file.get()), "two").ok());
  ASSERT_TRUE(WriteAll(file, "a", std::as_bytes(std::span(" three", 6))).ok());
  EXPECT_EQ(ReadAll(folder / "a"), "one two three");
}

TEST(AtomicFile, SeveralWritersOfAPathHaveATemporaryFileEach) {
  const TemporaryFolder folder;
  absl::StatusOr<AtomicFile> first = AtomicFile::Create(folder / "a"), second = AtomicFile::Create(folder / "a");
  ASSERT_TRUE(first.ok() && second.ok());
  ASSERT_TRUE(first->Append("first, and longer").ok());
  ASSERT_TRUE(second->Append("second").ok());
  ASSERT_TRUE(first->Commit().ok());
  EXPECT_EQ(ReadAll(folder / "a"), "first, and longer");
  absl::StatusOr<AtomicFile> third = AtomicFile::Create(folder / "a");  // the name that the first has left
  ASSERT_TRUE(third.ok() && third->Append("third").ok());
  ASSERT_TRUE(second->Commit().ok());
  EXPECT_EQ(ReadAll(folder / "a"), "second");
  ASSERT_TRUE(third->Commit().ok());
  EXPECT_EQ(ReadAll(folder / "a"), "third");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(AtomicFile, DoesNotWriteThroughALinkThatLiesInPlaceOfItsTemporaryFile) {
  const TemporaryFolder folder;
  folder.Write("precious", "kept");
  std::filesystem::create_symlink("precious", folder / "a.tmp");
  ASSERT_TRUE(WriteFileAtomically(folder / "a", "new").ok());
  EXPECT_EQ(ReadAll(folder / "a"), "new");
  EXPECT_EQ(ReadAll(folder / "precious"), "kept");
}

// A disk that is full after 4096 bytes, as a file size limit in a child process.
TEST(AtomicFile, DoesNotEmptyAFileThatHasASecondNameInPlaceOfItsTemporaryFile) {
  const TemporaryFolder folder;
  const std::string other = folder.Write("other", "kept");
  std::filesystem::create_hard_link(other, folder / "out.tmp");
  ASSERT_TRUE(WriteFileAtomically(folder / "out", "new").ok());
  EXPECT_EQ(ReadAll(folder / "out"), "new");
  EXPECT_EQ(ReadAll(other), "kept");
}

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
