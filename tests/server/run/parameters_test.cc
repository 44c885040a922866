#include "server/run/parameters.h"

#include <gmock/gmock-matchers.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <initializer_list>

#include "core/model_manifest.h"
#include "server/run/admission.h"
#include "tests/server/calls/coordinator_for_test.h"

namespace causeway::server {
namespace {

using testing::HasSubstr;

// Fragment 0 of a run with a journal, merged into by one site.
class ParametersTest : public ::testing::Test {
 protected:
  ParametersTest()
      : map_(*core::BuildFragmentMap(ManifestForTest(), 2, core::FragmentAssignment::kStrided)),
        journal_(*Journal::Open({.directory = folder_.path(), .failed = nullptr})) {
    RunRecord run{.manifest = ManifestForTest(), .tensors_of_fragment = {}};
    for (const core::Fragment& fragment : map_.fragments()) {
      StartingFragment& zeros = zeros_.emplace_back();
      zeros.state.anchor.resize(fragment.padded_values());
      zeros.state.momentum.resize(fragment.padded_values());
      zeros.digest = zeros.state.Digest();
      EXPECT_TRUE(journal_->SaveSnapshot(fragment.id, zeros.state, zeros.digest).ok());
      auto& tensors = run.tensors_of_fragment.emplace_back();
      for (const core::TensorPlace& place : fragment.tensors) tensors.push_back({place.tensor});
    }
    EXPECT_TRUE(journal_->Begin(run).ok());
    Make([](const MergedRound&) {});
  }

  void Make(std::function<void(const MergedRound&)> merged, int64_t snapshot_every = 0) {
    parameters_ = std::make_unique<Parameters>(ParametersOptions{
        .map = map_,
        .merge = [](core::FragmentId, core::Version) { return MergeSettings{.down = {core::CodecId::kInt4}}; },
        .snapshot_every = snapshot_every,
        .journal = journal_.get(),
        .merged = std::move(merged),
        .failed = [this](const absl::Status& status) { failed_ = status; }});
  }

  // Decides the round of that base, as if `a` had contributed ones.
  void MergeRound(core::Version base) {
    auto contribution = std::make_shared<Contribution>(codecs::PlanChunks(map_.fragment(0), {core::CodecId::kInt4}));
    ContributionRecord record{.fragment = 0, .site = "a", .admitted = {.base = base}, .chunks = {}};
    for (const std::string& chunk : ChunksOf(map_.fragment(0), core::CodecId::kInt4, 1)) {
      EXPECT_TRUE(contribution->Add(chunk).ok());
      record.chunks.push_back(std::make_shared<const std::string>(chunk));
    }
    const RoundRecord round{.base = base, .contributors = {{"a", base, 1}}, .sites = {"a"}, .reason = ""};
    journal_->Commit({.admitted = {record}, .decided = {round}});
    parameters_->Merge({.round = round, .contributions = {contribution}, .load = nullptr});
  }

  std::shared_ptr<ChunkSource> AnchorSource(core::Version at_least, uint64_t held, std::function<void()> wake) {
    return *parameters_->AnchorSource(0, at_least, held, std::move(wake));
  }
  // Waits until a snapshot of that version was made for it.
  std::shared_ptr<ChunkSource> AwaitAnchor(core::Version at_least) {
    while (true) {
      auto woken = std::make_shared<std::promise<void>>();
      auto source = AnchorSource(at_least, 0, [woken] { woken->set_value(); });
      if (source != nullptr) return source;
      woken->get_future().wait();
    }
  }

  // Waits until the round that makes that version is merged, and its update whole.
  void AwaitMerged(core::Version version) {
    const auto update = *parameters_->UpdateSource(0, version - 1);
    while (true) {
      auto woken = std::make_shared<std::promise<void>>();
      if (update->Get(1000, [woken] { woken->set_value(); }).end) return;
      woken->get_future().wait();
    }
  }

