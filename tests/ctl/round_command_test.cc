#include "ctl/round_command.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "tests/folders.h"
#include "tests/formats/temporary_folder.h"

ABSL_DECLARE_FLAG(std::string, config);
ABSL_DECLARE_FLAG(std::string, codec);
ABSL_DECLARE_FLAG(std::string, fragment_sync_delay);
ABSL_DECLARE_FLAG(std::optional<double>, link_mbit);
ABSL_DECLARE_FLAG(std::optional<double>, rtt_ms);
ABSL_DECLARE_FLAG(std::optional<double>, step_ms);
ABSL_DECLARE_FLAG(std::optional<int>, sites);

namespace causeway::ctl {
namespace {

using testing::HasSubstr;

absl::StatusOr<core::Manifest> NoModel(const core::RunId&) { return absl::FailedPreconditionError("no site yet"); }

class RoundCommand : public testing::Test {
 protected:
  RoundCommand() {
    absl::SetFlag(&FLAGS_config, InSource("deploy/run.yaml"));
    absl::SetFlag(&FLAGS_link_mbit, 100);
    absl::SetFlag(&FLAGS_rtt_ms, 50);
    absl::SetFlag(&FLAGS_step_ms, 100);
    absl::SetFlag(&FLAGS_sites, 3);
  }

  void ExpectRefused(const std::string& part) {
    const absl::Status status = RunRoundCommand(false, NoModel);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }

  std::string Output(bool json) {
    testing::internal::CaptureStdout();
    const absl::Status status = RunRoundCommand(json, NoModel);
    EXPECT_TRUE(status.ok()) << status;
    return testing::internal::GetCapturedStdout();
  }

  absl::FlagSaver saver_;
};

TEST_F(RoundCommand, ExternalModelIsThatOfTheRun) {
  const TemporaryFolder folder;
  folder.Write("run.yaml", "run_id: any\nmodel: {kind: external}\nsync: {num_fragments: 2}\n");
  absl::SetFlag(&FLAGS_config, folder / "run.yaml");
  EXPECT_EQ(RunRoundCommand(false, NoModel).message(), "no site yet");
  testing::internal::CaptureStdout();
  const absl::Status status = RunRoundCommand(true, [](const core::RunId& run_id) -> absl::StatusOr<core::Manifest> {
    EXPECT_EQ(run_id, "any");
    return core::Manifest{{.name = "embed", .shape = {1000}},
                          {.name = "base", .shape = {1000}, .layer = 0, .frozen = true},
                          {.name = "adapter", .shape = {100}, .layer = 0}};
  });
  const auto json = nlohmann::json::parse(testing::internal::GetCapturedStdout());
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(json["parameters"], 1100);
}

TEST_F(RoundCommand, TheExampleOfRunYamlCanBePlanned) {
  const auto json = nlohmann::json::parse(Output(true));
  EXPECT_EQ(json["sync_every"], 20);
  EXPECT_EQ(json["up"]["codec"], "int4");
  EXPECT_TRUE(json["hub_mbit"].is_null());  // unlimited
}

TEST_F(RoundCommand, FlagsOverrideTheConfig) {
  absl::SetFlag(&FLAGS_codec, "rotated_sign");
  absl::SetFlag(&FLAGS_fragment_sync_delay, "7");
  const auto json = nlohmann::json::parse(Output(true));
  EXPECT_EQ(json["down"]["codec"], "rotated_sign");
  EXPECT_EQ(json["fragment_sync_delay"], 7);
}

TEST_F(RoundCommand, ABadFlagIsNamedWithWhatWasExpectedAndWhatCame) {
  absl::SetFlag(&FLAGS_link_mbit, -1);
  ExpectRefused("--link_mbit: expected a number above 0, got -1");
  absl::SetFlag(&FLAGS_link_mbit, std::nullopt);
  ExpectRefused("--link_mbit: expected a number above 0, got none");
  absl::SetFlag(&FLAGS_link_mbit, 100);
  absl::SetFlag(&FLAGS_sites, 0);
  ExpectRefused("--sites: expected 1 to 1024, got 0");
  absl::SetFlag(&FLAGS_sites, 3);
  absl::SetFlag(&FLAGS_codec, "int5");
  ExpectRefused("got 'int5'");
  absl::SetFlag(&FLAGS_codec, "onebit_adam_sign");  // up leg only: the config's own rules hold for overrides
  ExpectRefused("codec.down");
  absl::SetFlag(&FLAGS_codec, "");
  absl::SetFlag(&FLAGS_fragment_sync_delay, "20");
  ExpectRefused("sync.fragment_sync_delay: expected 0 to 19");
  absl::SetFlag(&FLAGS_fragment_sync_delay, "soon");
  ExpectRefused("got 'soon'");
}

}  // namespace
}  // namespace causeway::ctl
