#include "worker/loop/ranked_trainer.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/check.h"
#include "core/layout.h"
#include "tests/formats/temporary_folder.h"
#include "tests/worker/ranks/gloo_ranks.h"

namespace causeway::worker {
namespace {

using ::testing::HasSubstr;
using Kind = RankCommand::Kind;

constexpr int kWorld = 3;

core::RunConfig NoiseRun() {
  core::RunConfig config;
  config.model_kind = core::ModelKind::kSynthetic;
  config.synthetic.gradient = core::SyntheticGradient::kNoise;
  config.synthetic.tensors = {{"w", {5000}, 0.25f}, {"x", {7}, -1.0f}};
  config.synthetic.gradient_by_site = {{"eu", 0.5f}};
  config.inner.batch_size = kWorld;
  return config;
}

// A site of three ranks as threads: `lead` on rank 0, the others follow it. The statuses of all.
class RankedTrainerTest : public ::testing::Test {
 protected:
  using Lead = std::function<absl::Status(RankedTrainer& trainer, RankControl& control)>;

  std::vector<absl::Status> Run(const Lead& lead, double timeout_s = 60) {
    ThreadRanks threads(kWorld);
    trainers_.resize(kWorld);
    return OnRanks(kWorld, [&](int rank) -> absl::Status {
      OrderedCollectives values(threads.wire(rank));
      ASSIGN_OR_RETURN(std::unique_ptr<Collectives> group, values.Split(0, std::chrono::seconds(60)));
      RankControl control(std::move(group), timeout_s);
      ASSIGN_OR_RETURN(trainers_[rank],
                       MakeTrainer(NoiseRun(), "eu",
                                   {.ranks = {.values = &values, .timeout_s = timeout_s, .stop_requested = [&, rank] {
                                                return rank == stops_;
                                              }}}));
      if (before_ != nullptr) before_(rank);
      if (rank > 0) return FollowLeader(*trainers_[rank], control);
      control.StayAlive([&](const absl::Status& status) { heard_ = status; });
      RankedTrainer trainer(*trainers_[0], control, [&] { stopped_ = true; });
      const absl::Status status = lead(trainer, control);
      if (status.ok()) return control.Tell({.kind = Kind::kEnd, .count = 1});
      (void)control.Tell({.kind = Kind::kEnd, .payload = std::string(status.message())});
      return status;
    });
  }

  void ExpectAlike() {
    for (int tensor = 0; tensor < 2; ++tensor) {
      const std::span<const float> first = trainers_[0]->tensor(tensor);
      for (int rank = 1; rank < kWorld; ++rank) {
        EXPECT_TRUE(std::ranges::equal(first, trainers_[rank]->tensor(tensor))) << "rank " << rank;
      }
    }
  }

