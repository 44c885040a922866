#include "formats/settings.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "causeway/v1/run_config.pb.h"
#include "formats/run_yaml.h"

namespace causeway::formats {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

core::RunConfig OfRun(const std::string& yaml = "") { return *ParseRunYaml("run_id: r\n" + yaml, "run.yaml"); }

TEST(Settings, EveryFieldOfTheSchemaIsOne) {
  const auto check = [](const auto& check, const google::protobuf::Descriptor& section,
                        const std::string& path) -> void {
    for (int i = 0; i < section.field_count(); ++i) {
      const auto& field = *section.field(i);
      const std::string key = path.empty() ? field.name() : path + "." + field.name();
      const bool is_list = field.message_type() != nullptr && field.message_type()->options().GetExtension(v1::is_list);
      if (field.message_type() != nullptr && !field.is_map() && !is_list) {
        check(check, *field.message_type(), field.is_repeated() ? key + "[]" : key);
      } else {
        EXPECT_NE(FindSetting(key), nullptr) << key;
      }
    }
  };
  check(check, *v1::RunConfig::descriptor(), "");
}

TEST(Settings, EachHasASentenceAndIsThereOnce) {
  std::set<std::string> keys;
  for (const Setting& setting : Settings()) {
    EXPECT_TRUE(keys.insert(setting.key).second) << setting.key;
    EXPECT_FALSE(setting.says.empty()) << setting.key;
    EXPECT_FALSE(setting.expected.empty()) << setting.key;
    EXPECT_FALSE(setting.settable && setting.holds == Holds::kFixed) << setting.key;
  }
  EXPECT_EQ(FindSetting("inner.lr")->standard, "0.003");
  EXPECT_EQ(FindSetting("inner.batch_by_site.eu")->key, "inner.batch_by_site");
  EXPECT_EQ(FindSetting("inner.lrr"), nullptr);
}

TEST(ChangedConfig, TakesWhatIsTypedAndChecksItBesideTheRest) {
  const auto changed =
      ChangedConfig(OfRun(), {{"inner.lr", "1e-4"}, {"codec.up", "sign"}, {"membership.min_quorum", "2"}});
  ASSERT_TRUE(changed.ok()) << changed.status();
  EXPECT_EQ(changed->inner.lr, 1e-4);
  EXPECT_EQ(changed->codec.up, core::CodecId::kSign);
  EXPECT_THAT(ConfigChanges(OfRun(), *changed), ElementsAre("codec.up: \"int4\" → \"sign\"", "inner.lr: 0.003 → 0.0001",
                                                            "membership.min_quorum: 1 → 2 (at once)"));
}

TEST(ChangedConfig, SaysWhyNot) {
  const auto why = [](const core::RunConfig& run, const SettingsChanges& changes) {
    return std::string(ChangedConfig(run, changes).status().message());
  };
  EXPECT_EQ(why(OfRun(), {{"outer.lr", "fast"}}), "outer.lr: expected a number, got fast");
  EXPECT_EQ(why(OfRun(), {{"outer.lr", "-1"}}), "outer.lr: expected a number of 0 or more, got -1");
  EXPECT_EQ(why(OfRun(), {{"outer.lr", "1"}, {"outer.lr", "2"}}), "outer.lr: expected each key once, got it again");
  EXPECT_THAT(why(OfRun(), {{"outer.rate", "1"}}), HasSubstr("outer.rate: expected"));
  EXPECT_THAT(why(OfRun(), {{"lr", "1"}}), HasSubstr("lr: expected"));
  EXPECT_THAT(why(OfRun(), {{"model.hidden_size", "64"}}), HasSubstr("is fixed for a run"));
  EXPECT_THAT(why(OfRun(), {{"sync.sync_every", "30"}}), HasSubstr("cannot change in a running run yet"));
  EXPECT_THAT(why(OfRun(), {{"checkpoint.keep", "3"}}), HasSubstr("at the next start"));
  EXPECT_THAT(why(OfRun("model: {kind: external}"), {{"inner.lr", "1"}}),
              HasSubstr("the sites' scripts own their optimizer"));
  EXPECT_THAT(why(OfRun("sync: {mode: quorum}"), {{"codec.up", "int8"}}), HasSubstr("quorum mode"));
  const core::RunConfig automatic = OfRun("codec: {up: auto}");
  for (const char* codec : {"rotated_lm4", "rotated_sign"}) {  // the latter is what it begins with
    EXPECT_THAT(why(automatic, {{"codec.up", codec}}), HasSubstr("auto cannot begin or end in a running run"));
  }
  EXPECT_THAT(why(OfRun(), {{"codec.up", "rotated_lm4"}}), HasSubstr("residuals cannot pass"));
  // topk128 is what sparse stands for with two sites.
  const core::RunConfig sparse = OfRun("codec: {up: topk, down: sparse}\nmembership: {min_sites: 2}");
  EXPECT_THAT(why(sparse, {{"codec.down", "topk128"}}), HasSubstr("sparse cannot begin or end in a running run"));
  EXPECT_THAT(why(OfRun("codec: {up: topk, down: topk128}\nmembership: {min_sites: 2}"), {{"codec.down", "sparse"}}),
              HasSubstr("sparse cannot begin or end in a running run"));
  EXPECT_EQ(why(sparse, {{"membership.min_sites", "3"}}), "");
  EXPECT_EQ(why(OfRun("codec: {feedback_up: 0}"), {{"codec.up", "rotated_lm4"}}), "");
}

TEST(ChangedConfig, AMomentumMayGoAndComeBack) {
  const auto without = ChangedConfig(OfRun(), {{"outer.momentum", "0"}});
  ASSERT_TRUE(without.ok()) << without.status();
  const auto with = ChangedConfig(*without, {{"outer.momentum", "0.5"}});
  ASSERT_TRUE(with.ok()) << with.status();
  EXPECT_EQ(with->outer.momentum, 0.5f);
}

TEST(ConfigAtStart, TakesFromTheFileWhatEachStartTakes) {
  const core::RunConfig run = OfRun(), file = OfRun("inner: {lr: 0.1}\ncheckpoint: {keep: 9}\neval: {batches: 3}");
  const core::RunConfig config = ConfigAtStart(run, file);
  EXPECT_EQ(config.checkpoint.keep, 9);
  EXPECT_EQ(config.inner.lr, run.inner.lr);
  EXPECT_THAT(
      ConfigDifferences(config, file),
      ElementsAre("eval.batches (3; the run has 8): the run's value holds; it cannot change in a running run",
                  "inner.lr (0.1; the run has 0.003): the run's value holds; causewayctl set inner.lr=0.1 changes it"));
}

}  // namespace
}  // namespace causeway::formats
