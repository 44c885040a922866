// A coordinator that was started again on its state directory still knows all that it has told anyone.
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/server/run/direct_coordinator.h"

namespace causeway::server {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class Restart : public testing::Test {
 protected:
  Restart() { run_.Start(); }

  // A site that holds these versions of both fragments is back.
  v1::Welcome Return(const std::string& site, int64_t version0 = 0) {
    run_.Join(site, [version0](v1::Join& join) {
      join.add_versions(version0);
      join.add_versions(0);
    });
    run_.Settle();
    return run_.peer[site]->sent().at(0).welcome();
  }

  DirectCoordinator run_;
};

TEST_F(Restart, RaisesTheEpochAndKeepsTheLineage) {
  const v1::RunDescription before = run_.coordinator->Describe();
  run_.Restart();
  const v1::RunDescription after = run_.coordinator->Describe();
  EXPECT_EQ(after.epoch(), before.epoch() + 1);
  EXPECT_EQ(after.lineage(), before.lineage());
  EXPECT_EQ(after.manifest().SerializeAsString(), before.manifest().SerializeAsString());
  EXPECT_EQ(after.run_config(), "the config");
  EXPECT_THAT(after.versions(), ElementsAre(0, 0));
}

TEST_F(Restart, SiteThatIsBackHearsWhatOfItsOwnWasAdmittedAndTheRoundClosesWithIt) {
  const TakenDownload first = run_.MergeRound(0, 0);
  EXPECT_EQ(first.header.version, 1);
  run_.Contribute("a", 1);
  run_.Settle();
  run_.Restart();
  const v1::Welcome welcome = Return("a", 1);
  EXPECT_TRUE(welcome.resumed());
  EXPECT_THAT(welcome.last_admitted(), ElementsAre(0, 0));
  EXPECT_THAT(Return("b", 1).last_admitted(), ElementsAre(0, -1));
  const PendingVerdict repeat = run_.Contribute("a", 1);
  run_.Settle();
  EXPECT_TRUE(repeat.admitted());
  run_.Contribute("b", 1);
  EXPECT_THAT(run_.TakeUpdate(1, 0).header.merged, ElementsAre("a", "b"));
}

TEST_F(Restart, RoundsSinceTheSnapshotAreMergedAgainToTheSameBits) {
  std::vector<TakenDownload> before;
  for (int64_t base = 0; base < 3; ++base) before.push_back(run_.MergeRound(0, base, 1 + static_cast<float>(base)));
  run_.Settle();
  run_.Restart();
  EXPECT_EQ(run_.TakeUpdate(0, 2).header.version, 3);
  for (int64_t base = 0; base < 3; ++base) {
    const TakenDownload again = run_.TakeUpdate(0, base);
    EXPECT_EQ(again.digest, before[base].digest);
    EXPECT_EQ(again.chunks, before[base].chunks);
    EXPECT_EQ(again.header.merged, before[base].header.merged);
  }
  EXPECT_NE(before[0].digest, before[1].digest);
}

TEST_F(Restart, SnapshotStandsForTheRoundsBeforeIt) {
  const TakenDownload before = run_.MergeRound(0, 0);
  ASSERT_TRUE(run_.coordinator->Finish().ok());
  run_.Restart();
  EXPECT_EQ(run_.coordinator->Describe().versions(0), 1) << "at once";
  EXPECT_EQ(run_.coordinator->Status().rounds_decided, 0) << "in this life";
  EXPECT_EQ(run_.TakeUpdate(0, 0).chunks, before.chunks);
  const TakenDownload anchor = run_.TakeAnchor(0, 1);
  EXPECT_EQ(anchor.header.version, 1);
  EXPECT_EQ(anchor.digest, before.digest);
}

TEST_F(Restart, ContributionThatHadNotArrivedWholeIsAskedForAnew) {
  const v1::UploadHeader header = HeaderOf("a", 0);
  const auto chunks = ChunksOf(run_.map.fragment(0), core::CodecId::kInt4, 1);
  ASSERT_TRUE(run_.BeginUpload(header)->contribution->Add(chunks[0]).ok());
  EXPECT_THAT(run_.BeginUpload(header)->contribution->Missing(), ElementsAre(1, 2));
  run_.Restart();
  Return("a");
  EXPECT_THAT(run_.BeginUpload(header)->contribution->Missing(), ElementsAre(0, 1, 2));
}

TEST_F(Restart, SitesAreExpectedBackWithinANewLease) {
  run_.clock.Set(50'000);
  run_.Restart();
  EXPECT_EQ(run_.StatusOf("a").reason, "expected back after the coordinator's restart");
  EXPECT_EQ(run_.StatusOf("a").lease_s_left, 10.0);
  Return("a");
  EXPECT_FALSE(run_.StatusOf("a").lease_s_left);
  run_.TickAt(59'000);
  run_.Report("a", [](v1::Progress& progress) { progress.set_step(1); });
  run_.TickAt(60'000);
  EXPECT_EQ(run_.StatusOf("a").state, core::SiteState::kTraining);
  EXPECT_EQ(run_.StatusOf("b").state, core::SiteState::kGone);
}

TEST_F(Restart, PauseAndDrainStandAndTheSitesHearOfThem) {
  ASSERT_TRUE(run_.coordinator->Ask(input::Drain{"a"}).ok());
  ASSERT_TRUE(run_.coordinator->Ask(input::ChangeRun{v1::ChangeRunRequest::PAUSE}).ok());
  run_.Restart();
  EXPECT_EQ(run_.coordinator->Status().reason, "paused by an operator");
  EXPECT_TRUE(Return("a").held());
  EXPECT_THAT(run_.peer["a"]->kinds(), ElementsAre("welcome", "drain", "notice"));
  Return("b");
  EXPECT_THAT(run_.peer["b"]->kinds(), ElementsAre("welcome", "notice"));
}

TEST_F(Restart, LossesThatWereMeasuredStand) {
  const auto evaluated = [](double loss, int64_t version) {
    return [=](v1::Progress& progress) {
      progress.set_eval_loss(loss);
      for (int p = 0; p < 2; ++p) progress.add_eval_versions(version);
    };
  };
  run_.Report("a", evaluated(4.5, 0));
  run_.Report("a", evaluated(3.5, 2));
  run_.Settle();
  run_.Restart();
  const StatusSnapshot status = run_.coordinator->Status();
  EXPECT_EQ(status.eval_loss_start, 4.5);
  EXPECT_EQ(status.eval_loss_latest, 3.5);
  EXPECT_THAT(status.eval_loss_versions, ElementsAre(2, 2));
}

TEST_F(Restart, HistoryGoesOnWithTheNewEpoch) {
  run_.Restart();
  run_.Settle();
  EXPECT_THAT(run_.History("start"), ElementsAre("epoch 1", "epoch 2"));
  EXPECT_THAT(run_.History("enter"), ElementsAre("after step 0", "after step 0"));
  EXPECT_THAT(run_.History("seed"), ElementsAre(HasSubstr("initial parameters")));
  EXPECT_THAT(run_.History("run"), Contains(HasSubstr("waiting: 0 of 2 sites are ready")));
}

TEST_F(Restart, OnADirectoryWithADamagedContributionIsRefusedWithItsPlace) {
  run_.Contribute("a", 0);
  run_.Settle();
  const absl::Status status = run_.RestartAfter([](const std::string& directory) {
    const std::string segment = directory + "/segments/000001.segment";
    std::fstream file(segment, std::ios::in | std::ios::out | std::ios::binary);
    ASSERT_TRUE(file.seekp(100).put('\x55').good()) << segment;
  });
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("segment 1: contribution of a to fragment 0: "),
                                                   HasSubstr("/segments/000001.segment: is damaged")));
}

TEST_F(Restart, SiteWhoseAnchorsAreNewerThanTheStateWaitsAndNoRoundCloses) {
  run_.Restart();
  run_.Join("a", [this](v1::Join& join) {
    join.add_versions(1);
    join.add_versions(0);
    join.add_version_proofs(run_.coordinator->admission().claims().ProofOfVersion(0, 1));
  });
  run_.Settle();
  EXPECT_THAT(run_.peer["a"]->last().refused().reason(),
              HasSubstr("the site holds version 1 of fragment 0, the coordinator only version 0"));
  EXPECT_EQ(run_.peer["a"]->last().refused().retry_after_ms(), 5000);
  const StatusSnapshot status = run_.coordinator->Status();
  EXPECT_EQ(status.state, "paused");
  ASSERT_THAT(status.strangers, SizeIs(1));
  EXPECT_EQ(status.strangers[0].alarm, "history_lost");
  EXPECT_THAT(run_.History("history_lost"), SizeIs(1));
  EXPECT_TRUE(run_.coordinator->Ask(input::ChangeRun{v1::ChangeRunRequest::RESUME}).ok());
  EXPECT_EQ(run_.coordinator->Status().state, "training") << "an operator goes on without it";
}

TEST_F(Restart, SiteWhoseAdmittedContributionIsNotInTheStateWaits) {
  run_.Restart();
  run_.Join("a", [](v1::Join& join) {
    for (const int p : {0, 1}) {
      join.add_versions(0);
      join.add_admitted(p - 1);
    }
  });
  run_.Settle();
  EXPECT_THAT(run_.peer["a"]->last().refused().reason(), HasSubstr("fragment 1 base 0 was admitted"));
}

TEST_F(Restart, SiteThatHasSpokenWithAnotherProcessOfThisEpochWaits) {
  const auto join_with_life = [this](uint64_t life, const std::string& proof = "") {
    run_.Join("a", [&](v1::Join& join) {
      v1::Context& context = *join.mutable_context();
      const v1::RunDescription run = run_.coordinator->Describe();
      context.set_lineage(run.lineage());
      context.set_epoch(run.epoch());
      context.set_life(life);
      join.set_epoch_proof(proof);
      join.add_versions(0);
      join.add_versions(0);
    });
    run_.Settle();
  };
  join_with_life(0);
  const uint64_t life = run_.peer["a"]->sent().at(0).welcome().life();
  EXPECT_NE(life, 0);
  join_with_life(life);
  EXPECT_TRUE(run_.peer["a"]->sent().at(0).has_welcome());
  join_with_life(life + 1);
  EXPECT_THAT(run_.peer["a"]->last().refused().reason(), HasSubstr("shows no proof"));
  EXPECT_EQ(run_.coordinator->Status().strangers.at(0).alarm, "unproven_claim");
  v1::Welcome other;
  Claims(run_.journal->identity(), life + 1, {}).Introduce(&other);
  join_with_life(life + 1, other.proof());
  EXPECT_THAT(run_.peer["a"]->last().refused().reason(), HasSubstr("two copies of one state directory"));
  EXPECT_EQ(run_.coordinator->Status().strangers.at(0).alarm, "two_coordinators");
}

TEST_F(Restart, ClaimsWithoutAProofMakeTheirTellerWaitAndNoOtherSite) {
  run_.Restart();
  const auto claims = [this](const std::string& site, const auto& claim) {
    run_.Join(site, [&](v1::Join& join) {
      join.mutable_context()->set_lineage(run_.coordinator->Describe().lineage());
      claim(join);
    });
    run_.Settle();
    return run_.peer[site]->last().refused().reason();
  };
  const auto holds = [](v1::Join& join, core::Version version) {
    join.add_versions(version);
    join.add_versions(0);
  };
  EXPECT_THAT(claims("x", [](v1::Join& join) { join.mutable_context()->set_epoch(90); }),
              HasSubstr("has seen epoch 90 of lineage"));
  EXPECT_THAT(claims("y", [&](v1::Join& join) { holds(join, 1'000'000); }), HasSubstr("holds version 1000000"));
  EXPECT_THAT(claims("z",
                     [&](v1::Join& join) {
                       holds(join, 0);
                       join.add_admitted(1'000'000);
                     }),
              HasSubstr("fragment 0 base 1000000 was admitted"));
  EXPECT_THAT(claims("w",
                     [&](v1::Join& join) {
                       holds(join, 2);
                       join.add_version_proofs(run_.coordinator->admission().claims().ProofOfVersion(0, 1));
                     }),
              HasSubstr("shows no proof"))
      << "of another version";
  EXPECT_THAT(claims("v", [](v1::Join& join) { join.mutable_context()->set_lineage("foreign"); }),
              HasSubstr("lineage foreign"));
  const StatusSnapshot status = run_.coordinator->Status();
  EXPECT_NE(status.state, "paused");
  EXPECT_THAT(status.strangers, SizeIs(5));
  EXPECT_EQ(status.strangers[2].alarm, "unproven_claim");
  EXPECT_THAT(run_.History("unproven_claim"), SizeIs(5));
  EXPECT_THAT(run_.History("history_lost"), IsEmpty());
}

TEST_F(Restart, AnAdmissionThatIsProvenAndNotInTheStatePausesTheRun) {
  run_.Restart();
  run_.Join("a", [this](v1::Join& join) {
    for (const int p : {0, 1}) {
      join.add_versions(0);
      join.add_admitted(p - 1);
      join.add_admission_proofs(run_.coordinator->admission().claims().ProofOfAdmission("a", p, p - 1));
    }
  });
  run_.Settle();
  EXPECT_EQ(run_.coordinator->Status().state, "paused");
}

TEST_F(Restart, WhatWasToldIsProvenToTheNextLifeOfTheState) {
  run_.Join("a", [](v1::Join& join) {
    join.add_versions(0);
    join.add_versions(0);
  });
  run_.Settle();
  const v1::Welcome told = run_.peer["a"]->sent().at(0).welcome();
  const std::string version = run_.coordinator->admission().claims().ProofOfVersion(1, 7);
  run_.Restart();
  EXPECT_EQ(run_.coordinator->admission().claims().ProofOfVersion(1, 7), version);
  run_.Join("a", [&](v1::Join& join) {
    join.mutable_context()->set_lineage(told.lineage());
    join.mutable_context()->set_epoch(told.epoch());
    join.mutable_context()->set_life(told.life());
    join.set_epoch_proof(told.proof());
    join.add_versions(0);
    join.add_versions(0);
  });
  run_.Settle();
  EXPECT_TRUE(run_.peer["a"]->sent().at(0).has_welcome()) << "it has seen no more than is known";
}

TEST_F(Restart, LineageOfASiteThatComesWhereOthersTrainIsAClaimOfItsOwn) {
  run_.Start();
  run_.Join("x", [](v1::Join& join) { join.mutable_context()->set_lineage("invented"); });
  run_.Settle();
  EXPECT_THAT(run_.peer["x"]->last().refused().reason(), HasSubstr("lineage invented"));
  EXPECT_EQ(run_.coordinator->Status().strangers.at(0).alarm, "unproven_claim");
}

TEST(UnknownLineage, WaitsAloneAndOthersBegin) {
  DirectCoordinator run;
  run.Join("old", [](v1::Join& join) {
    join.mutable_context()->set_lineage("elsewhere");
    join.add_versions(7);
    join.add_versions(7);
  });
  run.Settle();
  EXPECT_THAT(run.peer["old"]->last().refused().reason(), HasSubstr("lineage elsewhere"));
  EXPECT_EQ(run.peer["old"]->last().refused().retry_after_ms(), 5000);
  run.Join("a");
  run.Settle();
  EXPECT_TRUE(run.peer["a"]->sent().at(0).has_welcome());
  const std::vector<v1::CoordinatorMessage> sent = run.peer["a"]->sent();
  EXPECT_TRUE(std::ranges::any_of(sent, [](const auto& message) { return message.has_seed_request(); }));
  EXPECT_EQ(run.coordinator->Status().strangers.at(0).alarm, "unknown_lineage");
}

}  // namespace
}  // namespace causeway::server
