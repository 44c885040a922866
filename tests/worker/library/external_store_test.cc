#include "worker/library/external_store.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <future>

#include "core/check.h"
#include "core/digest.h"
#include "core/layout.h"
#include "core/outer_step.h"
#include "core/random.h"
#include "replica/host_store.h"

namespace causeway::worker {
namespace {

using core::DType;
using core::kUnitValues;
using replica::Movement;
using replica::UnitRanges;
using ::testing::Each;
using ::testing::HasSubstr;

std::vector<float> Noise(size_t count, uint64_t stream) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>(core::UnitInterval(core::HashCombine(stream, i)) - 0.5);
  }
  return values;
}

// A program with one tensor, which does its work at the test's word.
class Program {
 public:
  explicit Program(const std::vector<float>& theta, DType dtype = DType::kFloat32)
      : dtype_(dtype),
        theta_(theta.size() * core::BytesOf(dtype)),
        store_({{.values = std::ssize(theta), .dtype = dtype}}, [this] { Wake(); }) {
    core::Store(dtype_, theta, theta_.data());
  }

  ExternalStore& store() { return store_; }
  std::vector<float> theta() const {
    std::vector<float> values(theta_.size() / core::BytesOf(dtype_));
    core::Load(dtype_, theta_.data(), values);
    return values;
  }
  int pieces() const { return pieces_; }

  // Does pieces until `outcome` is there.
  absl::Status WorkUntil(std::future<absl::Status> outcome) {
    while (outcome.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      if (const std::optional<WorkPiece> piece = Next(outcome)) Do(*piece);
    }
    return outcome.get();
  }

  // Does the pieces that `operation`, on a thread of the site, waits for.
  absl::Status Work(const std::function<absl::Status()>& operation) {
    return WorkUntil(std::async(std::launch::async, [&] {
      const absl::Status outcome = operation();
      Wake();
      return outcome;
    }));
  }

  absl::Status Digest(uint64_t& digest) {
    return Work([&]() -> absl::Status {
      ASSIGN_OR_RETURN(digest, store_.Digest());
      return absl::OkStatus();
    });
  }

  absl::Status Move(const UnitRanges& ranges, const Movement& movement) {
    return Work([&] { return store_.Move(ranges, movement); });
  }

 private:
  void Wake() {
    core::MutexLock lock(mutex_);
    woken_ = true;
    changed_.NotifyAll();
  }

  std::optional<WorkPiece> Next(const std::future<absl::Status>&) {
    if (std::optional<WorkPiece> piece = store_.Take()) return piece;
    core::MutexLock lock(mutex_);
    lock.WaitFor(changed_, std::chrono::milliseconds(10), [this] { return std::exchange(woken_, false); });
    return store_.Take();
  }

  void Do(const WorkPiece& piece) {
    ++pieces_;
    EXPECT_TRUE(store_.CarryOut(piece.id, theta_.data() + piece.first * core::BytesOf(dtype_)).ok());
  }

  const DType dtype_;
  std::vector<std::byte> theta_;
  int pieces_ = 0;
  core::Mutex mutex_;
  core::Condition changed_;
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  ExternalStore store_;
};

constexpr int64_t kValues = 3 * kUnitValues - 77;  // three units, the last with padding
const UnitRanges kLastTwo = {{0, 1, 2}};

TEST(ExternalStore, MovesFloat32ToTheBitsOfTheHostStore) {
  for (const bool mixes : {true, false}) {
    const std::vector<float> other = Noise(2 * kUnitValues, 2);
    const Movement movement = mixes ? Movement::Mix(0.3f, other) : Movement::Step(0.7f, other);
    Program program(Noise(kValues, 1));
    ASSERT_TRUE(program.Move(kLastTwo, movement).ok());
    std::vector<float> expected = Noise(kValues, 1);
    replica::HostStore host({expected}, nullptr);
    ASSERT_TRUE(host.Move(kLastTwo, movement).ok());
    EXPECT_EQ(program.theta(), expected) << mixes;
  }
}

