#include "offload/bus_schedule.h"

#include <gtest/gtest.h>

#include <latch>
#include <thread>

#include "tests/offload/update_run.h"

namespace causeway::offload {
namespace {

using Range = BusSchedule::Range;

TEST(BusSchedule, CopiesWhatWasAnnouncedInOrderAndInPieces) {
  BusSchedule bus;
  const int64_t ticket = bus.Announce({{5, 10}, {100, BusSchedule::kPiece + 1}, {7, 0}});
  bus.Announce({{30, 1}});  // another copier's
  EXPECT_FALSE(bus.IsCopied({14, 1}));
  EXPECT_TRUE(bus.IsCopied({15, 15}));
  std::vector<Range> pieces;
  bus.Copy(ticket, [&](const Range& piece) { pieces.push_back(piece); });
  EXPECT_EQ(pieces, (std::vector<Range>{{5, 10}, {100, BusSchedule::kPiece}, {100 + BusSchedule::kPiece, 1}}));
  EXPECT_TRUE(bus.IsCopied({0, 30}));
  EXPECT_FALSE(bus.IsCopied({30, 1'000'000'000}));
}

TEST(BusSchedule, NoPieceBeginsWhileAnUpdateRunsButWhatItAwaits) {
  BusSchedule bus;
  const int64_t ticket = bus.Announce({{0, 3 * BusSchedule::kPiece}});
  std::latch first_piece_begun(1), update_begun(1);
  std::atomic<int> pieces = 0;
  std::thread copier([&] {
    bus.Copy(ticket, [&](const Range&) {
      if (++pieces == 1) {
        first_piece_begun.count_down();
        update_begun.wait();
      }
    });
  });
  first_piece_begun.wait();
  bus.BeginUpdate();
  update_begun.count_down();
  bus.AwaitCopied({0, 1});  // the piece that was under way
  EXPECT_EQ(pieces, 1);
  bus.AwaitCopied({2 * BusSchedule::kPiece, 1});
  EXPECT_EQ(pieces, 3);
  EXPECT_GT(bus.waited_s(), 0);
  bus.EndUpdate();
  copier.join();
}

TEST(BusSchedule, UpdateTakesWhatIsCopiedFirstAndTheCopyHasTheValuesOfTheStepBefore) {
  core::ThreadTeam team(2);
  constexpr int64_t kSize = 4 * BusSchedule::kPiece;
  for (FakeDevice* device : {static_cast<FakeDevice*>(nullptr), new FakeDevice(FakeDevice::Runs::kThreads, 3)}) {
    const std::unique_ptr<FakeDevice> owner(device);
    for (int64_t k : {core::kAllOnCpu, int64_t{1}, int64_t{2}}) {
      if (device == nullptr && k != core::kAllOnCpu) continue;
      BusSchedule bus;
      UpdateRun run({.parameters = kSize, .subgroup = kSize / 8, .k = k, .gradient_type = GradientType::kFloat32},
                    device, &team, &bus);
      run.Step(1);
      ASSERT_EQ(run.Differences(), "");
      const std::vector<float> before = run.parameters();
      const Range fragments[] = {{0, 10}, {kSize / 2 - 5, kSize / 4}};  // the first subgroup, and some later ones
      std::vector<float> copy(kSize);
      const int64_t ticket = bus.Announce({std::begin(fragments), std::end(fragments)});
      std::thread copier([&] {
        bus.Copy(ticket, [&](const Range& piece) {
          std::copy_n(run.parameters().begin() + piece.first, piece.count, copy.begin() + piece.first);
        });
      });
      run.Step(2);
      copier.join();
      EXPECT_EQ(run.Differences(), "");
      for (const Range& range : fragments) {
        for (int64_t i = range.first; i < range.first + range.count; ++i) ASSERT_EQ(copy[i], before[i]) << i;
      }
      EXPECT_NE(run.parameters()[0], before[0]);
    }
  }
}

}  // namespace
}  // namespace causeway::offload
