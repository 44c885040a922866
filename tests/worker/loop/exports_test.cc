#include "worker/loop/exports.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "formats/model_export.h"
#include "tests/formats/temporary_folder.h"

namespace causeway::worker {
namespace {

using ::testing::UnorderedElementsAre;

class ExportsTest : public ::testing::Test {
 protected:
  Exports Make(core::Version every, int keep = 3, const std::string& run = "run") {
    return Exports(
        {.directory = directory_, .site = "eu", .every_rounds = every, .keep = keep, .form = {.run_id = run}},
        manifest_, [this](const std::string& path, double) { written_.push_back(path); });
  }

  void Write(Exports& exports, const std::vector<core::Version>& versions) const {
    for (core::Version version : versions) {
      exports.Write(Copy(version));
      exports.Finish();
    }
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
  Write(exports, {8, 9, 10, 11});
  EXPECT_THAT(Names(), UnorderedElementsAre("round-000010", "round-000011", "round-table", "notes"));
}

TEST_F(ExportsTest, ThoseOfAnotherRunAreNeitherCountedNorRemovedNorReplaced) {
  Exports first = Make(1, /*keep=*/3, "first"), second = Make(1, /*keep=*/2, "second");
  Write(first, {7, 8, 9});
  Write(second, {1, 2, 3, 8});
  EXPECT_THAT(Names(), UnorderedElementsAre("round-000007", "round-000008", "round-000009", "round-000003",
                                            "round-000008-second"));
  EXPECT_EQ(formats::FindExport(directory_ + "/round-000008")->run_id, "first");
  EXPECT_EQ(formats::FindExport(written_.back())->run_id, "second");
}

TEST_F(ExportsTest, OfASiteThatIsAheadStay) {
  Exports behind = Make(1, /*keep=*/1), ahead = Make(1, /*keep=*/1);
  Write(ahead, {60});
  Write(behind, {50});
  EXPECT_THAT(Names(), UnorderedElementsAre("round-000050", "round-000060"));
  Write(ahead, {61});
  EXPECT_THAT(Names(), UnorderedElementsAre("round-000061"));
}

TEST_F(ExportsTest, AfterANewBeginningThoseOfTheEarlierRoundsGoFirst) {
  Exports before = Make(1, /*keep=*/2);
  Write(before, {100, 101});
  Exports exports = Make(1, /*keep=*/2);
  Write(exports, {1, 2});
  EXPECT_THAT(Names(), UnorderedElementsAre("round-000001", "round-000002"));
}

TEST_F(ExportsTest, ACopyByAnotherNameStays) {
  Exports exports = Make(1, /*keep=*/1);
  Write(exports, {4});
  for (const char* copy : {"/round-000099", "/round-000004.bak", "/best"}) {
    std::filesystem::copy(directory_ + "/round-000004", directory_ + copy);
  }
  Write(exports, {5, 6});
  EXPECT_THAT(Names(), UnorderedElementsAre("round-000006", "round-000099", "round-000004.bak", "best"));
}

TEST_F(ExportsTest, TheSameRoundsAgainReplaceWhatAnEarlierProcessWrote) {
  Exports exports = Make(1);
  Write(exports, {3});
  std::ofstream(directory_ + "/round-000003/stale") << "x";
  Write(exports, {3});
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/round-000003/stale"));
  EXPECT_TRUE(std::filesystem::exists(directory_ + "/round-000003/model.safetensors"));
}

TEST_F(ExportsTest, WhereAFolderHasTheNameTheRunIsInIt) {
  std::filesystem::create_directories(directory_ + "/round-000003");
  std::ofstream(directory_ + "/round-000003/thesis.tex") << "x";
  std::ofstream(directory_ + "/round-000004-run") << "x";
  std::ofstream(directory_ + "/round-000004") << "x";
  Exports exports = Make(1);
  Write(exports, {3, 4});
  EXPECT_THAT(written_, UnorderedElementsAre(directory_ + "/round-000003-run"));
  EXPECT_TRUE(std::filesystem::exists(directory_ + "/round-000003/thesis.tex"));
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
