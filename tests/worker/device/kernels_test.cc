// Kernels against the layers of the CPU, at sizes around a block's, and in other orders of their lanes.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "core/layout.h"
#include "core/outer_step.h"
#include "core/random.h"
#include "tests/worker/device/fake_backend.h"
#include "tests/worker/device/naive_gather.h"
#include "tests/worker/model/test_values.h"
#include "worker/device/kernels/embedding_kernels.h"
#include "worker/model/gpu_layers.h"
#include "worker/model/llama_layers.h"

namespace causeway::worker {
namespace {

// Shared by the tests of kernels: a kernel on the fake device, in several orders of its lanes.

inline void RunOn(const Kernel& kernel, uint64_t seed) {
  FakeBackend backend(seed);
  backend.Launch(offload::Queue::kCompute, kernel);
  const auto done = backend.device().MakeEvent();
  backend.device().Record(done, offload::Queue::kCompute);
  backend.device().AwaitOnHost(done);
}

// `make(out)` gives a kernel that reads and writes `out`, which begins as `begin`; the result, equal for all orders.
inline std::vector<float> InEveryOrder(const std::vector<float>& begin,
                                       const std::function<Kernel(std::vector<float>& out)>& make) {
  std::vector<float> first = begin;
  RunOn(make(first), 0);
  for (const uint64_t seed : {1, 5, 11}) {
    std::vector<float> other = begin;
    RunOn(make(other), seed);
    EXPECT_TRUE(other == first) << "lanes in another order, seed " << seed;
  }
  return first;
}

inline void ExpectNear(const std::vector<float>& got, const std::vector<float>& expected, double tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], tolerance) << i;
}

// Odd rows, one row, hidden sizes from 64 to 8,192, and one that no power of two divides.
struct Size {
  int64_t rows, size;
};
constexpr Size kSizes[] = {{1, 64}, {3, 64}, {1, 8192}, {5, 200}, {2, 1000}};

TEST(KernelsTest, RmsNormIsTheCpus) {
  for (const auto [rows, size] : kSizes) {
    const std::vector<float> x = RandomValues(1, rows * size), w = RandomValues(2, size);
    std::vector<float> expected(rows * size), expected_scale(rows), scale(rows);
    RmsNorm(rows, size, 1e-5, x.data(), w.data(), expected.data(), expected_scale.data());
    const std::vector<float> y = InEveryOrder(std::vector<float>(rows * size), [&](std::vector<float>& out) {
      return RmsNormKernel<float>{x.data(), w.data(), out.data(), scale.data(), rows, size, 1e-5f};
    });
    ExpectNear(y, expected, 1e-5);
    ExpectNear(scale, expected_scale, 1e-5);
  }
}

TEST(KernelsTest, RmsNormsBackwardPassIsTheCpus) {
  for (const auto [rows, size] : kSizes) {
    const std::vector<float> dy = RandomValues(1, rows * size), x = RandomValues(2, rows * size),
                             w = RandomValues(3, size), dx = RandomValues(5, rows * size);
    std::vector<float> scale(rows), y(rows * size), dw(size), partials(7 * size);
    RmsNorm(rows, size, 1e-5, x.data(), w.data(), y.data(), scale.data());
    std::vector<float> expected = dx, expected_dw(size, 0.5f);
    RmsNormBackwardInputAdd(rows, size, dy.data(), x.data(), w.data(), scale.data(), expected.data());
    RmsNormBackwardWeight(rows, size, dy.data(), x.data(), scale.data(), expected_dw.data());
    ExpectNear(InEveryOrder(dx,
                            [&](std::vector<float>& out) {
                              return RmsNormBackwardKernel<float>{dy.data(),    x.data(),   w.data(), out.data(),
                                                                  scale.data(), out.data(), rows,     size};
                            }),
               expected, 1e-4);
    partials = InEveryOrder(partials, [&](std::vector<float>& out) {
      return RmsNormWeightKernel<float>{dy.data(), x.data(), scale.data(), out.data(), rows, size, 7};
    });
    ExpectNear(InEveryOrder(std::vector<float>(size, 0.5f),
                            [&](std::vector<float>& out) {
                              return AddPartialsKernel{partials.data(), out.data(), size, 7};
                            }),
               expected_dw, 1e-4);
  }
}

