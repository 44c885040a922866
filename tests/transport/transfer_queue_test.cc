#include "transport/transfer_queue.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>

#include "core/limits.h"
#include "tests/transport/least_wait.h"

namespace causeway::transport {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// One that the queue only looks at.
class Named final : public Transfer {
 public:
  explicit Named(bool is_upload) : is_upload_(is_upload) {}
  bool is_upload() const override { return is_upload_; }
  bool Replaces(const Transfer&) const override { return false; }
  void Launch(const Lanes&, const v1::Context&, std::optional<uint64_t>, std::function<void()>,
              std::function<void(bool)>) override {
    ADD_FAILURE() << "the queue launches nothing";
  }
  void Finish(const absl::Status&) override { ADD_FAILURE() << "the queue finishes nothing"; }

  // Its last attempt, as one of several in a row without progress.
  void Broke(int attempts, const std::string& error) {
    core::MutexLock lock(mutex_);
    attempts_ = attempts;
    status_ = {grpc::StatusCode::UNAVAILABLE, error};
  }

 private:
  void Measure() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {}
  bool TakeOutcome() override { return false; }
  std::string What() const override { return "a transfer"; }

  const bool is_upload_;
};

class TransferQueueTest : public ::testing::Test {
 protected:
  const Transfer& Add(const std::string& name, bool is_upload) {
    auto transfer = std::make_shared<Named>(is_upload);
    names_[transfer.get()] = name;
    const Transfer& added = *transfer;
    queue_.Add(std::move(transfer));
    return added;
  }
  Named& AddNamed(const std::string& name) {
    return const_cast<Named&>(dynamic_cast<const Named&>(Add(name, /*is_upload=*/false)));
  }
  void BreakAgain(Named& transfer, int attempt, const std::string& error, int64_t at_ms) {
    queue_.TakeDue(at_ms + 1'000'000);
    transfer.Broke(attempt, error);
    EXPECT_TRUE(queue_.Ended(transfer));
    queue_.Retry(transfer, attempt, at_ms, at_ms, kLeast);
  }
  const Transfer& Upload(const std::string& name) { return Add(name, true); }
  const Transfer& Download(const std::string& name) { return Add(name, false); }

  std::vector<std::string> Names(const TransferQueue::Transfers& transfers) const {
    std::vector<std::string> names;
    for (const auto& transfer : transfers) names.push_back(names_.at(transfer.get()));
    return names;
  }
  std::vector<std::string> DueAt(int64_t now_ms) { return Names(queue_.TakeDue(now_ms)); }
  // The attempt broke at that time, as the first one.
  void Break(const Transfer& transfer, int64_t at_ms) {
    EXPECT_TRUE(queue_.Ended(transfer));
    queue_.Retry(transfer, /*attempts=*/1, at_ms, at_ms, kLeast);
  }
  void Finish(const Transfer& transfer) {
    EXPECT_TRUE(queue_.Ended(transfer));
    queue_.Remove(transfer);
  }
  static constexpr int64_t kFirstRetryMs = core::kFirstBackoffMs * 8 / 10;

