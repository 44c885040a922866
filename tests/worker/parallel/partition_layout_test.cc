#include "worker/parallel/partition_layout.h"

#include <gtest/gtest.h>

#include "core/random.h"

namespace causeway::worker {
namespace {

core::Manifest ManifestOf(const std::vector<int64_t>& sizes) {
  core::Manifest manifest;
  for (const int64_t size : sizes) manifest.push_back({.name = "t" + std::to_string(manifest.size()), .shape = {size}});
  return manifest;
}

TEST(PartitionLayout, PartsOfALevelLieInThoseOfTheOneBelow) {
  const PartitionLayout layout(ManifestOf({100, 20}), {{0, 1}}, {2, 3});
  EXPECT_EQ(layout.ranks(), 6);
  EXPECT_EQ(layout.groups()[0].padded, 120);
  const auto part = [](int rank, int64_t first, int64_t count) {
    return Piece{.rank = rank, .tensor = -1, .first = first, .count = count};
  };
  EXPECT_EQ(layout.PartOf(0, kWholeGroup, 5), part(5, 0, 120));
  EXPECT_EQ(layout.PartOf(0, 0, 5), part(5, 60, 60));   // digit 1 of 2
  EXPECT_EQ(layout.PartOf(0, 1, 5), part(5, 100, 20));  // digit 2 of 3 within
  EXPECT_EQ(layout.PartOf(0, 1, 4), part(4, 40, 20));
  EXPECT_EQ(layout.Within(0, part(1, 80, 40)), (std::vector<Piece>{{1, 0, 80, 20, 80}, {1, 1, 0, 20, 100}}));
}

// 10,000 models and sites of 2 to 8 levels.
TEST(PartitionLayout, PartsOfAllRanksAreEveryTensorOnce) {
  for (uint64_t seed = 1; seed <= 10'000; ++seed) {
    const auto draw = [&](uint64_t what, uint64_t most) { return core::HashCombine(seed, what) % most; };
    std::vector<int64_t> of, sizes;
    for (uint64_t l = 0; l < 2 + draw(0, 7); ++l) of.push_back(1 + static_cast<int64_t>(draw(10 + l, 3)));
    std::vector<std::vector<int>> groups(1 + draw(1, 3));
    for (uint64_t i = 0; i < 1 + draw(2, 6); ++i) {
      groups[draw(30 + i, groups.size())].push_back(static_cast<int>(i));
      sizes.push_back(1 + static_cast<int64_t>(draw(20 + i, 1000)));
    }
    const PartitionLayout layout(ManifestOf(sizes), groups, of);
    for (int level = 0; level < static_cast<int>(of.size()); ++level) {
      std::vector<std::vector<int>> times;
      for (const int64_t size : sizes) times.emplace_back(static_cast<size_t>(size));
      for (int64_t rank = 0; rank < layout.ranks(); ++rank) {
        for (size_t g = 0; g < groups.size(); ++g) {
          for (const Piece& part : layout.Within(g, layout.PartOf(g, level, rank))) {
            for (int64_t i = 0; part.tensor >= 0 && i < part.count; ++i) {
              ++times[static_cast<size_t>(part.tensor)][static_cast<size_t>(part.first + i)];
            }
          }
        }
      }
      const auto copies = static_cast<int>(layout.ranks() / layout.Parts(level));
      for (const std::vector<int>& tensor : times) {
        for (const int count : tensor) ASSERT_EQ(count, copies) << "seed " << seed << ", level " << level;
      }
    }
  }
}

}  // namespace
}  // namespace causeway::worker