template <typename T, int kPacks>
void ExpectBothHalvesInOne(int64_t rows, int64_t size, bool adds) {
  constexpr int64_t kShares = 3;
  const auto stored = [](const std::vector<float>& values) {
    std::vector<T> narrow(values.size());
    for (size_t i = 0; i < values.size(); ++i) Store(values[i], narrow[i]);
    return narrow;
  };
  const std::vector<T> dy = stored(RandomValues(1, rows * size)), x = stored(RandomValues(2, rows * size)),
                       w = stored(RandomValues(3, size)), addend = stored(RandomValues(4, rows * size));
  const std::vector<float> scale = RandomValues(5, rows);
  const T* const added = adds ? addend.data() : nullptr;
  std::vector<T> expected(rows * size), got(rows * size);
  std::vector<float> expected_partials(kShares * size);
  RunOn(RmsNormBackwardKernel<T>{dy.data(), x.data(), w.data(), added, scale.data(), expected.data(), rows, size}, 0);
  RunOn(RmsNormWeightKernel<T>{dy.data(), x.data(), scale.data(), expected_partials.data(), rows, size, kShares}, 0);
  const std::vector<float> partials = InEveryOrder(std::vector<float>(kShares * size), [&](std::vector<float>& out) {
    return RmsNormBackwardBothKernel<T, kPacks>{dy.data(),  x.data(),   w.data(), added, scale.data(),
                                                got.data(), out.data(), rows,     size,  kShares};
  });
  EXPECT_EQ(partials, expected_partials);
  for (int64_t i = 0; i < rows * size; ++i) ASSERT_EQ(Load(got[i]), Load(expected[i])) << i;
}

TEST(KernelsTest, BothHalvesOfRmsNormsBackwardPassInOneKernelHaveTheBitsOfTwo) {
  for (const bool adds : {false, true}) {
    ExpectBothHalvesInOne<float, 1>(5, 64, adds);
    ExpectBothHalvesInOne<float, 2>(7, 1000, adds);
    ExpectBothHalvesInOne<Bfloat16, 1>(1, 768, adds);
    ExpectBothHalvesInOne<Bfloat16, 4>(4, 4096, adds);
  }
  EXPECT_TRUE((RmsNormBackwardBothKernel<float, 1>::Takes(512)));
  EXPECT_FALSE((RmsNormBackwardBothKernel<float, 1>::Takes(516)));
  EXPECT_FALSE((RmsNormBackwardBothKernel<float, 1>::Takes(131)));
}

TEST(KernelsTest, SwiGluAndItsBackwardPassAreTheCpus) {
  for (const auto [rows, size] : kSizes) {
    const std::vector<float> gate_up = RandomValues(1, 2 * rows * size, 4), dy = RandomValues(2, rows * size);
    std::vector<float> expected(rows * size), expected_gradient(2 * rows * size);
    for (int64_t row = 0; row < rows; ++row) {
      const float* const at = gate_up.data() + 2 * row * size;
      SwiGlu(size, at, at + size, expected.data() + row * size);
      float* const gradient = expected_gradient.data() + 2 * row * size;
      SwiGluBackwardInput(size, dy.data() + row * size, at, at + size, gradient, gradient + size);
    }
    ExpectNear(InEveryOrder(std::vector<float>(rows * size),
                            [&](std::vector<float>& out) {
                              return SwiGluKernel<float>{gate_up.data(), out.data(), rows, size};
                            }),
               expected, 1e-5);
    ExpectNear(InEveryOrder(std::vector<float>(2 * rows * size),
                            [&](std::vector<float>& out) {
                              return SwiGluBackwardKernel<float>{dy.data(), gate_up.data(), out.data(), rows, size};
                            }),
               expected_gradient, 1e-5);
  }
}

