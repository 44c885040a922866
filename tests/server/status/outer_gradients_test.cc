// The figures of a fragment's outer gradients, from sums whose answers are known.
#include "server/status/outer_gradients.h"

#include <gtest/gtest.h>

namespace causeway::server {
namespace {

constexpr core::OuterParameters kHalf = {2.0f, 0.5f};

TEST(OuterGradients, HaveNoCorrelationBeforeThereWasMomentum) {
  OuterGradients gradients;
  EXPECT_FALSE(gradients.Figures().norm.has_value());
  gradients.Add(1, kHalf, {.gg = 4, .gv = 0, .vv = 0});
  const OuterGradientFigures figures = gradients.Figures();
  EXPECT_DOUBLE_EQ(*figures.norm, 2);
  EXPECT_DOUBLE_EQ(*figures.amplification, 1.5);  // 1 + μ
  EXPECT_FALSE(figures.correlation || figures.predicted_amplification || figures.effective_lr);
}

TEST(OuterGradients, AreCorrelatedByTheRatioOfSums) {
  OuterGradients gradients;
  gradients.Add(2, kHalf, {.gg = 3, .gv = 1, .vv = 1});
  gradients.Add(3, kHalf, {.gg = 1, .gv = 1, .vv = 1});
  const OuterGradientFigures figures = gradients.Figures();  // r = 1/2: ρ = 0.5 / 1.25
  EXPECT_DOUBLE_EQ(*figures.correlation, 0.4);
  EXPECT_DOUBLE_EQ(*figures.amplification, 1.75);  // g and v alike: (1 + μ + μ²)
  EXPECT_DOUBLE_EQ(*figures.effective_lr, 2 * (1 + 0.5 / 0.8));
}

TEST(OuterGradients, ForgetWhatIsOlderThanSixteenRounds) {
  OuterGradients gradients;
  gradients.Add(1, kHalf, {.gg = 1e6, .gv = -1e5, .vv = 1});
  for (int i = 2; i <= 17; ++i) gradients.Add(i, kHalf, {.gg = 2, .gv = 1, .vv = 1});
  EXPECT_DOUBLE_EQ(*gradients.Figures().correlation, 0.4);
}

TEST(OuterGradients, BeginAnewWhereTheVersionGoesBack) {
  OuterGradients gradients;
  gradients.Add(7, kHalf, {.gg = 100, .gv = -10, .vv = 1});
  gradients.Add(7, kHalf, {.gg = 2, .gv = 1, .vv = 1});
  EXPECT_DOUBLE_EQ(*gradients.Figures().correlation, 0.4);
}

TEST(OuterGradients, BeyondWhatACorrelationCanBeStayWithinIt) {
  OuterGradients gradients;
  gradients.Add(1, kHalf, {.gg = 1, .gv = 100, .vv = 1e4});
  EXPECT_DOUBLE_EQ(*gradients.Figures().correlation, 1);
  EXPECT_DOUBLE_EQ(*gradients.Figures().effective_lr, 4);  // η / (1 − μ)
  gradients.Add(2, kHalf, {.gg = 1, .gv = -1000, .vv = 1e6});
  EXPECT_DOUBLE_EQ(*gradients.Figures().correlation, -1);
}

TEST(OuterGradients, OfZeroHaveANormAndNothingElse) {
  OuterGradients gradients;
  gradients.Add(1, kHalf, {.gg = 0, .gv = 0, .vv = 4});
  const OuterGradientFigures figures = gradients.Figures();
  EXPECT_DOUBLE_EQ(*figures.norm, 0);
  EXPECT_FALSE(figures.amplification || figures.correlation);
}

}  // namespace
}  // namespace causeway::server
