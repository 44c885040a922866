#include "worker/parallel/pipeline_program.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "plan/pipeline_check.h"
#include "plan/pipeline_generators.h"

namespace causeway::worker {
namespace {

using ::testing::HasSubstr;

PipelinePrograms ProgramsOf(const std::string& name, int devices, int micro_batches) {
  const auto schedule = plan::Generate(name, {.devices = devices, .micro_batches = micro_batches});
  EXPECT_TRUE(schedule.ok()) << name << ": " << schedule.status();
  const auto programs = CompilePipeline(*schedule);
  EXPECT_TRUE(programs.ok()) << name << ": " << programs.status();
  return *programs;
}

int64_t MessagesOf(const PipelinePrograms& programs) {
  int64_t all = 0;
  for (const PipelineProgram& program : programs.devices) {
    for (const auto& [to, count] : program.given) all += count;
  }
  return all;
}

TEST(PipelineProgram, HasAsManyMessagesAsTheFormulaSays) {
  for (const int d : {2, 4}) {
    const int n = 4 * d;
    const auto line = [&](int chunks) { return 2 * n * (chunks * d - 1); };
    for (const std::string name : {"gpipe", "1f1b", "zb_h1", "dualpipe"}) {
      EXPECT_EQ(MessagesOf(ProgramsOf(name, d, n)), line(1)) << name << d;
    }
    EXPECT_EQ(MessagesOf(ProgramsOf("interleaved", d, n)), line(2));
    EXPECT_EQ(MessagesOf(ProgramsOf("zeropp", d, n)), line(2));
    EXPECT_EQ(MessagesOf(ProgramsOf("zb_v", d, n)), 2 * line(1));  // where the V turns it stays on the device
  }
}

TEST(PipelineProgram, EveryMessageThatIsGivenIsTaken) {
  for (const std::string& name : plan::GeneratorNames()) {
    const PipelinePrograms programs = ProgramsOf(name, 4, 8);
    for (int from = 0; from < 4; ++from) {
      for (const auto& [to, count] : programs.devices[static_cast<size_t>(from)].given) {
        EXPECT_EQ(programs.devices[static_cast<size_t>(to)].received.at(from), count) << name;
      }
    }
  }
}

TEST(PipelineProgram, StopsWithARendezvousUnlessAllForwardsComeFirst) {
  for (const std::string& name : plan::GeneratorNames()) {
    const absl::Status blocking = Rehearse(ProgramsOf(name, 4, 8), 8, SendKind::kRendezvous);
    if (name == "gpipe") {
      EXPECT_TRUE(blocking.ok()) << blocking;
      continue;
    }
    EXPECT_TRUE(absl::IsInvalidArgument(blocking)) << name;
    EXPECT_THAT(std::string(blocking.message()), HasSubstr("schedule: device 0 waits at ")) << name;
    EXPECT_THAT(std::string(blocking.message()), HasSubstr(" to receive")) << name;
  }
}

TEST(PipelineProgram, WithFewerBuffersThanItNeedsStopsWhereALaterMessageHoldsThem) {
  const PipelinePrograms programs = ProgramsOf("zb_v", 4, 8);
  EXPECT_EQ(programs.slots, 2);
  EXPECT_TRUE(Rehearse(programs, 2, SendKind::kAsynchronous).ok());
  const absl::Status stopped = Rehearse(programs, 1, SendKind::kAsynchronous);
  EXPECT_TRUE(absl::IsInvalidArgument(stopped));
  EXPECT_THAT(std::string(stopped.message()), HasSubstr("for a slot from device "));
}

TEST(PipelineProgram, NeedsTheBuffersThatTheCheckerSays) {
  for (const std::string& name : plan::GeneratorNames()) {
    const auto schedule = plan::Generate(name, {.devices = 4, .micro_batches = 8});
    const auto programs = CompilePipeline(*schedule);
    ASSERT_TRUE(programs.ok());
    EXPECT_EQ(programs->slots, plan::ReceiveSlots(*schedule));
    EXPECT_EQ(programs->slots, name == "zb_v" ? 2 : 1) << name;
  }
}

}  // namespace
}  // namespace causeway::worker
