#include "core/check.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

namespace causeway::core {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(CheckDeathTest, FailedCheckEndsAProgramAndSaysWhere) {
  EXPECT_DEATH(CHECK(1 == 2), "check_test.cc:[0-9]+: CHECK failed: 1 == 2");
  EXPECT_DEATH(Guarded([] { CHECK(1 == 2); }), "CHECK failed: 1 == 2");
}

std::vector<std::string>& Heard() {
  static std::vector<std::string> heard;
  return heard;
}

// In a process of its own: what it sets stays.
void FailInLibrary() {
  ThrowFailedChecks([](const std::string& what) { Heard().push_back(what); });
  const bool passed = Guarded([] { CHECK(1 == 2); });
  const bool other = Guarded([] {});
  bool thrown = false;
  try {
    CHECK(3 == 4);
  } catch (const CheckFailure& failure) {
    thrown = std::string(failure.what()).find("3 == 4") != std::string::npos;
  }
  const bool told = Heard().size() == 1 && Heard()[0].find("1 == 2") != std::string::npos;
  std::exit(!passed && other && thrown && told ? 0 : 1);
}

TEST(CheckDeathTest, InALibraryAFailedCheckThrowsAndAGuardTellsOfIt) {
  EXPECT_EXIT(FailInLibrary(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace causeway::core
