#include "core/schedule.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

namespace causeway::core {
namespace {

TEST(FragmentSchedule, OffsetsSpreadTheFragmentsOverTheInterval) {
  const FragmentSchedule schedule(20, 4, 1);
  EXPECT_EQ(schedule.Offset(0), 5);
  EXPECT_EQ(schedule.Offset(1), 10);
  EXPECT_EQ(schedule.Offset(2), 15);
  EXPECT_EQ(schedule.Offset(3), 0);
}

TEST(FragmentSchedule, IntervalNeedNotBeAMultipleOfTheFragments) {
  const FragmentSchedule schedule(7, 3, 0);
  EXPECT_EQ(schedule.Offset(0), 2);  // floor(7/3)
  EXPECT_EQ(schedule.Offset(1), 4);  // floor(14/3)
  EXPECT_EQ(schedule.Offset(2), 0);  // 7 mod 7
}

TEST(FragmentSchedule, FirstIntervalIsLongerByTheOffsetAndLaterOnesAreExact) {
  const FragmentSchedule schedule(7, 3, 2);
  for (FragmentId p = 0; p < 3; ++p) {
    EXPECT_EQ(schedule.SendStep(p, 0), 7 + schedule.Offset(p));
    for (Version v = 0; v < 5; ++v) {
      EXPECT_EQ(schedule.SendStep(p, v + 1) - schedule.SendStep(p, v), 7);
      EXPECT_EQ(schedule.ApplyStep(p, v), schedule.SendStep(p, v) + 2);
    }
  }
}

// docs/architecture.md, word for word, against the schedule's answers.
TEST(FragmentSchedule, SendsAndAppliesWhereTheProtocolsRulesSay) {
  for (const auto& [h, parts, delay] : std::vector<std::tuple<int, int, int>>{
           {6, 1, 0}, {6, 2, 1}, {6, 3, 3}, {7, 3, 5}, {5, 5, 4}, {1, 1, 0}, {20, 4, 19}}) {
    const FragmentSchedule schedule(h, parts, delay);
    for (FragmentId p = 0; p < parts; ++p) {
      const Step offset = (p + 1) * h / parts % h;
      Version sent = 0, applied = 0;
      for (Step t = 1; t <= 5 * h; ++t) {
        const bool sends = t >= h && (t - offset) % h == 0;
        const bool applies = t - delay >= h && (t - offset - delay) % h == 0;
        EXPECT_EQ(schedule.SendsAt(p, t), sends ? sent++ : -1)
            << "H " << h << " P " << parts << " p " << p << " t " << t;
        EXPECT_EQ(schedule.ApplyStep(p, applied) == t, applies) << "H " << h << " p " << p << " t " << t;
        applied += applies ? 1 : 0;
      }
    }
  }
}

TEST(FragmentSchedule, DelayBeyondTheSpacingHasSeveralFragmentsInFlight) {
  const FragmentSchedule schedule(6, 3, 5);  // sends are 2 steps apart
  std::vector<int> in_flight_after;
  int in_flight = 0;
  std::vector<Version> applied(3);
  for (Step t = 1; t <= 18; ++t) {
    for (FragmentId p = 0; p < 3; ++p) in_flight += schedule.SendsAt(p, t) >= 0;
    for (FragmentId p = 0; p < 3; ++p) {
      if (schedule.ApplyStep(p, applied[p]) != t) continue;
      ++applied[p];
      --in_flight;
    }
    in_flight_after.push_back(in_flight);
  }
  EXPECT_EQ(in_flight_after, (std::vector<int>{0, 0, 0, 0, 0, 1, 1, 2, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3}));
}

TEST(FragmentSchedule, FirstBaseAfterIsTheNextSendOfAJoiner) {
  const FragmentSchedule schedule(20, 4, 1);
  for (FragmentId p = 0; p < 4; ++p) {
    for (Step t = 0; t < 90; ++t) {
      const Version base = schedule.FirstBaseAfter(p, t);
      EXPECT_GT(schedule.SendStep(p, base), t);
      EXPECT_TRUE(base == 0 || schedule.SendStep(p, base - 1) <= t) << "p " << p << " t " << t;
    }
  }
}

TEST(FragmentSchedule, OffsetsAreTheGivenOnes) {
  const FragmentSchedule schedule(10, 3, 2, {4, 0, 9});
  for (Version v = 0; v < 4; ++v) {
    EXPECT_EQ(schedule.SendStep(0, v), 14 + 10 * v);
    EXPECT_EQ(schedule.SendStep(1, v), 10 + 10 * v);
    EXPECT_EQ(schedule.SendStep(2, v), 19 + 10 * v);
    EXPECT_EQ(schedule.ApplyStep(2, v), 21 + 10 * v);
  }
}

TEST(FragmentSchedule, FirstSendAtTheOffsetIsWithinTheFirstInterval) {
  const FragmentSchedule schedule(10, 3, 2, {4, 0, 9}, FirstSend::kOffset);
  EXPECT_EQ(schedule.SendStep(0, 0), 4);
  EXPECT_EQ(schedule.SendStep(1, 0), 10);  // 0 counts as H: nothing is sent before the first step
  EXPECT_EQ(schedule.SendStep(2, 0), 9);
  EXPECT_EQ(schedule.SendStep(0, 3), 34);
  EXPECT_EQ(schedule.SendStep(1, 3), 40);
}

// torchft sends fragment p at (p+1) H / P − τ, from the first interval on.
TEST(FragmentSchedule, FollowsAnotherProgramsSchedule) {
  const FragmentSchedule schedule(20, 2, 3, {7, 17}, FirstSend::kOffset);
  EXPECT_EQ(schedule.ApplyStep(0, 0), 10);
  EXPECT_EQ(schedule.ApplyStep(1, 0), 20);
  EXPECT_EQ(schedule.ApplyStep(0, 1), 30);
}

TEST(FragmentSchedule, EachStepSendsWhatSendStepSaysWithAnyOffsets) {
  for (const FirstSend first : {FirstSend::kFull, FirstSend::kOffset}) {
    for (const std::vector<Step>& offsets : {std::vector<Step>{0, 0, 0}, {6, 1, 6}, {3, 5, 0}}) {
      const FragmentSchedule schedule(7, 3, 6, offsets, first);
      for (FragmentId p = 0; p < 3; ++p) {
        Version next = 0;
        for (Step t = 0; t < 50; ++t) {
          EXPECT_EQ(schedule.FirstBaseAfter(p, t), next + (schedule.SendStep(p, next) == t ? 1 : 0));
          const Version sent = schedule.SendsAt(p, t);
          EXPECT_EQ(sent, schedule.SendStep(p, next) == t ? next : -1) << "p " << p << " t " << t;
          if (sent < 0) continue;
          EXPECT_EQ(schedule.ApplyStep(p, sent), t + 6);
          ++next;
        }
        EXPECT_GE(next, 6);
      }
    }
  }
}

TEST(FragmentSchedule, ImpossibleSettingsAreTheCallersBug) {
  EXPECT_DEATH(FragmentSchedule(4, 5, 0), "CHECK failed");
  EXPECT_DEATH(FragmentSchedule(4, 2, 4), "CHECK failed");
  EXPECT_DEATH(FragmentSchedule(4, 0, 0), "CHECK failed");
  EXPECT_DEATH(FragmentSchedule(4, 2, 0, {1}), "CHECK failed");
  EXPECT_DEATH(FragmentSchedule(4, 2, 0, {1, 4}), "CHECK failed");
  EXPECT_DEATH(FragmentSchedule(4, 2, 0, {-1, 3}), "CHECK failed");
}

TEST(EntryStep, IsTheLatestSendOfWhichTheOutcomeIsDecided) {
  const FragmentSchedule schedule(20, 4, 1);  // sends at 25, 30, 35 and 20; then every 20
  EXPECT_EQ(EntryStep(schedule, {0, 0, 0, 0}), 0);
  EXPECT_EQ(EntryStep(schedule, {0, 0, 0, 1}), 20);
  EXPECT_EQ(EntryStep(schedule, {1, 0, 0, 1}), 25);
  EXPECT_EQ(EntryStep(schedule, {1, 1, 1, 1}), 35);
  EXPECT_EQ(EntryStep(schedule, {1, 1, 1, 2}), 40);
  const FragmentSchedule early(20, 2, 1, {12, 3}, FirstSend::kOffset);  // sends at 12 and 3; then every 20
  EXPECT_EQ(EntryStep(early, {0, 0}), 0);
  EXPECT_EQ(EntryStep(early, {0, 1}), 3);
  EXPECT_EQ(EntryStep(early, {1, 2}), 23);
}

}  // namespace
}  // namespace causeway::core
