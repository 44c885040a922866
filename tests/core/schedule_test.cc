#include "core/schedule.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "core/run_settings.h"

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

RunConfig WithLr(double lr) {
  RunConfig config;
  config.inner.lr = lr;
  return config;
}

class RunSettingsTest : public testing::Test {
 protected:
  RunSettingsTest() {
    settings_.Add({.number = 1, .step = 10, .versions = {2, 1}}, WithLr(0.2));
    settings_.Add({.number = 2, .step = 20, .versions = {3, 3}}, WithLr(0.3));
  }

  RunSettings settings_{WithLr(0.1)};
};

TEST_F(RunSettingsTest, AStepHasTheLastRevisionThatBeganByThen) {
  for (const auto& [step, lr] :
       std::vector<std::pair<Step, double>>{{1, 0.1}, {9, 0.1}, {10, 0.2}, {19, 0.2}, {20, 0.3}, {500, 0.3}}) {
    EXPECT_EQ(settings_.AtStep(step).inner.lr, lr) << step;
  }
}

TEST_F(RunSettingsTest, AVersionOfAFragmentLikewise) {
  EXPECT_EQ(settings_.AtVersion(0, 1).inner.lr, 0.1);
  EXPECT_EQ(settings_.AtVersion(1, 1).inner.lr, 0.2);
  EXPECT_EQ(settings_.AtVersion(0, 2).inner.lr, 0.2);
  EXPECT_EQ(settings_.AtVersion(1, 2).inner.lr, 0.2);
  EXPECT_EQ(settings_.AtVersion(0, 3).inner.lr, 0.3);
  EXPECT_EQ(settings_.newest().inner.lr, 0.3);
  EXPECT_EQ(settings_.first().inner.lr, 0.1);
}

TEST_F(RunSettingsTest, ARevisionThatIsKnownIsPassedOver) {
  const RunConfig* const before = &settings_.AtStep(10);
  EXPECT_FALSE(settings_.Add({.number = 1, .step = 5, .versions = {0, 0}}, WithLr(9)));
  EXPECT_FALSE(settings_.Add({.number = 2, .step = 5, .versions = {0, 0}}, WithLr(9)));
  EXPECT_EQ(&settings_.AtStep(10), before) << "references stay valid";
  EXPECT_EQ(settings_.revision(), 2);
  EXPECT_EQ(settings_.After(1).size(), 1u);
  EXPECT_EQ(settings_.After(0)[0].number, 1);
  EXPECT_TRUE(settings_.After(2).empty());
}

TEST_F(RunSettingsTest, RevisionsOfALostStateGiveWayToThoseOfItsSuccessor) {
  const RunConfig& held = settings_.newest();
  settings_.Forget();
  EXPECT_EQ(settings_.revision(), 0);
  EXPECT_EQ(settings_.AtStep(500).inner.lr, 0.1);
  EXPECT_TRUE(settings_.Add({.number = 1, .step = 30, .versions = {4, 4}}, WithLr(0.5)));
  EXPECT_EQ(settings_.AtStep(500).inner.lr, 0.5);
  EXPECT_EQ(held.inner.lr, 0.3) << "references stay valid";
}

// ---- Chains ----

// Revisions from number `first` on, each of one step and version more.
SettingsChain ChainOf(int64_t first, int64_t last, uint64_t before = 0, uint64_t nonce = 7) {
  SettingsChain chain{.before = before, .revisions = {}};
  uint64_t parent = before;
  for (int64_t number = first; number <= last; ++number) {
    SettingsRevision one{
        .number = number, .step = 10 * number, .versions = {number}, .run_config = "x", .nonce = nonce};
    parent = one.digest = DigestOf(parent, one);
    chain.revisions.push_back(one);
  }
  return chain;
}

std::unique_ptr<RunSettings> Knowing(const SettingsChain& chain) {
  auto settings = std::make_unique<RunSettings>(WithLr(0.1));
  settings->BeginAfter(chain.before);
  for (const SettingsRevision& one : chain.revisions) settings->Add(one, WithLr(0.2));
  return settings;
}