  const TemporaryFolder folder_;
  const core::FragmentMap map_;
  const std::unique_ptr<Journal> journal_;
  std::vector<StartingFragment> zeros_;
  absl::Status failed_;  // of the merge thread; read after Finish
  std::unique_ptr<Parameters> parameters_;
};

TEST_F(ParametersTest, ReaderOfAnAnchorSeesOneVersionWhileRoundsAreMerged) {
  parameters_->Set(zeros_);
  const auto source = AnchorSource(0, 0, [] {});
  ASSERT_NE(source, nullptr);
  const std::string first = *source->Get(0, [] {}).chunk;
  const uint64_t before = parameters_->Committed(0).digest;
  MergeRound(0);
  EXPECT_EQ(AwaitAnchor(1)->Header([] {})->version, 1);
  EXPECT_EQ(parameters_->Committed(0).version, 1);
  EXPECT_NE(parameters_->Committed(0).digest, before);
  EXPECT_EQ(*source->Get(0, [] {}).chunk, first);
  EXPECT_EQ(source->Get(100, [] {}).end, before);
}

TEST_F(ParametersTest, WhoWaitsIsWokenWhenItIsThere) {
  std::promise<void> set;
  EXPECT_EQ(AnchorSource(0, 0, [&] { set.set_value(); }), nullptr);
  parameters_->Set(zeros_);
  set.get_future().wait();

  std::promise<void> begun;
  const auto update = *parameters_->UpdateSource(0, 0);
  EXPECT_FALSE(update->Header([&] { begun.set_value(); }));
  MergeRound(0);
  begun.get_future().wait();
  EXPECT_EQ(update->Header([] {})->num_chunks, 3);
  AwaitAnchor(1);
  EXPECT_EQ(update->Get(3, [] {}).end, parameters_->Committed(0).digest);
}

// Read on the merge thread: the reader is woken there for every chunk, and asks at once.
TEST_F(ParametersTest, WhoHasTakenAnUpdateFindsItsVersionCommitted) {
  parameters_->Set(zeros_);
  const auto update = *parameters_->UpdateSource(0, 0);
  std::promise<core::AnchorDigest> committed_at_end;
  size_t next = 0;
  std::function<void()> read = [&] {
    while (true) {
      const ChunkSource::Item item = update->Get(next, [&] { read(); });
      if (item.end) committed_at_end.set_value(parameters_->Committed(0));
      if (item.chunk == nullptr) return;
      ++next;
    }
  };
  read();
  MergeRound(0);
  const core::AnchorDigest committed = committed_at_end.get_future().get();
  EXPECT_EQ(committed.version, 1);
  EXPECT_EQ(update->Get(next, [] {}).end, committed.digest);
}

TEST_F(ParametersTest, UpdateIsReadFromTheJournalOnceItIsThere) {
  parameters_->Set(zeros_);
  MergeRound(0);
  ASSERT_TRUE(parameters_->Finish().ok());
  journal_->Flush();
  const auto source = *parameters_->UpdateSource(0, 0);
  EXPECT_TRUE(static_cast<Update&>(*source).chunks().empty());
  EXPECT_TRUE(codecs::ChunkView::Parse(*source->Get(2, [] {}).chunk).ok());
}

TEST_F(ParametersTest, FinishReturnsAfterTheLastRoundWasToldOfAndSavesSnapshots) {
  std::promise<void> go;
  std::shared_future<void> may_return = go.get_future().share();
  std::atomic<int> told = 0;
  Make([&](const MergedRound&) {
    may_return.wait();
    ++told;
  });
  parameters_->Set(zeros_);
  for (core::Version base = 0; base < 5; ++base) MergeRound(base);
  auto finished = std::async(std::launch::async, [&] { return parameters_->Finish(); });
  go.set_value();
  EXPECT_TRUE(finished.get().ok());
  EXPECT_EQ(told, 5);
  EXPECT_TRUE(journal_->LoadSnapshot(0, 5).ok());
  EXPECT_TRUE(parameters_->UpdateSource(0, 5).ok());  // to come
  EXPECT_TRUE(absl::IsNotFound(parameters_->UpdateSource(0, 6).status()));
}

TEST_F(ParametersTest, SiteThatHoldsTheInitialParametersIsSentNothing) {
  parameters_->Set(zeros_);
  const uint64_t digest = parameters_->Committed(0).digest;
  EXPECT_TRUE(AnchorSource(0, digest, [] {})->Header([] {})->already_held);
  EXPECT_FALSE(AnchorSource(0, digest + 1, [] {})->Header([] {})->already_held);
}

TEST_F(ParametersTest, RoundWhoseContributionsCannotBeReadEndsAllMerging) {
  parameters_->Set(zeros_);
  const RoundRecord round{.base = 0, .contributors = {{"a", 0, 1}}, .sites = {"a"}};
  parameters_->Merge({.round = round, .contributions = {}, .load = [] { return absl::DataLossError("segment 3"); }});
  EXPECT_TRUE(absl::IsDataLoss(parameters_->Finish()));
  EXPECT_EQ(parameters_->Committed(0).version, 0);
  parameters_.reset();  // its thread has told by then
  EXPECT_EQ(failed_.message(), "segment 3");
}

TEST_F(ParametersTest, SnapshotIsSavedEverySoManyRoundsAndAtTheEndOfWhatHasMoved) {
  Make([](const MergedRound&) {}, /*snapshot_every=*/2);
  parameters_->Set(zeros_);
  for (core::Version base = 0; base < 3; ++base) MergeRound(base);
  AwaitAnchor(2);
  EXPECT_TRUE(journal_->LoadSnapshot(0, 2).ok());
  EXPECT_FALSE(journal_->LoadSnapshot(0, 1).ok());
  ASSERT_TRUE(parameters_->Finish().ok());
  EXPECT_TRUE(journal_->LoadSnapshot(0, 3).ok());
  EXPECT_EQ(parameters_->Committed(1).version, 0) << "the other fragment has not moved";
  EXPECT_TRUE(failed_.ok()) << failed_;
}

// Updates of half a byte a value: nine of them are more than four bytes a value, half an anchor with its momentum.
TEST_F(ParametersTest, JoinerGetsANewerAnchorWhereTheUpdatesSinceTheLastCostMore) {
  parameters_->Set(zeros_);
  for (core::Version base = 0; base < 4; ++base) MergeRound(base);
  AwaitMerged(4);
  EXPECT_EQ(AwaitAnchor(0)->Header([] {})->version, 0);
  for (core::Version base = 4; base < 9; ++base) MergeRound(base);
  AwaitMerged(9);
  EXPECT_EQ(AwaitAnchor(0)->Header([] {})->version, 9);
}

TEST_F(ParametersTest, RoundIsMergingFromItsDecisionToItsCommit) {
  std::promise<void> go;
  Make([merged = go.get_future().share()](const MergedRound&) { merged.wait(); });
  parameters_->Set(zeros_);
  EXPECT_FALSE(parameters_->Merging(0));
  MergeRound(0);
  MergeRound(1);  // behind the first, whose end is not told yet
  EXPECT_TRUE(parameters_->Merging(0));
  EXPECT_FALSE(parameters_->Merging(1));
  go.set_value();
  ASSERT_TRUE(parameters_->Finish().ok());
  EXPECT_FALSE(parameters_->Merging(0));
  EXPECT_EQ(parameters_->Committed(0).version, 2);
}

v1::Join JoinWith(const std::string& lineage, uint64_t epoch, std::initializer_list<core::Version> versions) {
  v1::Join join;
  join.mutable_context()->set_lineage(lineage);
  join.mutable_context()->set_epoch(epoch);
  for (const core::Version version : versions) join.add_versions(version);
  return join;
}

// Epoch 4 began at versions 20 and 21, after a loss of power.
TEST(Claims, SiteOfBeforeALossOfPowerHoldsNoneOfTheVersionsThatWereMadeAnew) {
  JournalIdentity journal{.epoch = 6, .lineage = "now"};
  journal.floors = {{.epoch = 4, .versions = {{0, 20}, {1, 21}}}};
  const Claims claims(journal, /*life=*/1, {0, 1});
  EXPECT_TRUE(claims.HoldsLost(JoinWith("now", 3, {22, 21})));
  EXPECT_FALSE(claims.HoldsLost(JoinWith("now", 3, {20, 21}))) << "both are of before";
  EXPECT_FALSE(claims.HoldsLost(JoinWith("now", 4, {22, 21}))) << "it was told so since";
  EXPECT_FALSE(claims.HoldsLost(JoinWith("before", 3, {22, 21}))) << "it takes the anchors anew in any case";
  EXPECT_FALSE(claims.HoldsLost(JoinWith("now", 3, {}))) << "a fresh site";
}

TEST(Claims, AdmissionsToVersionsThatWereMadeAnewAreNoLostHistory) {
  JournalIdentity journal{.epoch = 6, .lineage = "now", .secret = "s"};
  journal.floors = {{.epoch = 4, .versions = {{0, 20}}}};
  const Claims claims(journal, /*life=*/1, {0, 1});
  const auto doubt_of = [&](uint64_t epoch) {
    v1::Join join = JoinWith("now", epoch, {22});
    join.mutable_context()->set_site("a");
    join.add_admitted(21);
    join.add_admission_proofs(claims.ProofOfAdmission("a", 0, 21));
    return claims.Check(join, {.versions = {30}, .admitted = {19}}, /*trains=*/true);
  };
  EXPECT_FALSE(doubt_of(3));
  ASSERT_TRUE(doubt_of(5));
  EXPECT_EQ(doubt_of(5)->doubt, Doubt::kHistoryLost);
}

core::Manifest Huge() { return {{.name = "w", .shape = {int64_t{1} << 20, int64_t{1} << 20}}}; }

TEST(ModelBounds, ModelThatTheMachineCannotHoldIsRefusedWithWhatItWouldNeed) {
  const ModelBounds bounds{.memory_bytes = int64_t{64} * 1'000'000'000};
  EXPECT_EQ(bounds.Check(Huge()).message(),
            "the model's 1.1e+12 values need 1.32e+04 GB of the coordinator's memory (12 bytes each), and this machine "
            "has 64 GB");
  EXPECT_TRUE(bounds.Check({{.name = "w", .shape = {1'000'000'000}}}).ok());
  const ModelBounds share{.memory_bytes = int64_t{14} * 1'000'000'000'000, .shard = {1, 2}};
  EXPECT_TRUE(share.Check(Huge()).ok());
}

TEST(ModelBounds, ModelOfTheBuiltInTrainersIsThatOfRunYaml) {
  core::RunConfig config;
  const ModelBounds bounds = BoundsOf(config, {});
  core::Manifest manifest = core::ModelManifest(config);
  EXPECT_TRUE(bounds.Check(manifest).ok());
  manifest[1].shape[0] += 1;
  EXPECT_THAT(std::string(bounds.Check(manifest).message()), HasSubstr("at tensor 1: expected "));
  config.model_kind = core::ModelKind::kExternal;
  EXPECT_TRUE(BoundsOf(config, {}).Check(manifest).ok());
  EXPECT_GT(BoundsOf(config, {}).memory_bytes, 0);
}

TEST(ModelBounds, FirstJoinerWithAnotherModelIsRefusedAndTheHonestOneSeeds) {
  CoordinatorForTest run;
  run.bounds.manifest = ManifestForTest();
  run.Restart();
  const v1::CoordinatorMessage refused = run.Join("bad", Huge());
  ASSERT_TRUE(refused.has_refused());
  EXPECT_EQ(refused.refused().retry_after_ms(), 0);
  EXPECT_THAT(refused.refused().reason(), HasSubstr("the model differs from the run's at tensor 0"));
  EXPECT_TRUE(run.Join("good", ManifestForTest()).has_welcome());
}

}  // namespace
}  // namespace causeway::server