// Packs of 16 bytes or none, one row of a position or more than a block has, and more pairs than lanes.
struct RopeSize {
  int64_t rows, heads, half, padding, sequence;
};
class RopeKernelTest : public ::testing::TestWithParam<RopeSize> {};

TEST_P(RopeKernelTest, TurnsBackWhatItTurned) {
  const auto [rows, heads, half, padding, sequence] = GetParam();
  const int64_t stride = 2 * heads * half + padding;
  const std::vector<double> frequencies = RopeFrequencies(2 * half, 10000, std::nullopt);
  const Rope rope(sequence, frequencies);
  const std::vector<float> x = RandomValues(1, rows * stride);
  const auto turned = [&](const std::vector<float>& begin, float sign) {
    return InEveryOrder(begin, [&](std::vector<float>& out) {
      return RopeKernel<float>{
          out.data(), rope.cosines().data(), rope.sines().data(), rows, stride, heads, half, sequence, sign};
    });
  };
  std::vector<float> expected;
  for (int64_t row = 0; row < rows; ++row) {
    expected.insert(expected.end(), x.begin() + row * stride, x.begin() + row * stride + 2 * heads * half);
  }
  rope.Rotate(rows, heads, expected.data());
  const std::vector<float> forward = turned(x, 1);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < stride; ++i) {
      const bool turns = i < 2 * heads * half;
      const float value = turns ? expected[row * 2 * heads * half + i] : x[row * stride + i];
      ASSERT_NEAR(forward[row * stride + i], value, 1e-6) << row << " " << i;
    }
  }
  ExpectNear(turned(forward, -1), x, 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Sizes, RopeKernelTest,
                         ::testing::Values(RopeSize{10, 3, 37, 11, 5}, RopeSize{10, 3, 36, 12, 1},
                                           RopeSize{45, 5, 32, 64, 5}, RopeSize{4, 2, 600, 0, 2},
                                           RopeSize{3, 2, 161, 0, 3}));

TEST(KernelsTest, TheClassifierIsTheCpus) {
  for (const auto [rows, vocab] : kSizes) {
    const std::vector<float> logits = RandomValues(1, rows * vocab, 6);
    std::vector<int32_t> targets(rows);
    for (int64_t row = 0; row < rows; ++row) targets[row] = static_cast<int32_t>((row * 37 + 5) % vocab);
    std::vector<float> expected = logits, losses(rows);
    const double loss = CrossEntropy(targets, vocab, expected.data());
    CrossEntropyBackwardInput(targets, vocab, 0.25f, expected.data());
    ExpectNear(InEveryOrder(logits,
                            [&](std::vector<float>& out) {
                              const auto size = static_cast<int32_t>(vocab);
                              return ClassifierKernel<float>{out.data(), targets.data(), losses.data(), rows,
                                                             size,       size,           0.25f};
                            }),
               expected, 1e-6);
    EXPECT_NEAR(std::accumulate(losses.begin(), losses.end(), 0.0), loss, 1e-5 * loss);
  }
}

TEST(KernelsTest, MovesOfParametersHaveTheBitsOfTheHosts) {
  for (const int64_t count : {1, 127, 1024, 5000}) {
    const std::vector<float> theta = RandomValues(1, count), other = RandomValues(2, count);
    std::vector<float> mixed = theta, rebased = theta;
    core::MixAnchor(0.3f, other, mixed);
    core::Rebase(0.7f, other, rebased);
    EXPECT_EQ(InEveryOrder(theta, [&](auto& out) { return MixKernel{other.data(), out.data(), count, 0.3f}; }), mixed);
    EXPECT_EQ(InEveryOrder(theta,
                           [&](auto& out) {
                             return RebaseKernel{other.data(), out.data(), count, 0.7f};
                           }),
              rebased);
  }
}

