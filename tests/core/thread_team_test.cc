#include "core/thread_team.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>

namespace causeway::core {
namespace {

constexpr int kThreads[] = {1, 2, 3, 7};

TEST(ThreadTeam, EveryItemIsWorkedOnceAndFinishedInOrderAfterAllBeforeIt) {
  for (int count : kThreads) {
    ThreadTeam threads(count);
    EXPECT_EQ(threads.threads(), count);
    for (int64_t items : {0, 1, 2, 1000}) {
      std::vector<int> worked(items, 0);  // as `work` leaves it: `finish` sees it without a lock
      std::vector<int64_t> finished;
      threads.RunInOrder(
          items,
          [&](int worker, int64_t item) {
            EXPECT_TRUE(worker >= 0 && worker < count);
            ++worked[item];
          },
          [&](int64_t item) {
            EXPECT_EQ(std::accumulate(worked.begin(), worked.begin() + item + 1, int64_t{0}), item + 1);
            finished.push_back(item);
          });
      std::vector<int64_t> in_order(items);
      std::iota(in_order.begin(), in_order.end(), 0);
      EXPECT_EQ(finished, in_order);
      EXPECT_EQ(worked, std::vector<int>(items, 1));
    }
  }
}

TEST(ThreadTeam, WorkerIsOneThreadAtATime) {
  ThreadTeam threads(7);
  std::vector<int> of_worker(7, 0);  // a race for ThreadSanitizer if two had the same number
  threads.RunInOrder(
      10'000, [&](int worker, int64_t) { ++of_worker[worker]; }, [](int64_t) {});
  EXPECT_EQ(std::accumulate(of_worker.begin(), of_worker.end(), 0), 10'000);
}

TEST(ThreadTeam, NoItemIsTakenFurtherAheadThanTheWindowWhileOneIsFinished) {
  for (int count : kThreads) {
    ThreadTeam threads(count);
    std::atomic<int64_t> finished = 0, furthest = 0;
    threads.RunInOrder(
        500,
        [&](int, int64_t item) {
          EXPECT_LT(item, finished + threads.window());
          furthest = std::max<int64_t>(furthest, item);
        },
        [&](int64_t item) {
          while (count > 1 && item == 0 && furthest < threads.window() - 1) std::this_thread::yield();
          ++finished;
        });
    EXPECT_EQ(furthest, 499);
  }
}

}  // namespace
}  // namespace causeway::core