TEST(ExternalStore, SettingThetaIsOneWriteOfEachRange) {
  Program program(Noise(kValues, 1));
  const std::vector<float> anchor(2 * kUnitValues, 0.25f);
  ASSERT_TRUE(program.Move(kLastTwo, Movement::Mix(0, anchor)).ok());
  EXPECT_EQ(program.pieces(), 1);
  const std::vector<float> theta = program.theta();
  EXPECT_THAT(std::span(theta).subspan(kUnitValues), Each(0.25f));
  EXPECT_EQ(theta[0], Noise(kValues, 1)[0]);
}

TEST(ExternalStore, MovesThetaOfSixteenBitsInFloat32AndRounds) {
  for (const DType dtype : {DType::kBfloat16, DType::kFloat16}) {
    for (const float alpha : {0.0f, 0.5f}) {
      Program program(Noise(kValues, 1), dtype);
      std::vector<float> expected = program.theta();
      const std::vector<float> anchor = Noise(3 * kUnitValues, 3);
      const std::span by = std::span(anchor).first(kValues);
      core::MixAnchor(alpha, by, expected);
      if (dtype == DType::kBfloat16 && alpha > 0) core::RoundMix(by, program.theta(), expected);
      ASSERT_TRUE(program.Move({{0, 0, 3}}, Movement::Mix(alpha, anchor)).ok());
      core::RoundTo(dtype, expected, expected);
      EXPECT_EQ(program.theta(), expected) << core::DTypeName(dtype) << alpha;
    }
  }
}

TEST(ExternalStore, ReadsThetaOfSixteenBitsAsFloat32) {
  Program program(Noise(kValues, 1), DType::kFloat16);
  std::vector<float> staging(3 * kUnitValues);
  ASSERT_TRUE(program.Work([&] { return program.store().Read({{0, 0, 3}}, staging); }).ok());
  staging.resize(kValues);
  EXPECT_EQ(staging, program.theta());
}

TEST(ExternalStore, HandsOutTheAnchorAsFloat32) {
  const std::vector<float> anchor = Noise(kValues, 4);
  ExternalStore store({{.values = kValues, .dtype = DType::kBfloat16}}, [] {});
  std::vector<std::vector<float>> handed_out = {anchor};
  std::future<absl::Status> done = std::async(std::launch::async, [&] { return store.HandOutAnchor(handed_out); });
  std::optional<WorkPiece> piece;
  while (!piece) piece = store.Take();
  std::vector<float> got(kValues);
  ASSERT_TRUE(store.CarryOut(piece->id, got.data()).ok());
  EXPECT_TRUE(done.get().ok());
  EXPECT_EQ(got, anchor);
}

TEST(ExternalStore, ReadIsLeftToTheProgramUntilThetaChanges) {
  Program program(Noise(kValues, 1));
  std::vector<float> staging(2 * kUnitValues);
  const int64_t ticket = program.store().BeginRead(kLastTwo, staging);
  const std::optional<WorkPiece> piece = program.store().Take();
  ASSERT_TRUE(piece);
  EXPECT_TRUE(piece->before_change);
  EXPECT_EQ(piece->first, kUnitValues);
  EXPECT_EQ(std::ssize(piece->values), kValues - kUnitValues);
  std::ranges::fill(piece->values, 7.0f);
  ASSERT_TRUE(program.store().Done(piece->id, absl::OkStatus()).ok());
  EXPECT_TRUE(program.store().AwaitRead(ticket).ok());
  EXPECT_EQ(staging[0], 7);
}

TEST(ExternalStore, WorkThatCannotBeDoneFailsWhatWaitsForIt) {
  Program program(Noise(kValues, 1));
  std::vector<float> staging(2 * kUnitValues);
  const int64_t ticket = program.store().BeginRead(kLastTwo, staging);
  const std::optional<WorkPiece> piece = program.store().Take();
  ASSERT_TRUE(program.store().Done(piece->id, absl::InternalError("no such device")).ok());
  EXPECT_THAT(std::string(program.store().AwaitRead(ticket).message()), HasSubstr("no such device"));
  EXPECT_FALSE(program.store().Read(kLastTwo, staging).ok());  // the site is over
}

