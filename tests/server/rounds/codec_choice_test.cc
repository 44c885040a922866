#include "server/rounds/codec_choice.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

namespace causeway::server {
namespace {

using core::CodecId;
using ::testing::HasSubstr;

// In a round of 10 s, on 1 MB/s, 4 bits take 8 s, 2 bits 4 s and 1 bit 2 s.
const std::vector<CodecOption> kOptions = {
    {CodecId::kRotatedLm4, 8'000'000}, {CodecId::kRotatedLm2, 4'000'000}, {CodecId::kRotatedSign, 2'000'000}};
constexpr double kRoundS = 10;

CodecId ChosenAt(CodecChoice& choice, double megabytes_per_s) {
  choice.Choose({{"asia", megabytes_per_s * 1e6}, kRoundS});
  return choice.codec();
}

TEST(CodecChoice, BeginsWithTheCheapestAndKeepsItWhileNothingIsMeasured) {
  CodecChoice choice(kOptions);
  EXPECT_EQ(choice.codec(), CodecId::kRotatedSign);
  EXPECT_FALSE(choice.Choose({{"asia", 0}, kRoundS}));
  EXPECT_EQ(choice.codec(), CodecId::kRotatedSign);
  EXPECT_EQ(choice.reason(), "rotated_sign, the cheapest: the link of asia is not measured yet");
  EXPECT_FALSE(choice.Choose({{"asia", 1e9}, 0}));
  EXPECT_EQ(choice.reason(), "rotated_sign, the cheapest: the time of a step is not measured yet");
  EXPECT_FALSE(choice.Choose({{"", 0}, kRoundS}));
  EXPECT_EQ(choice.reason(), "rotated_sign: no site is active");
}

TEST(CodecChoice, TakesTheBestThatFitsTheRoundOnTheSlowestLink) {
  for (const auto& [rate, codec] : {std::pair{10.0, CodecId::kRotatedLm4},
                                    {1.3, CodecId::kRotatedLm4},
                                    {1.1, CodecId::kRotatedLm2},
                                    {0.6, CodecId::kRotatedSign},
                                    {0.001, CodecId::kRotatedSign}}) {
    CodecChoice choice(kOptions);
    EXPECT_EQ(ChosenAt(choice, rate), codec) << rate;
  }
}

TEST(CodecChoice, ACheaperOneIsTakenAtOnceAndABetterOneOnlyWithRoomToSpare) {
  CodecChoice choice(kOptions);
  EXPECT_EQ(ChosenAt(choice, 1.24), CodecId::kRotatedLm4);  // 6.5 s of 10
  EXPECT_EQ(ChosenAt(choice, 1.01), CodecId::kRotatedLm4);  // 7.9 s: stays
  EXPECT_EQ(ChosenAt(choice, 0.99), CodecId::kRotatedLm2);  // 8.1 s: not any more
  EXPECT_EQ(ChosenAt(choice, 1.22), CodecId::kRotatedLm2);  // 6.6 s: not yet again
  EXPECT_EQ(ChosenAt(choice, 1.24), CodecId::kRotatedLm4);
  EXPECT_EQ(ChosenAt(choice, 0.3), CodecId::kRotatedSign);  // past the one in between
}

TEST(CodecChoice, ARateThatSwaysBetweenTheThresholdsChangesNothing) {
  CodecChoice choice(kOptions);
  ChosenAt(choice, 2);
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(choice.Choose({{"asia", (i % 2 == 0 ? 1.01 : 1.2) * 1e6}, kRoundS}));
}

TEST(CodecChoice, AnUnmeasuredNewcomerTakesItDownUntilItIsMeasured) {
  CodecChoice choice(kOptions);
  EXPECT_TRUE(choice.Choose({{"eu", 5e6}, kRoundS}));
  EXPECT_TRUE(choice.Choose({{"new", 0}, kRoundS}));
  EXPECT_EQ(choice.codec(), CodecId::kRotatedSign);
  EXPECT_TRUE(choice.Choose({{"eu", 5e6}, kRoundS}));
  EXPECT_EQ(choice.codec(), CodecId::kRotatedLm4);
}

TEST(CodecChoice, SaysWhatTheCodecNeedsAndWhatTheBetterOneWould) {
  CodecChoice choice(kOptions);
  ChosenAt(choice, 1);
  EXPECT_EQ(
      choice.reason(),
      "rotated_lm2: 4 MB a round need 4 s of 10 s on the slowest link (asia, 1 MB/s); rotated_lm4 would need 8 s, "
      "and is taken up to 6.5 s");
  ChosenAt(choice, 4);
  EXPECT_EQ(choice.reason(), "rotated_lm4: 8 MB a round need 2 s of 10 s on the slowest link (asia, 4 MB/s)");
}

core::Progress ProgressOf(core::Step step, double compute_s, const core::LinkProgress& link = {}) {
  core::Progress progress;
  progress.step = step;
  progress.compute_s = compute_s;
  progress.link = link;
  return progress;
}

TEST(SiteSpeeds, TheSlowestOfTheSitesThatAreAskedFor) {
  SiteSpeeds speeds;
  speeds.Heard("a", ProgressOf(0, 0, {.up_bytes_per_s = 5, .down_bytes_per_s = 1}));
  speeds.Heard("b", ProgressOf(0, 0, {.up_bytes_per_s = 3, .down_bytes_per_s = 7}));
  EXPECT_EQ(speeds.SlowestLink({"a", "b"}, SiteSpeeds::Leg::kUp).site, "b");
  EXPECT_EQ(speeds.SlowestLink({"a", "b"}, SiteSpeeds::Leg::kDown).bytes_per_s, 1);
  EXPECT_EQ(speeds.SlowestLink({"a"}, SiteSpeeds::Leg::kUp).bytes_per_s, 5);
  EXPECT_EQ(speeds.SlowestLink({"a", "b", "c"}, SiteSpeeds::Leg::kUp).site, "c");
  EXPECT_EQ(speeds.SlowestLink({}, SiteSpeeds::Leg::kUp).site, "");
  speeds.Heard("d", ProgressOf(0, 0, {.up_bytes_per_s = 5, .down_bytes_per_s = 1}));
  EXPECT_EQ(speeds.SlowestLink({"a", "d"}, SiteSpeeds::Leg::kDown).site, "a") << "the first of several";
}

TEST(SiteSpeeds, WhatShortTransfersReachCountsWhereItIsMoreThanWasMeasured) {
  SiteSpeeds speeds;
  speeds.Heard("a", ProgressOf(0, 0, {.up_bytes_per_s = 5, .up_least_bytes_per_s = 4}));
  EXPECT_EQ(speeds.SlowestLink({"a"}, SiteSpeeds::Leg::kUp).bytes_per_s, 5);
  speeds.Heard("a", ProgressOf(0, 0, {.up_bytes_per_s = 5, .up_least_bytes_per_s = 8}));  // the link got faster
  EXPECT_EQ(speeds.SlowestLink({"a"}, SiteSpeeds::Leg::kUp).bytes_per_s, 8);
}

TEST(SiteSpeeds, AStepTakesWhatTheSlowestSiteComputesAndNotWhatItWaits) {
  SiteSpeeds speeds;
  EXPECT_EQ(speeds.StepS({"a"}), 0);
  for (int i = 1; i < 5; ++i) {
    speeds.Heard("a", ProgressOf(10 * i, 1.0 * i));
    speeds.Heard("b", ProgressOf(10 * i, 2.5 * i));
  }
  EXPECT_DOUBLE_EQ(speeds.StepS({"a", "b"}), 0.25);
  EXPECT_DOUBLE_EQ(speeds.StepS({"a", "unknown"}), 0.1);
  speeds.Heard("a", ProgressOf(50, 0.01));  // entered anew: computed since then, a step from elsewhere
  EXPECT_DOUBLE_EQ(speeds.StepS({"a"}), 0.1);
}

}  // namespace
}  // namespace causeway::server
