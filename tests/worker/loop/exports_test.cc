#include "worker/loop/exports.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/formats/temporary_folder.h"

namespace causeway::worker {
namespace {

using ::testing::UnorderedElementsAre;

class ExportsTest : public ::testing::Test {
 protected:
  Exports Make(core::Version every, int keep = 3) {
    return Exports({.directory = directory_, .every_rounds = every, .keep = keep, .form = {.run_id = "run"}}, manifest_,
                   [this](const std::string& path, double) { written_.push_back(path); });
  }

  AnchorCopy Copy(core::Version version) const {
    return {.tensors = {std::vector<float>(4, static_cast<float>(version))}, .versions = {version, version + 1}};
  }

  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory_)) names.push_back(entry.path().filename());
    return names;
  }

  const TemporaryFolder folder_;
  const std::string& directory_ = folder_.path();
  const core::Manifest manifest_ = {{.name = "w", .shape = {4}}};
  std::vector<std::string> written_;
};

TEST_F(ExportsTest, AreDueOnceForEachMultipleOfTheRounds) {
  Exports exports = Make(/*every=*/10);
  exports.Begin(7);
  EXPECT_FALSE(exports.Due(9));
  EXPECT_TRUE(exports.Due(10));
  EXPECT_FALSE(exports.Due(10));
  EXPECT_FALSE(exports.Due(19));
  EXPECT_TRUE(exports.Due(33));  // it looked away for a while
  EXPECT_FALSE(exports.Due(39));
}

TEST_F(ExportsTest, AreNeverDueWithoutADirectoryOrWithoutASchedule) {
  Exports none({.every_rounds = 1}, manifest_, nullptr);
  EXPECT_FALSE(none.Due(5));
  Exports at_the_end = Make(/*every=*/0);
  EXPECT_FALSE(at_the_end.Due(5));
}

TEST_F(ExportsTest, AreNamedByTheRoundsThatAllFragmentsHave) {
  Exports exports = Make(1);
  exports.Write(Copy(12));
  exports.Finish();
  EXPECT_THAT(written_, UnorderedElementsAre(directory_ + "/round-000012"));
  EXPECT_TRUE(std::filesystem::exists(directory_ + "/round-000012/model.safetensors"));
}

TEST_F(ExportsTest, OfThemTheNewestStayAndWhatIsNotOursIsLeftAlone) {
  std::filesystem::create_directories(directory_ + "/round-table");
  std::filesystem::create_directories(directory_ + "/notes");
  Exports exports = Make(1, /*keep=*/2);
  for (core::Version version : {8, 9, 10, 11}) {
    exports.Write(Copy(version));
    exports.Finish();
  }
  EXPECT_THAT(Names(), UnorderedElementsAre("round-000010", "round-000011", "round-table", "notes"));
}

TEST_F(ExportsTest, TheSameRoundsAgainReplaceWhatAnEarlierProcessWrote) {
  std::filesystem::create_directories(directory_ + "/round-000003");
  std::ofstream(directory_ + "/round-000003/stale") << "x";
  Exports exports = Make(1);
  exports.Write(Copy(3));
  exports.Finish();
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/round-000003/stale"));
  EXPECT_TRUE(std::filesystem::exists(directory_ + "/round-000003/model.safetensors"));
}

TEST_F(ExportsTest, OneThatCannotBeWrittenIsNotSaidToBe) {
  Exports exports({.directory = "/proc/none", .every_rounds = 1}, manifest_,
                  [this](const std::string& path, double) { written_.push_back(path); });
  exports.Write(Copy(1));
  exports.Finish();
  EXPECT_TRUE(written_.empty());
}

}  // namespace
}  // namespace causeway::worker