TEST(KernelsTest, ASumIsMovedToAnotherAndBeginsAnew) {
  for (const int64_t count : {1, 127, 1024, 5000}) {
    const std::vector<float> to = RandomValues(1, count), from = RandomValues(2, count);
    std::vector<float> expected = to;
    for (int64_t i = 0; i < count; ++i) expected[i] += from[i];
    std::vector<float> moved;
    EXPECT_EQ(InEveryOrder(to,
                           [&](auto& out) {
                             moved = from;
                             return MoveSumKernel{moved.data(), out.data(), count};
                           }),
              expected);
    EXPECT_EQ(moved, std::vector<float>(count));
  }
}

TEST(KernelsTest, ArraysThatBeginAtNoPackAreMovedValueByValue) {
  constexpr int64_t kCount = 2500;
  const std::vector<float> theta = RandomValues(1, kCount + 4), other = RandomValues(2, kCount + 4);
  for (const auto& [a, b] : {std::pair{0, 1}, {1, 0}, {3, 3}, {0, 0}}) {
    const float* const from = other.data() + a;
    std::vector<float> mixed = theta, copied = theta;
    core::MixAnchor(0.3f, {from, kCount}, std::span(mixed).subspan(b, kCount));
    EXPECT_EQ(InEveryOrder(theta, [&](auto& out) { return MixKernel{from, out.data() + b, kCount, 0.3f}; }), mixed);
    std::copy_n(from, kCount, copied.begin() + b);
    EXPECT_EQ(InEveryOrder(theta,
                           [&](auto& out) {
                             return CopyKernel<float, float>{from, out.data() + b, kCount};
                           }),
              copied);
    std::vector<Bfloat16> narrow(kCount + 4);
    RunOn(CopyKernel<float, Bfloat16>{from, narrow.data() + b, kCount}, 5);
    for (int64_t i = 0; i < kCount; ++i) ASSERT_EQ(narrow[i + b].bits, core::ToBfloat16(from[i])) << i;
  }
}

