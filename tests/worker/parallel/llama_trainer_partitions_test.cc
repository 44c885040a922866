#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "formats/yaml_message.h"
#include "tests/worker/model/test_values.h"
#include "tests/worker/ranks/fake_nccl_ranks.h"
#include "tests/worker/ranks/gloo_ranks.h"
#include "worker/parallel/level_shards.h"
#include "worker/parallel/llama_trainer.h"

namespace causeway::worker {
namespace {

using ::testing::HasSubstr;

core::RunConfig RunOf(const core::PartitionConfig& partition, bool tied = false, int64_t micro_batches = 2) {
  core::RunConfig config = TinyRun();
  config.llama.num_hidden_layers = 3;
  config.llama.tie_word_embeddings = tied;
  config.inner.batch_size = 16;
  config.inner.micro_batches = micro_batches;
  config.inner.partition = partition;
  return config;
}

std::string PartitionData() {
  static const std::string path = WriteTemporary("text", SmallText(20'000));
  return path;
}

// Eight ranks of two, two and two.
std::string Levels(const std::string& sizes = "2 2 2") {
  std::string text = "levels:\n";
  const char* const names[] = {"pair", "node", "site"};
  for (size_t l = 0; l < 3; ++l) {
    text += absl::StrCat("  - {name: ", names[l], ", of: ", std::string(1, sizes[2 * l]),
                         ", gbyte_per_s: 1, latency_us: 1}\n");
  }
  return WriteTemporary(absl::StrCat("levels_", sizes.substr(0, 1), sizes.substr(2, 1), sizes.substr(4, 1)), text);
}

struct TrainedPartitions {
  std::vector<RankUnderTest> ranks;  // first: trainers use them
  std::vector<absl::Status> statuses;
  std::vector<std::unique_ptr<Trainer>> trainers;
  double loss = 0;

  std::vector<float> tensor(int i) const {
    const std::vector<Piece> pieces = trainers[0]->pieces(i);
    const std::span<const float> own = trainers[0]->tensor(i);
    std::vector<float> whole(own.begin(), own.end());
    for (const Piece& piece : pieces) {
      const std::span<const float> theirs = trainers[static_cast<size_t>(piece.rank)]->tensor(i);
      std::ranges::copy(theirs.subspan(static_cast<size_t>(piece.first), static_cast<size_t>(piece.count)),
                        whole.begin() + piece.first);
    }
    return whole;
  }
};

struct Steps {
  core::Step from = 1, to = 3;
  std::string load, save;
};

TrainedPartitions TrainPartitions(const core::RunConfig& config, std::vector<RankUnderTest> ranks,
                                  const Steps& steps = {}, const std::string& levels = Levels()) {
  const auto world = static_cast<int>(ranks.size());
  TrainedPartitions trained{.ranks = std::move(ranks), .statuses = {}, .trainers = {}};
  trained.trainers.resize(trained.ranks.size());
  trained.statuses = OnRanks(world, [&](int rank) -> absl::Status {
    const auto at = static_cast<size_t>(rank);
    ASSIGN_OR_RETURN(trained.trainers[at],
                     LlamaTrainer::Make(config, "eu",
                                        {.data_path = PartitionData(),
                                         .ranks = {.values = trained.ranks[at].collectives.get(), .timeout_s = 60},
                                         .levels_path = levels}));
    Trainer& trainer = *trained.trainers[at];
    if (!steps.load.empty()) RETURN_IF_ERROR(trainer.Load(steps.load));
    for (core::Step t = steps.from; t <= steps.to; ++t) {
      ASSIGN_OR_RETURN(const StepResult result, trainer.Step(t));
      if (rank == 0) trained.loss = result.loss;
    }
    if (steps.save.empty()) return absl::OkStatus();
    RETURN_IF_ERROR(trainer.GatherState());
    return rank == 0 ? trainer.Save(steps.save).status() : absl::OkStatus();
  });
  for (const absl::Status& status : trained.statuses) EXPECT_TRUE(status.ok()) << status;
  return trained;
}

const core::PartitionConfig kDataParallel{"rank", "rank", "rank"}, kZero1{"rank", "rank", "site"},
    kZero2{"rank", "site", "site"}, kZero3{"site", "site", "site"}, kThree{"pair", "node", "site"};

double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  double squares = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    squares += std::pow(static_cast<double>(a[i]) - b[i], 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(squares / norm);
}

TEST(LlamaTrainerPartitions, EveryPartitionTrainsLikeOneRank) {
  for (const bool tied : {false, true}) {
    core::RunConfig alone = RunOf(kDataParallel, tied, 16);  // the rows of all ranks' micro-batches
    alone.inner.partition.reset();
    const auto one = MakeTrainer(alone, "eu", {.data_path = PartitionData()});
    ASSERT_TRUE(one.ok()) << one.status();
    double loss = 0;
    for (core::Step t = 1; t <= 3; ++t) loss = (*one)->Step(t)->loss;
    for (const core::PartitionConfig& partition : {kDataParallel, kZero1, kZero2, kZero3, kThree}) {
      const TrainedPartitions trained = TrainPartitions(RunOf(partition, tied), OverThreads(8));
      EXPECT_NEAR(trained.loss, loss, 1e-5);
      for (size_t i = 0; i < (*one)->manifest().size(); ++i) {
        const std::span<const float> theirs = (*one)->tensor(static_cast<int>(i));
        EXPECT_LT(Distance(trained.tensor(static_cast<int>(i)), {theirs.begin(), theirs.end()}), 1e-4)
            << partition.weights << " " << partition.gradients << " " << (*one)->manifest()[i].name;
      }
    }
  }
}

// θ of a step of plain SGD at rate 1 is θ less the gradient.
TEST(LlamaTrainerPartitions, TheFirstGradientAndAHundredStepsAreThoseOfDataParallelRanks) {
  core::RunConfig sgd = RunOf(kDataParallel);
  sgd.inner.optimizer = core::InnerOptimizerKind::kSgd;
  sgd.inner.lr = 1;
  sgd.inner.warmup_steps = 0;
  sgd.inner.weight_decay = sgd.inner.clip = 0;
  const Steps one{.from = 1, .to = 1}, none{.from = 1, .to = 0}, hundred{.from = 1, .to = 100};
  const TrainedPartitions start = TrainPartitions(sgd, OverThreads(8), none),
                          plain = TrainPartitions(sgd, OverThreads(8), one);
  const double loss = TrainPartitions(RunOf(kDataParallel), OverThreads(8), hundred).loss;
  for (const core::PartitionConfig& partition : {kZero2, kThree}) {
    sgd.inner.partition = partition;
    const TrainedPartitions divided = TrainPartitions(sgd, OverThreads(8), one);
    double difference = 0, norm = 0;
    for (size_t i = 0; i < start.trainers[0]->manifest().size(); ++i) {
      const auto tensor = static_cast<int>(i);
      const std::vector<float> begin = start.tensor(tensor), theirs = plain.tensor(tensor),
                               ours = divided.tensor(tensor);
      for (size_t v = 0; v < begin.size(); ++v) {
        difference += std::pow(static_cast<double>(ours[v]) - theirs[v], 2);
        norm += std::pow(static_cast<double>(theirs[v]) - begin[v], 2);
      }
    }
    EXPECT_LT(std::sqrt(difference / norm), 1e-6) << partition.weights;
    EXPECT_NEAR(TrainPartitions(RunOf(partition), OverThreads(8), hundred).loss, loss, 1e-4) << partition.weights;
  }
}

TEST(LlamaTrainerPartitions, OverGlooAndNcclHasTheBitsOfThreads) {
  for (const MakeRanks& ranks_of : {MakeRanks(OverGloo), MakeRanks(OverNccl)}) {
    const TrainedPartitions threads = TrainPartitions(RunOf(kThree), OverThreads(4), {}, Levels("2 1 2"));
    const TrainedPartitions other = TrainPartitions(RunOf(kThree), ranks_of(4), {}, Levels("2 1 2"));
    for (size_t i = 0; i < threads.trainers[0]->manifest().size(); ++i) {
      EXPECT_EQ(other.tensor(static_cast<int>(i)), threads.tensor(static_cast<int>(i)));
    }
  }
}

TEST(LlamaTrainerPartitions, HasAndReceivesTheBytesThatArePredicted) {
  for (const core::PartitionConfig& partition : {kDataParallel, kZero1, kZero2, kZero3, kThree}) {
    const TrainedPartitions trained = TrainPartitions(RunOf(partition, partition == kThree), OverThreads(8));
    double measured = 0;
    for (const auto& trainer : trained.trainers) {
      for (const core::LevelTraffic& level : trainer->rank_progress().levels) {
        EXPECT_DOUBLE_EQ(level.measured, level.predicted) << partition.weights << " " << level.name;
        measured += level.measured;
      }
    }
    EXPECT_GT(measured, 0);
    // The plan's states, and stages while they are gathered: weights and gradients of one, and beside a tied head the
    // weights of the first, and the head's gradient.
    const bool tied = partition == kThree;
    const core::LlamaConfig llama = RunOf(partition, tied).llama;
    const core::LinkLevels levels = *formats::ReadLevelsYaml(Levels());
    const PartitionLevels at = ResolvePartition(partition, levels);
    int64_t largest = 0;
    const PartitionLayout layout = PartitionLayoutOf(llama, levels);
    for (const LayoutGroup& group : layout.groups()) largest = std::max(largest, group.padded);
    const int64_t gathered = (tied ? 3 : 2) * largest + (tied ? llama.vocab_size * llama.hidden_size : 0);
    EXPECT_EQ(static_cast<const LlamaTrainer&>(*trained.trainers[0]).state_bytes(),
              static_cast<int64_t>(PartitionPlanOf(llama, levels, at).memory_bytes()) + 4 * gathered);
  }
}

TEST(LlamaTrainerPartitions, ACheckpointGoesOnWithOtherLevelsAndWithoutAPartition) {
  const std::string saved = WriteTemporary("checkpoint", "");
  TrainPartitions(RunOf(kThree), OverThreads(8), {.from = 1, .to = 3, .save = saved});
  core::RunConfig alone = RunOf(kDataParallel, false, 16);
  alone.inner.partition.reset();
  const auto one = MakeTrainer(alone, "eu", {.data_path = PartitionData()});
  ASSERT_TRUE(one.ok() && (*one)->Load(saved).ok());
  for (core::Step t = 4; t <= 6; ++t) ASSERT_TRUE((*one)->Step(t).ok());
  const Steps more{.from = 4, .to = 6, .load = saved};
  struct Site {
    core::PartitionConfig partition;
    int ranks;
    std::string levels;
  };
  for (const Site& site : {Site{kZero3, 4, Levels("2 1 2")}, Site{kThree, 8, Levels()}, Site{kZero2, 2, ""}}) {
    const TrainedPartitions again = TrainPartitions(RunOf(site.partition), OverThreads(site.ranks), more, site.levels);
    for (size_t i = 0; i < (*one)->manifest().size(); ++i) {
      const std::span<const float> theirs = (*one)->tensor(static_cast<int>(i));
      EXPECT_LT(Distance(again.tensor(static_cast<int>(i)), {theirs.begin(), theirs.end()}), 1e-4);
    }
  }
}

TEST(LlamaTrainerPartitions, LevelsOfOtherRanksAreRefusedAndLevelsThatASiteLacksHaveOneRank) {
  std::vector<RankUnderTest> ranks = OverThreads(2);
  const std::string levels = Levels();  // written before there are ranks, which read it
  const std::vector<absl::Status> statuses = OnRanks(2, [&](int rank) {
    return LlamaTrainer::Make(RunOf(kThree), "eu",
                              {.data_path = PartitionData(),
                               .ranks = {.values = ranks[static_cast<size_t>(rank)].collectives.get()},
                               .levels_path = levels})
        .status();
  });
  EXPECT_THAT(std::string(statuses[1].message()), HasSubstr("expected levels of the site's 2 ranks, got 8"));
  const core::LinkLevels one{.site = {{.name = "site", .of = 4}}, .wan = {}};
  EXPECT_EQ(ResolvePartition(kThree, one).weights, kWholeGroup);
  EXPECT_EQ(ResolvePartition(kThree, one).gradients, kWholeGroup);
  EXPECT_EQ(ResolvePartition(kThree, one).optimizer, 0);
}

}  // namespace
}  // namespace causeway::worker
