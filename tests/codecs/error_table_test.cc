// The codecs' errors. docs/codecs.md lists the errors to expect: an implementation that misses these
// is wrong. Prints what it measured.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "core/random.h"
#include "tests/codecs/distributions.h"
#include "tests/codecs/encoded.h"

namespace causeway::codecs {
namespace {

using core::CodecId;

constexpr size_t kValues = 1 << 22;
constexpr uint64_t kSeeds = 9;

// ‖x̂ − x‖² / ‖x‖² in blocks of 256.
struct Row {
  CodecId codec;
  double gauss, laplace, student_t3;

  double Of(Shape shape) const {
    if (shape == Shape::kGauss) return gauss;
    return shape == Shape::kLaplace ? laplace : student_t3;
  }
};
constexpr Row kTable[] = {
    {CodecId::kSign, 0.362, 0.498, 0.581},       {CodecId::kRotatedSign, 0.361, 0.360, 0.346},
    {CodecId::kRotatedLm2, 0.116, 0.115, 0.111}, {CodecId::kInt4, 0.0157, 0.0317, 0.0753},
    {CodecId::kE3m0, 0.0379, 0.0362, 0.0307},    {CodecId::kRotatedLm4, 0.0092, 0.0091, 0.0088},
};

class ErrorTable : public ::testing::TestWithParam<Shape> {};

TEST_P(ErrorTable, MediansOfNineSeedsAreThoseOfTheDesign) {
  const Shape shape = GetParam();
  std::vector<double> errors[std::size(kTable)];
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const std::vector<float> values = ValuesOf(shape, kValues, seed);
    for (size_t row = 0; row < std::size(kTable); ++row) {
      const double distance = RelativeDistance(RoundTrip(kTable[row].codec, values), values);
      errors[row].push_back(distance * distance);
    }
  }
  const double tolerance = shape == Shape::kStudentT3 ? 0.08 : 0.03;  // a few values carry the heavy tail's square
  for (size_t row = 0; row < std::size(kTable); ++row) {
    std::nth_element(errors[row].begin(), errors[row].begin() + kSeeds / 2, errors[row].end());
    const double median = errors[row][kSeeds / 2], expected = kTable[row].Of(shape);
    const char* name = core::CodecName(kTable[row].codec);
    std::printf("%-9s  %-12s  %.5f, expected %.4f\n", ShapeName(shape), name, median, expected);
    RecordProperty(name, std::to_string(median));
    EXPECT_NEAR(median, expected, tolerance * expected) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Of, ErrorTable, ::testing::Values(Shape::kGauss, Shape::kLaplace, Shape::kStudentT3),
                         [](const auto& test) { return ShapeName(test.param); });

}  // namespace
}  // namespace causeway::codecs
