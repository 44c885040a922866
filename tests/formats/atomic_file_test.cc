#include "formats/atomic_file.h"

#include <fcntl.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "formats/mapped_file.h"
#include "formats/named_file.h"
#include "formats/posix_file.h"
#include "formats/token_file.h"
#include "tests/core/fake_clock.h"
#include "tests/formats/temporary_folder.h"

namespace causeway::formats {
namespace {

using ::testing::ExitedWithCode;
using testing::HasSubstr;
using ::testing::KilledBySignal;

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

// While it lives, this process can open no file.
class NoDescriptors {
 public:
  NoDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit none = {.rlim_cur = 0, .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &none);
  }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_ = {};
};

class WatchedFileTest : public ::testing::Test {
 protected:
  std::string Look() {
    const auto text = file_.ReadIfChanged();
    if (!text.ok()) return std::string(text.status().message());
    return text->value_or("as before");
  }

  const TemporaryFolder folder_;
  core::FakeClock clock_;
  const std::string path_ = folder_.Write("tokens", "a 1\nb 2\n");
  WatchedFile file_{"site_tokens", path_, &clock_};
};

TEST_F(WatchedFileTest, IsReadAgainWhenItHasChanged) {
  EXPECT_EQ(Look(), "a 1\nb 2\n");
  EXPECT_EQ(Look(), "as before");
  folder_.Write("tokens", "a 1\nb 2\nc 3\n");
  EXPECT_EQ(Look(), "a 1\nb 2\nc 3\n");
}

TEST_F(WatchedFileTest, ThatCouldNotBeReadIsTriedAgainThoughNothingAboutItHasChanged) {
  EXPECT_EQ(Look(), "a 1\nb 2\n");
  folder_.Write("tokens", "a 1\nb 2\nc 3\n");
  {
    const NoDescriptors none;
    for (int i = 0; i < 2; ++i) EXPECT_THAT(Look(), HasSubstr("Too many open files"));
  }
  EXPECT_EQ(Look(), "a 1\nb 2\nc 3\n");
}

TEST_F(WatchedFileTest, ThatIsCutInItsPlaceCountsOnceItHasBeenSoForAWhile) {
  EXPECT_EQ(Look(), "a 1\nb 2\n");
  std::filesystem::resize_file(path_, 4);
  EXPECT_EQ(Look(), "as before");
  clock_.Advance(WatchedFile::kSettlesMs - 1);
  EXPECT_EQ(Look(), "as before");
  folder_.Write("tokens", "a 1\nb 2\nc 3\n");
  EXPECT_EQ(Look(), "a 1\nb 2\nc 3\n") << "it is whole";
  std::filesystem::resize_file(path_, 4);
  EXPECT_EQ(Look(), "as before");
  clock_.Advance(WatchedFile::kSettlesMs);
  EXPECT_EQ(Look(), "a 1\n");
}

TEST_F(WatchedFileTest, ThatTakesItsPlaceByARenameCountsAtOnceThoughItIsShorter) {
  EXPECT_EQ(Look(), "a 1\nb 2\n");
  std::filesystem::rename(folder_.Write("new", "a 1\n"), path_);
  EXPECT_EQ(Look(), "a 1\n");
}

}  // namespace
}  // namespace causeway::formats