  int stops_ = -1;                        // the rank that gets SIGTERM
  std::function<void(int rank)> before_;  // on each rank, once it has its trainer
  std::vector<std::unique_ptr<Trainer>> trainers_;
  bool stopped_ = false;
  absl::Status heard_;
};

absl::Status TakeSteps(RankedTrainer& trainer, core::Step first, core::Step last) {
  for (core::Step t = first; t <= last; ++t) RETURN_IF_ERROR(trainer.Step(t).status());
  return absl::OkStatus();
}

// θ of all units of tensor w becomes 2, by the site's way.
absl::Status MoveAll(RankedTrainer& trainer) {
  std::vector<float> values(2 * core::kUnitValues, 2.0f);
  return trainer.store().Move({{0, 0, 2}}, replica::Movement::Mix(0, values));
}

TEST_F(RankedTrainerTest, StepsAndMovesAreThoseOfAllRanks) {
  const std::vector<absl::Status> statuses = Run([](RankedTrainer& trainer, RankControl&) -> absl::Status {
    RETURN_IF_ERROR(trainer.CheckAlike());
    trainer.SetSites({"eu", "us"});
    RETURN_IF_ERROR(TakeSteps(trainer, 1, 3));
    RETURN_IF_ERROR(MoveAll(trainer));
    return TakeSteps(trainer, 4, 5);
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  ExpectAlike();
}

TEST_F(RankedTrainerTest, ACheckpointOfTheLeaderIsLoadedOnAllRanks) {
  const std::string path = FolderOfProcess() / "ranked.safetensors";
  std::vector<float> saved;
  const std::vector<absl::Status> statuses = Run([&](RankedTrainer& trainer, RankControl&) -> absl::Status {
    RETURN_IF_ERROR(TakeSteps(trainer, 1, 2));
    RETURN_IF_ERROR(trainer.Save(path).status());
    saved.assign(trainer.tensor(0).begin(), trainer.tensor(0).end());
    RETURN_IF_ERROR(TakeSteps(trainer, 3, 4));
    return trainer.Load(path);
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(std::ranges::equal(saved, trainers_[2]->tensor(0)));
  ExpectAlike();
}

TEST_F(RankedTrainerTest, ARankWithOtherParametersIsNamedBeforeTheFirstStep) {
  before_ = [&](int rank) {
    if (rank == 2) trainers_[2]->tensor(1)[3] += 1;
  };
  const std::vector<absl::Status> statuses =
      Run([](RankedTrainer& trainer, RankControl&) { return trainer.CheckAlike(); });
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(status.message(), HasSubstr("rank 2 of 3 (thread) differs: expected initial parameters with digest"));
  }
}

TEST_F(RankedTrainerTest, ARankThatMovesDifferentlyIsNamedAtTheMove) {
  const std::vector<absl::Status> statuses = Run([&](RankedTrainer& trainer, RankControl&) -> absl::Status {
    RETURN_IF_ERROR(TakeSteps(trainer, 1, 1));
    trainer.tensor(0)[4999] = 7;  // as memory that flips
    std::vector<float> step(2 * core::kUnitValues, 1.0f);
    return trainer.store().Move({{0, 0, 2}}, replica::Movement::Step(0.5f, step));
  });
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(status.message(), HasSubstr("differs: expected parameters after a move with digest"));
  }
}

TEST_F(RankedTrainerTest, ARequestToStopOnAFollowerReachesTheLeader) {
  stops_ = 1;
  const std::vector<absl::Status> statuses =
      Run([](RankedTrainer& trainer, RankControl&) { return TakeSteps(trainer, 1, 1); });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(stopped_);
}

TEST_F(RankedTrainerTest, FollowersWaitAsLongAsTheLeaderLives) {
  constexpr double kTimeoutS = 0.2;
  const std::vector<absl::Status> statuses = Run(
      [](RankedTrainer& trainer, RankControl&) -> absl::Status {
        core::SleepUntil(core::SystemClock().Now() + std::chrono::milliseconds(600));  // a pause of the run
        return TakeSteps(trainer, 1, 1);
      },
      kTimeoutS);
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

TEST_F(RankedTrainerTest, FollowersSayWhyTheLeaderHasEnded) {
  const std::vector<absl::Status> statuses =
      Run([](RankedTrainer&, RankControl&) { return absl::PermissionDeniedError("refused by the coordinator"); });
  for (int rank = 1; rank < kWorld; ++rank) {
    EXPECT_EQ(statuses[rank].message(), "rank 0 has ended: refused by the coordinator");
  }
}

TEST_F(RankedTrainerTest, TheLeaderHearsOfAFollowerWhileItWaits) {
  before_ = [](int) {};
  ThreadRanks threads(2);
  auto control_of = [&](int rank) { return std::make_unique<OrderedCollectives>(threads.wire(rank)); };
  RankControl leader(control_of(0), 0.2);
  core::Mutex mutex;
  core::Condition changed;
  absl::Status heard;
  leader.StayAlive([&](const absl::Status& status) {
    core::MutexLock lock(mutex);
    heard = status;
    changed.NotifyAll();
  });
  threads.End(1);
  core::MutexLock lock(mutex);
  EXPECT_TRUE(lock.WaitFor(changed, std::chrono::seconds(30), [&] { return !heard.ok(); }));
  EXPECT_EQ(heard.message(), "rank 1 of 2 (thread) has ended");
}

}  // namespace
}  // namespace causeway::worker