TEST(KernelsTest, GatherBringsPiecesTogether) {
  const std::vector<float> values = RandomValues(1, 20'000);
  std::vector<GatherPiece> pieces;
  std::vector<float> expected(16'384, 7.0f);
  int64_t at = 0, blocks = 0;
  for (const auto& [first, count] : {std::pair{3, 1}, {10, 4000}, {5001, 257}, {7040, 1024}, {9999, 33}}) {
    const float* const from = values.data() + first;
    pieces.push_back({from, at, count, blocks});
    std::copy_n(from, count, expected.begin() + at);
    blocks += GatherKernel::BlocksOf(from, count);
    at += core::UnitsFor(count) * 2048;
  }
  EXPECT_EQ(InEveryOrder(std::vector<float>(16'384, 7.0f),
                         [&](std::vector<float>& out) {
                           return GatherKernel{pieces.data(), out.data(), std::ssize(pieces), blocks};
                         }),
            expected);
}

// The lines of 128 bytes that a row of `count` floats at misalignment `skipped` takes, counted over the accesses of the
// kernel's warps, one for each 32 lanes and step.
template <typename Gather>
int64_t LinesOf(int64_t skipped, int64_t count) {
  const auto* const from = reinterpret_cast<const float*>(uintptr_t{1 << 20}) + skipped;
  const GatherPiece piece = {.from = from, .at = 0, .count = count, .first_block = 0};
  std::set<std::pair<int64_t, uintptr_t>> accesses;  // warp's access, line
  for (int64_t block = 0; block < Gather::BlocksOf(from, count); ++block) {
    for (int64_t at = 0; at < kValuesPerBlock; ++at) {
      const int64_t i = Gather::FirstOf(piece, block) + at;
      if (i < 0 || i >= count) continue;
      accesses.insert({(block * kValuesPerBlock + at) / 32, reinterpret_cast<uintptr_t>(from + i) / 128});
    }
  }
  return std::ssize(accesses);
}

TEST(KernelsTest, GatherTakesAsManyLinesAsARowHasHoweverItIsAligned) {
  for (int64_t skipped = 0; skipped < 64; ++skipped) {
    for (const int64_t count : {1, 31, 32, 33, 1000, 1024, 5000}) {
      const int64_t begin = 4 * (skipped % 32);
      EXPECT_EQ(LinesOf<GatherKernel>(skipped, count), (begin + 4 * count + 127) / 128) << skipped << " " << count;
    }
  }
}

TEST(KernelsTest, TheNaiveGatherReadsMostLinesTwiceWhereARowBeginsWithinOne) {
  const std::vector<float> values = RandomValues(1, 2000);
  const GatherPiece pieces[] = {{values.data() + 3, 0, 1500, 0}, {values.data() + 600, 1500, 40, 2}};
  std::vector<float> expected(values.begin() + 3, values.begin() + 1503);
  expected.insert(expected.end(), values.begin() + 600, values.begin() + 640);
  std::vector<float> got(1540);
  const NaiveGatherKernel gather{.pieces = pieces, .to = got.data(), .count = 2, .all_blocks = 3};
  for (int64_t index = 0; index < gather.blocks(); ++index) {
    HostBlock block(index);
    gather.Run(block);
  }
  EXPECT_EQ(got, expected);
  EXPECT_EQ(LinesOf<NaiveGatherKernel>(0, 1024), 32);
  EXPECT_EQ(LinesOf<NaiveGatherKernel>(1, 1024), 64);
  EXPECT_EQ(LinesOf<GatherKernel>(1, 1024), 33);
}

TEST(KernelsTest, TheSumOfSquaresIsThatOfAllValues) {
  for (const int64_t count : {1, 127, 5000}) {
    const std::vector<float> values = RandomValues(1, count);
    std::vector<double> sums(9);
    RunOn(SumOfSquaresKernel{values.data(), sums.data(), count, 9}, 3);
    EXPECT_NEAR(std::accumulate(sums.begin(), sums.end(), 0.0), Dot(values, values), 1e-9);
  }
}

// The embedding's kernels, for tokens that follow Zipf's law: of some there are hundreds in a batch, of most a few.

constexpr int32_t kVocab = 300;

// Token t has a share of the rows of about 1/t: the first has more than five times 64 of 2,000, and 0 has none.
std::vector<int32_t> ZipfTokens(int64_t rows) {
  std::vector<int32_t> tokens;
  for (int64_t row = 0; row < rows; ++row) {
    const double uniform = core::UnitInterval(core::HashCombine(7, static_cast<uint64_t>(row)));
    tokens.push_back(std::min(static_cast<int32_t>(std::pow(kVocab, uniform)), kVocab - 1));
  }
  return tokens;
}

// dw with the rows' gradients added, by both kernels.
template <typename T>
std::vector<float> Backward(const std::vector<int32_t>& tokens, const std::vector<T>& dy, int64_t size,
                            const std::vector<float>& dw) {
  EmbeddingShares shares;
  shares.Assign(tokens);
  const int64_t partial = shares.partial();
  EXPECT_LE(partial, MostEmbeddingPartials(std::ssize(tokens)));
  const std::vector<float> partials = InEveryOrder(std::vector<float>(partial * size), [&](std::vector<float>& out) {
    return EmbeddingBackwardKernel<T>{shares.order.data(),
                                      shares.tokens.data(),
                                      shares.begins.data(),
                                      shares.ends.data(),
                                      dy.data(),
                                      nullptr,
                                      out.data(),
                                      partial,
                                      partial,
                                      size};
  });
  std::vector<float> ignored(partials.size());
  const std::vector<float> added = InEveryOrder(dw, [&](std::vector<float>& out) {
    return EmbeddingBackwardKernel<T>{shares.order.data(),
                                      shares.tokens.data(),
                                      shares.begins.data(),
                                      shares.ends.data(),
                                      dy.data(),
                                      out.data(),
                                      ignored.data(),
                                      shares.count(),
                                      partial,
                                      size};
  });
  EXPECT_TRUE(ignored == partials);
  return InEveryOrder(added, [&](std::vector<float>& out) {
    return EmbeddingPartialsKernel{shares.tokens.data(), shares.split.data(),   partials.data(),
                                   out.data(),           shares.split_tokens(), size};
  });
}

std::vector<float> PlainSum(const std::vector<int32_t>& tokens, const std::vector<float>& dy, int64_t size,
                            const std::vector<float>& dw) {
  std::vector<double> sums(dw.begin(), dw.end());
  for (size_t row = 0; row < tokens.size(); ++row) {
    for (int64_t i = 0; i < size; ++i) sums[tokens[row] * size + i] += dy[row * size + i];
  }
  return {sums.begin(), sums.end()};
}

TEST(EmbeddingKernelsTest, TheGradientOfFrequentAndRareTokensIsThePlainSum) {
  for (const auto& [rows, size] : {std::pair<int64_t, int64_t>{2000, 24}, {700, 37}, {64, 200}, {1, 3}}) {
    const std::vector<int32_t> tokens = ZipfTokens(rows);
    const std::vector<float> dw = RandomValues(1, kVocab * size), wide = RandomValues(2, rows * size);
    ExpectNear(Backward(tokens, wide, size, dw), PlainSum(tokens, wide, size, dw), 1e-5);
    std::vector<Bfloat16> narrow(wide.size());
    std::vector<float> rounded;
    for (size_t i = 0; i < wide.size(); ++i) {
      Store(wide[i], narrow[i]);
      rounded.push_back(Load(narrow[i]));
    }
    ExpectNear(Backward(tokens, narrow, size, dw), PlainSum(tokens, rounded, size, dw), 1e-5);
  }
}

TEST(EmbeddingKernelsTest, NoBlockHasMoreRowsThanAShareAndEachRowHasOne) {
  std::vector<int32_t> pairs;  // of 65 rows each: the most shares for their rows
  for (int32_t row = 0; row < 650; ++row) pairs.push_back(row / 65);
  for (const std::vector<int32_t>& tokens :
       {ZipfTokens(2000), ZipfTokens(3), std::vector<int32_t>(1000, 5), std::vector<int32_t>(64, 5), pairs}) {
    EmbeddingShares shares;
    shares.Assign(tokens);
    std::map<int32_t, int64_t> rows_of;
    for (const int32_t token : tokens) ++rows_of[token];
    std::vector<int> seen(tokens.size());
    for (int64_t j = 0; j < shares.count(); ++j) {
      const int64_t rows = shares.ends[j] - shares.begins[j];
      EXPECT_GE(rows, 1);
      EXPECT_LE(rows, kEmbeddingShareRows);
      EXPECT_EQ(j<shares.partial(), rows_of[shares.tokens[j]]> kEmbeddingShareRows) << j;
      for (int32_t at = shares.begins[j]; at < shares.ends[j]; ++at) {
        EXPECT_EQ(tokens[shares.order[at]], shares.tokens[j]);
        ++seen[shares.order[at]];
      }
    }
    EXPECT_THAT(seen, ::testing::Each(1));
    EXPECT_LE(shares.partial(), MostEmbeddingPartials(std::ssize(tokens)));
  }
}

TEST(EmbeddingKernelsTest, TheZipfTokensHaveATokenOfManyShares) {
  EmbeddingShares shares;
  shares.Assign(ZipfTokens(2000));
  EXPECT_GT(std::ranges::count(shares.tokens, shares.tokens[0]), 3);
  EXPECT_GT(shares.count(), shares.partial());
}

}  // namespace
}  // namespace causeway::worker