TEST(ExternalStore, EndLetsGoOfWhatWaitsOnceTheProgramHasDoneWhatItTook) {
  Program program(Noise(kValues, 1));
  std::vector<float> staging(2 * kUnitValues), other(kUnitValues);
  const int64_t taken = program.store().BeginRead(kLastTwo, staging);
  const int64_t waiting = program.store().BeginRead({{0, 0, 1}}, other);
  const std::optional<WorkPiece> piece = program.store().Take();
  program.store().End(absl::CancelledError("the site leaves"));
  EXPECT_TRUE(absl::IsCancelled(program.store().AwaitRead(waiting)));
  EXPECT_TRUE(program.store().has_taken_work());  // its memory is in use
  EXPECT_EQ(program.store().Take(), std::nullopt);
  ASSERT_TRUE(program.store().Done(piece->id, absl::OkStatus()).ok());
  EXPECT_TRUE(program.store().AwaitRead(taken).ok());
  EXPECT_FALSE(program.store().has_taken_work());
}

TEST(ExternalStore, TheDigestOfThetaIsTheSumOfItsTensors) {
  for (const DType dtype : {DType::kFloat32, DType::kBfloat16}) {
    Program program(Noise(kValues, 1), dtype);
    uint64_t digest = 0;
    ASSERT_TRUE(program.Digest(digest).ok());
    EXPECT_EQ(digest, core::ThetaDigest(/*seed=*/0, 0, program.theta()));
  }
}

// A shard of some columns: its values lie one after the other, and have places apart.
TEST(WorkPiece, AShardOfColumnsHasTheDigestsOfItsPlaces) {
  const std::vector<float> whole = Noise(6 * 10, 1);
  uint64_t sum = 0;
  for (const auto& [first, columns] : {std::pair(0, 4), std::pair(4, 6)}) {
    std::vector<float> shard;
    for (int row = 0; row < 6; ++row) {
      shard.insert(shard.end(), whole.begin() + row * 10 + first, whole.begin() + row * 10 + first + columns);
    }
    sum += DigestTheta(/*seed=*/3, DType::kFloat32, {.first = first, .rows = 6, .columns = columns, .stride = 10},
                       shard.data());
  }
  EXPECT_EQ(sum, core::ThetaDigest(/*seed=*/3, 0, whole));
}

// Moved in two parts, θ has the bits of one move: also where it is rounded stochastically.
TEST(WorkPiece, AMoveInPartsHasTheBitsOfTheWhole) {
  for (const DType dtype : {DType::kFloat32, DType::kBfloat16, DType::kFloat16}) {
    for (const WorkPiece::Kind kind : {WorkPiece::Kind::kWrite, WorkPiece::Kind::kMix, WorkPiece::Kind::kAdd}) {
      std::vector<float> by = Noise(10'000, 2);
      std::vector<std::byte> whole(by.size() * core::BytesOf(dtype));
      core::Store(dtype, Noise(by.size(), 1), whole.data());
      std::vector<std::byte> parts = whole;
      MoveTheta(kind, 0.3f, dtype, by, whole.data());
      MoveTheta(kind, 0.3f, dtype, std::span(by).first(4'321), parts.data());
      MoveTheta(kind, 0.3f, dtype, std::span(by).subspan(4'321), parts.data() + 4'321 * core::BytesOf(dtype));
      EXPECT_EQ(parts, whole);
    }
  }
}

TEST(ExternalStore, WorkThatWasNotTakenCannotBeDone) {
  Program program(Noise(kValues, 1));
  const absl::Status done = program.store().Done(42, absl::OkStatus());
  EXPECT_EQ(done.message(), "work_done: expected the id of work that was taken and is not done, got 42");
  float theta = 0;
  EXPECT_THAT(std::string(program.store().CarryOut(42, &theta).message()), HasSubstr("taken and is not done, got 42"));
}

}  // namespace
}  // namespace causeway::worker
