// A series that stays small and still spans the whole run.
#include "server/status/thinned_series.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

namespace causeway::server {
namespace {

using ::testing::ElementsAre;

TEST(ThinnedSeries, KeepsEverythingWhileThereIsRoom) {
  ThinnedSeries<int> series(4);
  for (int i = 0; i < 4; ++i) series.Add(i);
  EXPECT_THAT(series.points(), ElementsAre(0, 1, 2, 3));
}

TEST(ThinnedSeries, HalvesWhenItIsFullAndKeepsTheFirstAndTheNewest) {
  ThinnedSeries<int> series(4);
  for (int i = 0; i < 5; ++i) series.Add(i);
  EXPECT_THAT(series.points(), ElementsAre(0, 2, 4));
  series.Add(5);
  EXPECT_THAT(series.points(), ElementsAre(0, 2, 4, 5));
  series.Add(6);
  series.Add(7);
  EXPECT_EQ(series.points().front(), 0);
  EXPECT_EQ(series.points().back(), 7);
}

TEST(ThinnedSeries, SpansManyOffersEvenlyWithinItsCapacity) {
  ThinnedSeries<int> series(100);
  for (int i = 0; i < 200'000; ++i) {
    series.Add(i);
    ASSERT_LE(series.points().size(), 100u);
  }
  const std::vector<int> points = series.points();
  EXPECT_GE(points.size(), 50u);
  EXPECT_EQ(points.front(), 0);
  EXPECT_EQ(points.back(), 199'999);
  const int stride = points[1] - points[0];
  for (size_t i = 1; i + 1 < points.size(); ++i) EXPECT_EQ(points[i] - points[i - 1], stride) << i;
}

TEST(EvenlyOf, TakesTheFirstTheLastAndAsManyAsAskedFor) {
  EXPECT_THAT(EvenlyOf(std::vector{0, 1, 2, 3, 4, 5, 6}, 3), ElementsAre(0, 3, 6));
  EXPECT_THAT(EvenlyOf(std::vector{0, 1}, 3), ElementsAre(0, 1));
}

}  // namespace
}  // namespace causeway::server
