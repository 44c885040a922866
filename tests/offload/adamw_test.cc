#include "offload/adamw.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/bfloat16.h"
#include "core/random.h"
#include "gtest/gtest.h"

namespace causeway::offload {
namespace {

std::vector<float> RandomValues(uint64_t seed, size_t size, float scale) {
  std::vector<float> values(size);
  for (size_t i = 0; i < size; ++i) {
    values[i] = static_cast<float>((2 * core::UnitInterval(core::HashCombine(seed, i)) - 1) * scale);
  }
  return values;
}

struct State {
  explicit State(std::vector<float> parameters) : p(std::move(parameters)), m(p.size(), 0.0f), v(p.size(), 0.0f) {}

  std::vector<float> p, m, v;
};

AdamWArrays ArraysOf(State& state, const std::vector<float>& gradient) {
  return {.gradient = gradient.data(),
          .first_moment = state.m.data(),
          .second_moment = state.v.data(),
          .parameters = state.p.data(),
          .count = std::ssize(state.p)};
}

// PyTorch's torch.optim.AdamW for one value, in double.
struct PyTorchAdamW {
  double p, m = 0, v = 0;

  void Step(const AdamWParameters& a, double g, int64_t t) {
    p *= 1 - a.lr * a.weight_decay;
    m = a.beta1 * m + (1 - a.beta1) * g;
    v = a.beta2 * v + (1 - a.beta2) * g * g;
    const double bias1 = 1 - std::pow(a.beta1, static_cast<double>(t));
    const double bias2 = 1 - std::pow(a.beta2, static_cast<double>(t));
    p -= a.lr / bias1 * m / (std::sqrt(v) / std::sqrt(bias2) + a.epsilon);
  }

