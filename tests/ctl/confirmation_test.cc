#include <gtest/gtest.h>

#include <sstream>

#include "ctl/command_help.h"

namespace causeway::ctl {
namespace {

const Confirmation kStop = {.command = "stop", .consequence = "ends the run", .run = "atlas"};

TEST(Confirmation, IsTheRunsNameOrYes) {
  Confirmation named = kStop, other = kStop, yes = kStop;
  named.given = "atlas", other.given = "atlantis", yes.yes = true;
  EXPECT_TRUE(Confirm(named, nullptr).ok());
  EXPECT_TRUE(Confirm(yes, nullptr).ok());
  EXPECT_EQ(Confirm(other, nullptr).message(), "stop: expected the run's name, atlas, got 'atlantis'");
}

TEST(Confirmation, WithoutAPersonIsAskedForInTheError) {
  EXPECT_EQ(Confirm(kStop, nullptr).message(),
            "stop ends the run: expected the run's name, `causewayctl stop atlas`, or --yes");
}

TEST(Confirmation, OfAPersonIsTheNameTyped) {
  std::istringstream right(" atlas \n"), wrong("y\n"), none("");
  EXPECT_TRUE(Confirm(kStop, &right).ok());
  EXPECT_EQ(Confirm(kStop, &wrong).message(), "stop: expected the run's name, atlas, got 'y'; nothing was done");
  EXPECT_FALSE(Confirm(kStop, &none).ok());
}

}  // namespace
}  // namespace causeway::ctl