  TransferQueue queue_;
  std::map<const Transfer*, std::string> names_;
};

TEST_F(TransferQueueTest, DownloadsAreAllLaunchedAtOnceAndEachOnce) {
  Download("a");
  Download("b");
  EXPECT_THAT(DueAt(0), ElementsAre("a", "b"));
  EXPECT_THAT(DueAt(1000), IsEmpty());
}

TEST_F(TransferQueueTest, UploadsGoInTheirOrderAndOneAtATime) {
  const Transfer& a = Upload("a");
  const Transfer& b = Upload("b");
  Upload("c");
  EXPECT_THAT(DueAt(0), ElementsAre("a"));
  EXPECT_THAT(DueAt(1), IsEmpty());
  queue_.Written(a);
  EXPECT_THAT(DueAt(2), ElementsAre("b"));
  EXPECT_THAT(DueAt(3), IsEmpty()) << "b is being written";
  Finish(a);
  EXPECT_THAT(DueAt(4), IsEmpty()) << "b is still being written";
  queue_.Written(b);
  EXPECT_THAT(DueAt(5), ElementsAre("c"));
}

TEST_F(TransferQueueTest, ADownloadWaitsForNoUploadAndNoUploadForADownload) {
  Upload("up");
  Download("down");
  EXPECT_THAT(DueAt(0), ElementsAre("up", "down"));
  queue_.DropIf([](const Transfer& transfer) { return transfer.is_upload(); });
  Download("more");
  EXPECT_THAT(DueAt(0), ElementsAre("more"));
  TransferQueue other;
  auto down = std::make_shared<Named>(false), up = std::make_shared<Named>(true);
  other.Add(down);
  other.Add(up);
  EXPECT_THAT(other.TakeDue(0), ElementsAre(down, up));
}

TEST_F(TransferQueueTest, AnUploadThatBrokeBeforeItWasWrittenKeepsItsTurnUntilItsRetry) {
  const Transfer& a = Upload("a");
  Upload("b");
  EXPECT_THAT(DueAt(0), ElementsAre("a"));
  Break(a, /*at_ms=*/10);
  EXPECT_THAT(DueAt(10 + kFirstRetryMs - 1), IsEmpty());
  EXPECT_THAT(DueAt(10 + kFirstRetryMs), ElementsAre("a"));
}

TEST_F(TransferQueueTest, AnUploadThatBreaksWhileALaterOneIsWrittenWaitsForThat) {
  const Transfer& a = Upload("a");
  const Transfer& b = Upload("b");
  EXPECT_THAT(DueAt(0), ElementsAre("a"));
  queue_.Written(a);
  EXPECT_THAT(DueAt(0), ElementsAre("b"));
  Break(a, /*at_ms=*/0);
  EXPECT_THAT(DueAt(10'000), IsEmpty());
  queue_.Written(b);
  EXPECT_THAT(DueAt(10'000), ElementsAre("a"));
}

TEST_F(TransferQueueTest, AnUploadThatEndedUnwrittenMakesRoomForTheNext) {
  const Transfer& a = Upload("a");
  Upload("b");
  EXPECT_THAT(DueAt(0), ElementsAre("a"));
  EXPECT_TRUE(queue_.Ended(a));
  EXPECT_THAT(DueAt(0), ElementsAre("b")) << "before the owner of a has been told";
  queue_.Remove(a);
  EXPECT_THAT(DueAt(0), IsEmpty());
}

TEST_F(TransferQueueTest, ARetryIsDueABackoffAfterTheBreakAndNeverNow) {
  const Transfer& a = Download("a");
  DueAt(0);
  queue_.Ended(a);
  queue_.Retry(a, /*attempts=*/3, /*broke_ms=*/1000, /*now_ms=*/1100, kLeast);
  EXPECT_THAT(DueAt(1000 + 4 * kFirstRetryMs - 1), IsEmpty());
  EXPECT_THAT(DueAt(1000 + 4 * kFirstRetryMs), ElementsAre("a"));
  queue_.Ended(a);
  queue_.Retry(a, /*attempts=*/1, /*broke_ms=*/1000, /*now_ms=*/5000, kLeast);
  EXPECT_THAT(DueAt(5000), IsEmpty());
  EXPECT_THAT(DueAt(5001), ElementsAre("a"));
}

TEST_F(TransferQueueTest, TheRandomNumberSpreadsRetries) {
  const Transfer& a = Download("a");
  DueAt(0);
  queue_.Ended(a);
  queue_.Retry(a, 1, 0, 0, std::numeric_limits<uint64_t>::max());
  EXPECT_THAT(DueAt(core::kFirstBackoffMs * 12 / 10 - 2), IsEmpty());
  EXPECT_THAT(DueAt(core::kFirstBackoffMs * 12 / 10), ElementsAre("a"));
}

TEST_F(TransferQueueTest, TheNextLookIsAtTheNextRetryOrWithinTheFirstBackoff) {
  EXPECT_EQ(queue_.MsToLook(0), core::kFirstBackoffMs);
  const Transfer& a = Download("a");
  const Transfer& b = Download("b");
  DueAt(0);
  EXPECT_EQ(queue_.MsToLook(0), core::kFirstBackoffMs);
  Break(a, 0);
  Break(b, 30);
  EXPECT_EQ(queue_.MsToLook(0), kFirstRetryMs);
  EXPECT_EQ(queue_.MsToLook(kFirstRetryMs - 1), 1);
  EXPECT_EQ(queue_.MsToLook(kFirstRetryMs), 30) << "what was due at that look has been taken";
  EXPECT_THAT(DueAt(kFirstRetryMs), ElementsAre("a"));
  EXPECT_EQ(queue_.MsToLook(30 + kFirstRetryMs), core::kFirstBackoffMs);
}

TEST_F(TransferQueueTest, ARetryIsToldOnce) {
  const Transfer& a = Download("a");
  DueAt(0);
  EXPECT_FALSE(queue_.TakeRetryAdded());
  Break(a, 0);
  EXPECT_TRUE(queue_.TakeRetryAdded());
  EXPECT_FALSE(queue_.TakeRetryAdded());
}

TEST_F(TransferQueueTest, DroppedOnesThatWaitAreGoneAndRunningOnesStayUntilTheyEnd) {
  const Transfer& running = Upload("running");
  DueAt(0);
  Upload("idle");
  const TransferQueue::Dropped dropped = queue_.DropIf([](const Transfer&) { return true; });
  EXPECT_THAT(Names(dropped.running), ElementsAre("running"));
  EXPECT_THAT(Names(dropped.idle), ElementsAre("idle"));
  EXPECT_TRUE(dropped.any());
  EXPECT_TRUE(queue_.IsDropped(running));
  EXPECT_FALSE(queue_.empty());
  EXPECT_FALSE(queue_.Ended(running)) << "it is not to be retried";
  queue_.Remove(running);
  EXPECT_TRUE(queue_.empty());
  EXPECT_FALSE(queue_.IsDropped(running));
  EXPECT_THAT(DueAt(100'000), IsEmpty());
}

TEST_F(TransferQueueTest, OnlyWhatTheConditionNamesIsDropped) {
  const Transfer& a = Upload("a");
  const Transfer& b = Download("b");
  DueAt(0);
  EXPECT_FALSE(queue_.DropIf([](const Transfer&) { return false; }).any());
  EXPECT_THAT(Names(queue_.DropIf([&](const Transfer& each) { return &each == &b; }).running), ElementsAre("b"));
  EXPECT_FALSE(queue_.IsDropped(a));
  EXPECT_TRUE(queue_.Ended(a));
  EXPECT_FALSE(queue_.Ended(b));
}

TEST_F(TransferQueueTest, AnUploadThatIsDroppedWhileItWaitsGivesItsTurnAway) {
  const Transfer& a = Upload("a");
  Upload("b");
  DueAt(0);
  Break(a, 0);
  EXPECT_THAT(Names(queue_.DropIf([&](const Transfer& each) { return &each == &a; }).idle), ElementsAre("a"));
  EXPECT_THAT(DueAt(1), ElementsAre("b"));
}

TEST_F(TransferQueueTest, WhatIsWrittenAfterItWasRemovedChangesNothing) {
  const Transfer& a = Upload("a");
  const auto kept = queue_.TakeDue(0);
  Finish(a);
  const Transfer& b = Upload("b");
  DueAt(0);
  queue_.Written(*kept.front());
  Upload("c");
  EXPECT_THAT(DueAt(0), IsEmpty()) << "b is being written";
  queue_.Written(b);
  EXPECT_THAT(DueAt(0), ElementsAre("c"));
}

using TransferQueueDeathTest = TransferQueueTest;

TEST_F(TransferQueueDeathTest, OnlyARunningAttemptCanEnd) {
  const Transfer& a = Upload("a");
  EXPECT_DEATH(queue_.Ended(a), "running");
  DueAt(0);
  Break(a, 0);
  EXPECT_DEATH(queue_.Ended(a), "running");
}

TEST_F(TransferQueueTest, FailsWhereAttemptsBreakOneAfterTheOtherWithoutAByteForTenSeconds) {
  Named& a = AddNamed("a");
  for (const int attempt : {1, 2, 3, 4}) BreakAgain(a, attempt, "reset", 3'000 * (attempt - 1));
  EXPECT_EQ(queue_.Failing(9'000), "");
  BreakAgain(a, 5, "reset", 10'000);
  EXPECT_EQ(queue_.Failing(10'000), "a transfer was ended 5 times in a row: reset");
  a.Broke(0, "");
  EXPECT_EQ(queue_.Failing(11'000), "") << "it moves";
  BreakAgain(a, 1, "reset", 12'000);
  EXPECT_EQ(queue_.Failing(20'000), "");
}

TEST_F(TransferQueueTest, FailsWhereSomethingElseThanACoordinatorEndsSeveralInAMinuteThoughTheyMoveOn) {
  const std::string foreign = OfNoCoordinator({grpc::StatusCode::PERMISSION_DENIED, "no"}).error_message();
  for (int64_t at_ms : {1'000, 2'000, 3'000}) {
    EXPECT_EQ(queue_.Failing(at_ms), "");
    Named& transfer = AddNamed("a");
    BreakAgain(transfer, 1, foreign, at_ms);
    queue_.TakeDue(at_ms + 1'000'000);
    Finish(transfer);
  }
  EXPECT_EQ(queue_.Failing(3'000), "a transfer was ended: " + foreign);
  EXPECT_NE(queue_.Failing(63'000), "");
  EXPECT_EQ(queue_.Failing(63'001), "");
}

}  // namespace
}  // namespace causeway::transport