TEST(SettingsChain, EachDigestIsOverTheOneBeforeAndAllThatDecides) {
  const SettingsChain chain = ChainOf(1, 3);
  EXPECT_TRUE(chain.IsChained());
  EXPECT_NE(ChainOf(1, 3, 0, /*nonce=*/8).revisions[2].digest, chain.revisions[2].digest);
  for (const auto& change : std::vector<std::function<void(SettingsRevision&)>>{
           [](auto& one) { ++one.number; }, [](auto& one) { ++one.step; }, [](auto& one) { ++one.versions[0]; },
           [](auto& one) { one.run_config = "y"; }, [](auto& one) { ++one.nonce; },
           [](auto& one) { one.digest = 0; }}) {
    for (size_t i = 0; i < 3; ++i) {
      SettingsChain other = chain;
      change(other.revisions[i]);
      EXPECT_FALSE(other.IsChained()) << i;
    }
  }
  SettingsChain begun = chain;
  begun.before = chain.revisions[0].digest;
  begun.revisions.erase(begun.revisions.begin());
  EXPECT_TRUE(begun.IsChained());
  EXPECT_EQ(begun.DigestAt(1), chain.revisions[0].digest);
  EXPECT_EQ(begun.DigestAt(0), 0u);
  begun.before = 0;
  EXPECT_FALSE(begun.IsChained()) << "the one before the second is lacking";
}

TEST(RunSettingsChain, IsThatOfTheNewestSixtyFour) {
  const auto settings = Knowing(ChainOf(1, 100));
  const SettingsChain chain = settings->Chain();
  ASSERT_EQ(chain.revisions.size(), 64u);
  EXPECT_EQ(chain.revisions.front().number, 37);
  EXPECT_EQ(chain.before, ChainOf(1, 36).revisions.back().digest);
  EXPECT_TRUE(chain.IsChained());
  EXPECT_EQ(settings->After(0).size(), 64u);
}

TEST(RunSettingsChain, AgreesWhereTheOtherLacksNothingAndHasTheSame) {
  const SettingsChain three = ChainOf(1, 3);
  const auto known = Knowing(three);
  const RunSettings& settings = *known;
  EXPECT_TRUE(settings.Agrees(three, {0}));
  EXPECT_TRUE(settings.Agrees(ChainOf(1, 9), {0}));
  EXPECT_FALSE(settings.Agrees(ChainOf(1, 2), {0})) << "it lacks the third";
  EXPECT_FALSE(settings.Agrees({}, {0})) << "it lacks all";
  EXPECT_FALSE(settings.Agrees(ChainOf(1, 3, 0, /*nonce=*/8), {0})) << "others of the same numbers";
  EXPECT_FALSE(settings.Agrees(ChainOf(1, 9, 0, /*nonce=*/8), {0}));
  const SettingsChain later = ChainOf(4, 6, three.revisions.back().digest);
  EXPECT_TRUE(settings.Agrees(later, {0}));
  EXPECT_FALSE(settings.Agrees(ChainOf(4, 6, 99), {0})) << "it follows another third";
  EXPECT_FALSE(settings.Agrees(ChainOf(6, 8, 99), {5})) << "a gap that may matter";
  EXPECT_TRUE(settings.Agrees(ChainOf(6, 8, 99), {6})) << "all of what is lacking is over";
  EXPECT_TRUE(RunSettings(WithLr(0.1)).Agrees(three, {0})) << "a site without any is not ahead";
  SettingsChain of_before = three;  // of a program that gave no digests
  for (SettingsRevision& one : of_before.revisions) one.digest = 0;
  EXPECT_TRUE(settings.Agrees(of_before, {0}));
}

TEST(RunSettingsPending, AreThoseAheadThatNoLaterOneHasReplaced) {
  RunSettings settings(WithLr(0.1));
  const auto add = [&](int64_t number, Step step, double lr) {
    settings.Add({.number = number, .step = step, .versions = {step}}, WithLr(lr));
  };
  add(1, 1000, 0.2);
  ASSERT_EQ(settings.Pending(50).size(), 1u);
  EXPECT_EQ(settings.Pending(50)[0].config->inner.lr, 0.2);
  EXPECT_EQ(settings.Pending(1000).size(), 0u);
  add(2, 60, 0.3);  // and the pending one on top of it
  add(3, 1000, 0.4);
  ASSERT_EQ(settings.Pending(50).size(), 2u);
  EXPECT_EQ(settings.Pending(50)[1].config->inner.lr, 0.4);
  EXPECT_EQ(settings.AtStep(500).inner.lr, 0.3);
  add(4, 70, 0.3);  // a cancel
  EXPECT_EQ(settings.Pending(70).size(), 0u);
  EXPECT_EQ(settings.AtStep(5000).inner.lr, 0.3);
}

}  // namespace
}  // namespace causeway::core
