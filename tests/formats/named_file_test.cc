#include "formats/named_file.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>

#include "tests/core/fake_clock.h"
#include "tests/formats/temporary_folder.h"

namespace causeway::formats {
namespace {

using testing::HasSubstr;

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
