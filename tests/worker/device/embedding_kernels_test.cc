// The embedding's kernels, for tokens that follow Zipf's law: of some there are hundreds in a batch, of most a few.
#include "worker/device/kernels/embedding_kernels.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "core/random.h"
#include "tests/worker/device/kernel_runs.h"
#include "tests/worker/model/test_values.h"
#include "worker/model/gpu_layers.h"

namespace causeway::worker {
namespace {

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
