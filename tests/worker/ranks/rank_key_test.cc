#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/formats/temporary_folder.h"
#include "worker/ranks/rank_place.h"

namespace causeway::worker {
namespace {

using ::testing::HasSubstr;

std::optional<std::string> None(const std::string&) { return std::nullopt; }

TEST(RankKey, IsProvenByWhoKnowsItInThatRoleToThatChallengeAlone) {
  const RankKey key("0123456789abcdef"), other("0123456789abcdeF");
  const std::string proof = key.Prove("rank", "challenge");
  EXPECT_EQ(proof.size(), 32u);
  EXPECT_TRUE(key.IsProven("rank", "challenge", proof));
  EXPECT_FALSE(key.IsProven("rank 0", "challenge", proof)) << "rank 0's own proof is of no use to a stranger";
  EXPECT_FALSE(key.IsProven("rank", "another", proof));
  EXPECT_FALSE(other.IsProven("rank", "challenge", proof));
  EXPECT_FALSE(key.IsProven("rank", "challenge", ""));
}

TEST(RankKey, ComesFromTheFileOrElseTheEnvironment) {
  const TemporaryFolder folder;
  std::ofstream(folder / "key") << " of-the-file-0123456\n";
  const auto environment = [](const std::string& name) -> std::optional<std::string> {
    return name == kRankKeyVariable ? std::optional<std::string>("of-the-environment") : std::nullopt;
  };
  const auto proof = [](const RankKey& key) { return key.Prove("", ""); };
  EXPECT_EQ(proof(*ReadRankKey(folder / "key", {}, false, environment)), proof(RankKey("of-the-file-0123456")));
  EXPECT_EQ(proof(*ReadRankKey("", {}, false, environment)), proof(RankKey("of-the-environment")));
  EXPECT_FALSE(ReadRankKey("", {}, false, None)->is_given());
  EXPECT_THAT(ReadRankKey(folder / "none", {}, false, environment).status().message(),
              HasSubstr("--rendezvous_key_file=" + (folder / "none") + ": No such file"));
  std::ofstream(folder / "short") << "abc";
  EXPECT_THAT(ReadRankKey(folder / "short", {}, false, environment).status().message(),
              HasSubstr("short: expected a key of 16 to 4096 characters, got 3; `openssl rand -hex 16` makes one"));
}

TEST(RankKey, IsWantedWhereOtherHostsReachTheRendezvous) {
  const auto key = [](const std::string&) -> std::optional<std::string> { return "0123456789abcdef"; };
  const auto why = [&](const std::string& rendezvous, const core::Environment& given, bool insecure = false,
                       int world = 2) {
    return std::string(ReadRankKey("", {0, world, rendezvous, "a test", ""}, insecure, given).status().message());
  };
  EXPECT_THAT(why("node1:29500", None), HasSubstr("export CAUSEWAY_RENDEZVOUS_KEY=$(openssl rand -hex 16)"));
  EXPECT_EQ(why("node1:29500", key), "");
  EXPECT_EQ(why("node1:29500", None, /*insecure=*/true), "");
  EXPECT_EQ(why("127.0.0.1:29500", None), "");
  EXPECT_EQ(why("unix:/run/x", None), "");
  EXPECT_EQ(why("", None, false, 1), "");
}

}  // namespace
}  // namespace causeway::worker
