#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/flags/flag.h"
#include "ctl/command_help.h"

ABSL_FLAG(std::string, test_site, "", "drain, release: the site's name");
ABSL_FLAG(int, test_sites, 0, "plan: how many sites take part");
ABSL_FLAG(std::string, test_coordinator, "", "HOST:PORT of the coordinator; export: of all shards");

namespace causeway::ctl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::set<std::string> kCommands = {"drain", "release", "plan", "export", "history", "status"};

TEST(CommandFlags, TheHelpNamesTheCommandsBeforeItsColons) {
  EXPECT_THAT(CommandsOf("drain, release: the site's name", kCommands), ElementsAre("drain", "release"));
  EXPECT_THAT(CommandsOf("status: the JSON; history, tables of plan: a line", kCommands),
              ElementsAre("history", "plan", "status"));
  EXPECT_THAT(CommandsOf("plan pipeline, with --costs: of a device", kCommands), ElementsAre("plan"));
}

TEST(CommandFlags, AFlagThatBeginsWithNoCommandIsForAll) {
  EXPECT_THAT(CommandsOf("HOST:PORT of the coordinator; export: of all shards", kCommands), IsEmpty());
  EXPECT_THAT(CommandsOf("allow plaintext", kCommands), IsEmpty());
}

TEST(CommandFlags, AFlagOfAnotherCommandIsRefusedWithThoseThatItTakes) {
  EXPECT_TRUE(CheckFlags("drain", {"test_site", "test_coordinator"}, kCommands).ok());
  const absl::Status refused = CheckFlags("drain", {"test_sites"}, kCommands);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("drain takes --test_site; --test_sites is for plan"));
}

}  // namespace
}  // namespace causeway::ctl