  void FrozenStep(const AdamWParameters& a, double g, int64_t t) {
    p *= 1 - a.lr * a.weight_decay;
    m = a.beta1 * m + (1 - a.beta1) * g;
    const double bias1 = 1 - std::pow(a.beta1, static_cast<double>(t));
    const double bias2 = 1 - std::pow(a.beta2, static_cast<double>(a.frozen_at));
    p -= a.lr / bias1 * m / (std::sqrt(v / bias2) + a.epsilon);
  }
};

TEST(AdamW, FollowsPyTorchsFormulaInDoubleWithinFloatRounding) {
  const AdamWParameters parameters{.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8, .weight_decay = 0.1};
  constexpr size_t kSize = 1003;
  State state(RandomValues(1, kSize, 1.0f));
  std::vector<PyTorchAdamW> reference;
  for (float p : state.p) reference.push_back({p});
  for (int64_t t = 1; t <= 100; ++t) {
    const std::vector<float> g = RandomValues(100 + t, kSize, 0.1f);
    AdamWStep(MakeConstants(parameters, t), ArraysOf(state, g));
    for (size_t i = 0; i < kSize; ++i) reference[i].Step(parameters, g[i], t);
  }
  for (size_t i = 0; i < kSize; ++i) {
    EXPECT_NEAR(state.p[i], reference[i].p, 100 * 0x1p-24) << i;  // at most half an ulp of 1 in each step
    EXPECT_NEAR(state.m[i], reference[i].m, 1e-7) << i;
    EXPECT_NEAR(state.v[i], reference[i].v, 1e-8) << i;
  }
}

TEST(AdamW, WithAFrozenVarianceMomentumAndParametersFollowTheFormulaInDouble) {
  constexpr size_t kSize = 1003, kNoGradient = 17;
  constexpr int64_t kFrozenAt = 10;
  AdamWParameters parameters{.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8, .weight_decay = 0.1};
  State state(RandomValues(1, kSize, 1.0f));
  std::vector<PyTorchAdamW> reference;
  for (float p : state.p) reference.push_back({p});
  for (int64_t t = 1; t <= 50; ++t) {
    std::vector<float> g = RandomValues(100 + t, kSize, 0.1f);
    if (t <= kFrozenAt) g[kNoGradient] = 0;
    if (t > kFrozenAt) parameters.frozen_at = kFrozenAt;
    const AdamWConstants constants = MakeConstants(parameters, t);
    if (t <= kFrozenAt) {
      AdamWStep(constants, ArraysOf(state, g));
    } else {
      MomentumStep(constants, g, state.v, state.m);
      AdamWArrays arrays = ArraysOf(state, g);
      arrays.gradient = nullptr;
      AdamWStep(constants, arrays);
    }
    for (size_t i = 0; i < kSize; ++i) {
      if (t <= kFrozenAt) {
        reference[i].Step(parameters, g[i], t);
      } else {
        reference[i].FrozenStep(parameters, i == kNoGradient ? 0 : g[i], t);
      }
    }
  }
  for (size_t i = 0; i < kSize; ++i) {
    EXPECT_NEAR(state.p[i], reference[i].p, 50 * 0x1p-24) << i;
    EXPECT_NEAR(state.m[i], reference[i].m, 1e-7) << i;
    EXPECT_NEAR(state.v[i], reference[i].v, 1e-8) << i;
  }
  EXPECT_EQ(state.m[kNoGradient], 0.0f);
}

TEST(AdamW, FirstStepFromZeroMomentsMovesByTheLearningRate) {
  State state({0.0f, 0.0f, 0.0f});
  const std::vector<float> g = {1.0f, -1e-3f, 0.0f};
  AdamWStep(MakeConstants({.lr = 0.5, .weight_decay = 0}, 1), ArraysOf(state, g));
  EXPECT_NEAR(state.p[0], -0.5f, 1e-6);
  EXPECT_NEAR(state.p[1], 0.5f, 1e-5);
  EXPECT_EQ(state.p[2], 0.0f);
}

TEST(AdamW, TinyStateBecomesZeroAndNeverDenormal) {
  State state({1.0f, 1.0f, 1.0f});
  state.m = {1e-30f, -1e-30f, 1.0f};
  state.v = {1e-30f, 1e-30f, 1.0f};
  const std::vector<float> g = {1e-25f, -1e-20f, 0.0f};  // the squares lie below 2^-100
  AdamWStep(MakeConstants({.beta1 = 0.5}, 1), ArraysOf(state, g));
  EXPECT_GT(state.m[0], 0.0f);  // 5e-26 is above 2^-100 = 7.9e-31
  for (int64_t t = 2; t <= 200; ++t) {
    const std::vector<float> zero(3, 0.0f);
    AdamWStep(MakeConstants({.beta1 = 0.5, .beta2 = 0.5}, t), ArraysOf(state, zero));
    for (float x : {state.m[0], state.m[1], state.m[2], state.v[0], state.v[1], state.v[2]}) {
      EXPECT_TRUE(x == 0 || std::fabs(x) >= kSmallestState) << x;
    }
  }
  EXPECT_EQ(state.m[2], 0.0f);
  EXPECT_EQ(state.v[2], 0.0f);
}

TEST(AdamW, SquareOfATinyGradientIsDropped) {
  State state({1.0f});
  const std::vector<float> g = {0x1p-51f};
  AdamWStep(MakeConstants({.beta2 = 0.0}, 1), ArraysOf(state, g));
  EXPECT_EQ(state.v[0], 0.0f);
  EXPECT_NE(state.m[0], 0.0f);
}

TEST(AdamW, EveryInstructionSetGivesTheBitsOfThePlainLoop) {
  const AdamWParameters parameters{.lr = 3e-3, .weight_decay = 0.1};
  constexpr size_t kSize = 4099;  // not a multiple of any vector
  State fast(RandomValues(2, kSize, 1.0f));
  State plain = fast;
  const auto flush = [](float x) { return std::fabs(x) < kSmallestState ? 0.0f : x; };
  for (int64_t t = 1; t <= 20; ++t) {
    const std::vector<float> g = RandomValues(t, kSize, t % 3 == 0 ? 1e-16f : 0.3f);
    const AdamWConstants c = MakeConstants(parameters, t);
    AdamWStep(c, ArraysOf(fast, g));
    for (size_t i = 0; i < kSize; ++i) {
      plain.m[i] = flush(std::fma(g[i], c.one_minus_beta1, plain.m[i] * c.beta1));
      plain.v[i] = flush(std::fma(flush(g[i] * g[i]), c.one_minus_beta2, plain.v[i] * c.beta2));
      const float u = plain.m[i] / std::fma(std::sqrt(plain.v[i]), c.root_scale, c.epsilon);
      plain.p[i] = std::fma(plain.p[i], c.minus_decay, plain.p[i]);
      plain.p[i] = std::fma(u, c.minus_lr, plain.p[i]);
    }
  }
  for (size_t i = 0; i < kSize; ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(fast.p[i]), std::bit_cast<uint32_t>(plain.p[i])) << i;
    ASSERT_EQ(std::bit_cast<uint32_t>(fast.m[i]), std::bit_cast<uint32_t>(plain.m[i])) << i;
    ASSERT_EQ(std::bit_cast<uint32_t>(fast.v[i]), std::bit_cast<uint32_t>(plain.v[i])) << i;
  }
}

TEST(AdamW, CopyInTheSamePassIsTheParametersRoundedToNearestEven) {
  State state(RandomValues(3, 3001, 1.0f));
  const std::vector<float> g = RandomValues(4, 3001, 1.0f);
  State alone = state;
  for (size_t offset : {size_t{0}, size_t{1}}) {  // aligned for streaming, and not
    std::vector<uint16_t> copy(3001 + 16, 0x1234);
    const size_t first = (16 - reinterpret_cast<uintptr_t>(copy.data()) / 2 % 16) % 16 + offset;
    State with_copy = state;
    AdamWArrays arrays = ArraysOf(with_copy, g);
    arrays.count = 3000;
    arrays.bfloat16_copy = copy.data() + first;
    AdamWStep(MakeConstants({}, 1), arrays);
    for (size_t i = 0; i < 3000; ++i) ASSERT_EQ(copy[first + i], core::ToBfloat16(with_copy.p[i])) << i;
    EXPECT_EQ(copy[first + 3000], 0x1234);
  }
  EXPECT_EQ(core::FromBfloat16(core::ToBfloat16(1.0f + 0x1p-8f)), 1.0f);              // a tie goes to the even one
  EXPECT_EQ(core::FromBfloat16(core::ToBfloat16(1.0f + 0x3p-8f)), 1.0f + 0x1p-6f);    // the same, upward
  EXPECT_EQ(core::FromBfloat16(core::ToBfloat16(1.0f + 0x1.1p-8f)), 1.0f + 0x1p-7f);  // beyond a tie
  EXPECT_TRUE(std::isnan(core::FromBfloat16(core::ToBfloat16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_EQ(core::FromBfloat16(core::ToBfloat16(-std::numeric_limits<float>::infinity())),
            -std::numeric_limits<float>::infinity());
}

TEST(AdamW, AParameterWhoseCopySomethingElseHasWrittenTakesItsValueBeforeTheStep) {
  const AdamWConstants constants = MakeConstants({}, 1);
  const std::vector<float> g = RandomValues(4, 301, 1.0f);
  for (const bool narrow : {false, true}) {
    State expected(RandomValues(3, 301, 1.0f));
    expected.p[17] = std::numeric_limits<float>::quiet_NaN();  // rounded it is itself
    std::vector<uint16_t> copy(301), moments(602), other_copy, other_moments;
    for (size_t i = 0; i < 301; ++i) copy[i] = core::ToBfloat16(expected.p[i]);
    State followed = expected;
    const auto step = [&](State& state, std::vector<uint16_t>& out, std::vector<uint16_t>& m, bool follows) {
      AdamWArrays arrays = ArraysOf(state, g);
      arrays.bfloat16_copy = out.data();
      arrays.follows_copy = follows;
      return narrow ? AdamWStep(constants, arrays, {m.data(), m.data() + 301, 7, 0}) : AdamWStep(constants, arrays);
    };
    other_copy = copy;
    other_moments = moments;
    State same = expected;
    EXPECT_FALSE(step(same, other_copy, other_moments, true));
    for (const auto& [at, value] : {std::pair(0, 3.0f), {70, -0.5f}, {300, 0.25f}}) {
      copy[at] = core::ToBfloat16(value);
      expected.p[at] = value;
    }
    other_copy = copy;
    other_moments = moments;
    EXPECT_TRUE(step(followed, copy, moments, true));
    EXPECT_FALSE(step(expected, other_copy, other_moments, false));
    expected.p[17] = followed.p[17] = 0;
    EXPECT_EQ(followed.p, expected.p);
    EXPECT_EQ(copy, other_copy);
    EXPECT_EQ(moments, other_moments);
  }
}

TEST(AdamW, GradientsInBfloat16GiveTheBitsOfTheSameValuesInFloat32) {
  constexpr size_t kSize = 2500;
  std::vector<uint16_t> narrow;
  std::vector<float> wide;
  for (float g : RandomValues(5, kSize, 0.1f)) {
    narrow.push_back(core::ToBfloat16(g));
    wide.push_back(core::FromBfloat16(narrow.back()));
  }
  State of_wide(RandomValues(6, kSize, 1.0f));
  State of_narrow = of_wide;
  const AdamWConstants c = MakeConstants({.gradient_scale = 0.3f}, 7);
  AdamWStep(c, ArraysOf(of_wide, wide));
  AdamWArrays arrays = ArraysOf(of_narrow, wide);
  arrays.gradient = narrow.data();
  arrays.gradient_type = GradientType::kBfloat16;
  AdamWStep(c, arrays);
  EXPECT_EQ(of_wide.p, of_narrow.p);
  EXPECT_EQ(of_wide.m, of_narrow.m);
  EXPECT_EQ(of_wide.v, of_narrow.v);
}

TEST(AdamW, ScalesTheGradientAsIfItHadBeenScaledBefore) {
  State scaled(RandomValues(7, 100, 1.0f));
  State before = scaled;
  std::vector<float> g = RandomValues(8, 100, 1.0f);
  AdamWStep(MakeConstants({.gradient_scale = 0.37f}, 1), ArraysOf(scaled, g));
  for (float& x : g) x *= 0.37f;
  AdamWStep(MakeConstants({}, 1), ArraysOf(before, g));
  EXPECT_EQ(scaled.p, before.p);
  EXPECT_EQ(scaled.v, before.v);
}

TEST(Sgd, DyadicValuesAreExact) {
  std::vector<float> p = {1.0f, -2.0f, 0.0f};
  const std::vector<float> g = {0x1p-8f, -3 * 0x1p-8f, 0x1p-1f};
  SgdStep({.lr = 0x1p-4}, g, p);
  EXPECT_EQ(p, (std::vector<float>{1.0f - 0x1p-12f, -2.0f + 3 * 0x1p-12f, -0x1p-5f}));
}

TEST(Sgd, DecaysTheParametersBeforeTheStep) {
  std::vector<float> p = {2.0f};
  const std::vector<float> g = {1.0f};
  SgdStep({.lr = 0.5, .weight_decay = 0.5}, g, p);
  EXPECT_EQ(p[0], 1.0f);  // 2 − 0.25·2 = 1.5, then − 0.5
}

// ---- Moments in bfloat16 ----

struct Narrow {
  explicit Narrow(std::vector<float> parameters) : p(std::move(parameters)), m(p.size()), v(p.size()), copy(p.size()) {}

  void Step(const AdamWConstants& constants, const std::vector<float>& g, uint32_t seed, int64_t part) {
    for (int64_t first = 0; first < std::ssize(p); first += part) {
      const int64_t count = std::min(part, std::ssize(p) - first);
      AdamWStep(constants,
                {.gradient = g.data() + first,
                 .parameters = p.data() + first,
                 .bfloat16_copy = copy.data() + first,
                 .count = count},
                {m.data() + first, v.data() + first, seed, first});
    }
  }

  std::vector<float> p;
  std::vector<uint16_t> m, v, copy;
};

TEST(NarrowAdamW, IsTheWideStepOfItsMomentsThenRoundedByTheBitsOfEachIndexHoweverItIsCut) {
  const AdamWParameters parameters{.lr = 1e-2, .weight_decay = 0.1, .gradient_scale = 0.5f};
  constexpr size_t kSize = 5003;
  Narrow whole(RandomValues(1, kSize, 1.0f)), cut = whole;
  std::vector<float> wide = whole.p;
  std::vector<uint16_t> m(kSize), v(kSize);
  for (int64_t t = 1; t <= 20; ++t) {
    const std::vector<float> g = RandomValues(100 + t, kSize, 0.1f);
    const AdamWConstants constants = MakeConstants(parameters, t);
    const auto seed = static_cast<uint32_t>(7 * t);
    whole.Step(constants, g, seed, kSize);
    cut.Step(constants, g, seed, 37);
    for (size_t i = 0; i < kSize; ++i) {
      float first = core::FromBfloat16(m[i]), second = core::FromBfloat16(v[i]);
      UpdateValue(constants, g[i], first, second, wide[i]);
      const uint32_t bits = RoundingBits(seed, static_cast<uint32_t>(i));
      m[i] = RoundStochastically(first, bits & 0xFFFF);
      v[i] = RoundStochastically(second, bits >> 16);
      ASSERT_EQ(whole.copy[i], core::ToBfloat16(wide[i]));
    }
    ASSERT_EQ(whole.p, wide) << t;
    ASSERT_EQ(whole.m, m) << t;
    ASSERT_EQ(whole.v, v) << t;
    ASSERT_EQ(cut.p, wide) << t;
    ASSERT_EQ(cut.m, m) << t;
  }
}

// To nearest, v of a constant gradient stops where one step changes less than half a unit in its last place.
TEST(NarrowAdamW, MomentsReachTheMeanOfAConstantGradientWhereRoundingToNearestStops) {
  const AdamWParameters parameters{.lr = 0, .beta2 = 0.999};
  constexpr size_t kSize = 4000;
  const std::vector<float> g(kSize, 1.0f);
  Narrow narrow(std::vector<float>(kSize, 0.0f));
  float nearest = 0;
  for (int64_t t = 1; t <= 4000; ++t) {
    narrow.Step(MakeConstants(parameters, t), g, static_cast<uint32_t>(t), kSize);
    nearest = core::FromBfloat16(core::ToBfloat16(0.999f * nearest + 0.001f));
  }
  double mean = 0;
  for (const uint16_t v : narrow.v) mean += core::FromBfloat16(v) / static_cast<double>(kSize);
  EXPECT_NEAR(mean, 1 - std::pow(0.999, 4000), 5e-3);
  EXPECT_LT(nearest, 0.6);
}

TEST(NarrowAdamW, RoundingIsUnbiasedAndKeepsWhatIsExactInfiniteOrNoNumber) {
  const float x = 1.0f + 0x1p-10f;  // an eighth of the way to the next
  int up = 0;
  for (uint32_t i = 0; i < 100'000; ++i)
    up += RoundStochastically(x, RoundingBits(3, i) & 0xFFFF) != core::ToBfloat16(1);
  EXPECT_NEAR(up, 12'500, 500);
  for (const uint32_t bits : {0u, 0xFFFFu}) {
    EXPECT_EQ(RoundStochastically(-2.5f, bits), core::ToBfloat16(-2.5f));
    EXPECT_EQ(RoundStochastically(std::numeric_limits<float>::infinity(), bits), 0x7F80);
    for (const uint32_t nan : {0x7FFFFFFFu, 0xFFFFFFFFu, 0x7F800001u}) {
      EXPECT_TRUE(std::isnan(core::FromBfloat16(RoundStochastically(std::bit_cast<float>(nan), bits))));
    }
  }
}

}  // namespace
}  // namespace causeway::offload
