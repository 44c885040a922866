// Codec::DecodeSum: several sites' bytes in one pass, against one after the other by the scalar code.
#include <gtest/gtest.h>

#include <tuple>

#include "tests/codecs/encoded.h"

namespace causeway::codecs {
namespace {

using core::CodecId;

constexpr float kGuard = 123.0f;

class DecodeSumOf : public ::testing::TestWithParam<std::tuple<CodecId, Target>> {};

TEST_P(DecodeSumOf, AnyNumberOfSitesEqualsTheScalarCodeAddingThemOneByOne) {
  const auto [id, target] = GetParam();
  if (!Supported(target)) GTEST_SKIP() << "not on this processor";
  const Codec& scalar = GetCodec(id, Target::kScalar);
  for (int64_t count : {1, 255, 256, 300, 4096, 3 * 4096 + 513}) {
    const size_t domain_values = DomainValues(id, count);
    std::vector<Encoded> sites;
    std::vector<DecodeTerm> terms;
    std::vector<float> expected(domain_values, 0.0f);
    for (int site = 0; site < 9; ++site) {
      std::vector<float> values = UniformValues(count, 10 + site);
      if (site == 2) std::fill(values.begin(), values.end(), -0.0f);  // blocks without a scale
      sites.push_back(EncodeWith(scalar, values));
      const float weight = site == 3 ? 0.0f : 0.1f * static_cast<float>(1 + site);
      terms.push_back({sites.back().scales.data(), sites.back().codes.data(), weight});
      scalar.Decode({.scales = terms.back().scales,
                     .codes = terms.back().codes,
                     .values = expected.data(),
                     .count = count,
                     .add = weight});
      std::vector<float> sum(domain_values + 1, kGuard);  // what was there does not count
      GetCodec(id, target).DecodeSum(terms, count, sum.data());
      EXPECT_EQ(sum.back(), kGuard);
      sum.pop_back();
      ASSERT_EQ(Bits(sum), Bits(expected)) << count << " values, " << terms.size() << " sites";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, DecodeSumOf,
                         ::testing::Combine(::testing::ValuesIn(core::kAllCodecs), ::testing::ValuesIn(kAllTargets)),
                         [](const auto& test) {
                           return std::string(core::CodecName(std::get<0>(test.param))) + "_" +
                                  TargetName(std::get<1>(test.param));
                         });

}  // namespace
}  // namespace causeway::codecs
