// onebit_adam_sign: one bit per value and one L2 scale for the whole chunk, as in 1-bit Adam (arXiv 2102.02888).
//
//   values |block|block| … ─► √(Σ x² / n) ─► one float32      bits: as `sign`
//
// Here for comparison, on the up leg only: it needs two passes over the whole chunk, so a merge cannot write it tile by
// tile. One version for all processors. Source: docs/wire_format.md.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "codecs/block_format.h"
#include "codecs/codec.h"
#include "codecs/encode_input.h"
#include "codecs/scale.h"
#include "core/check.h"
#include "core/multiversion.h"

namespace causeway::codecs {
namespace {

using BlockArray = float[core::kBlockValues];

CAUSEWAY_MULTIVERSION
double SquaresOfBlock(const float* d) {
  return SumOverBlock<double>([&](int i, double sum) {
    const double x = d[i];
    return sum + x * x;  // exact: 24 bits squared
  });
}

float LoadFloat(const uint8_t* bytes) {
  float value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

class OnebitAdamSignCodec final : public Codec {
 public:
  int64_t ScaleBytes(int64_t) const override { return sizeof(float); }
  int64_t CodeBytes(int64_t values) const override { return core::BlocksFor(values) * kPlaneBytes; }
  int64_t ScaleOffset(int64_t) const override { return 0; }
  int64_t CodeOffset(int64_t unit) const override { return unit * core::kBlocksPerUnit * kPlaneBytes; }

  bool Encode(const EncodeJob& job) const override {
    double sum = 0;
    bool in_range = true;
    ForEachBlock(job, [&](int64_t, std::span<const float> d, bool good) {
      in_range = in_range && good;
      sum += SquaresOfBlock(d.data());
    });
    if (!in_range) return false;
    const float wanted = static_cast<float>(std::sqrt(sum / static_cast<double>(job.count)));
    const float scale = wanted < core::kMinScale ? 0.0f : std::min(wanted, kLargest);
    std::memcpy(job.scales, &scale, sizeof(scale));
    ForEachBlock(job, [&](int64_t begin, std::span<const float> d, bool) {
      const int64_t valid = std::min(core::kBlockValues, job.count - begin);
      WritePlane(job.codes + begin / 8, [&](int64_t i) { return SignBit(d[i]); });
      if (job.next_residual == nullptr) return;
      for (int64_t i = 0; i < valid; ++i) job.next_residual[begin + i] = d[i] - WithSign(scale, SignBit(d[i]));
    });
    return true;
  }

  void Decode(const DecodeJob& job) const override {
    const float scale = LoadFloat(job.scales);
    for (int64_t i = 0; i < job.count; ++i) {
      const float decoded = WithSign(scale, PlaneBit(job.codes, i));
      job.values[i] = job.add ? std::fma(*job.add, decoded, job.values[i]) : decoded;
    }
  }

  double SumSquares(const uint8_t* scales, const uint8_t*, int64_t values) const override {
    return Square(LoadFloat(scales)) * static_cast<double>(values);
  }

  absl::Status Validate(const uint8_t* scales, const uint8_t* codes, int64_t values) const override {
    RETURN_IF_ERROR(ValidateScale(LoadFloat(scales)));
    const int64_t last = (core::BlocksFor(values) - 1) * core::kBlockValues;
    return ValidatePlanePadding(codes + last / 8, values - last);
  }

 private:
  static constexpr float kLargest = 0x1.fffffep99f;

  // visit(begin, d, in range) for each block, filled up with +0. May write next_residual over what it has visited.
  template <typename Visit>
  static void ForEachBlock(const EncodeJob& job, Visit visit) {
    for (int64_t begin = 0; begin < job.count; begin += core::kBlockValues) {
      BlockArray d = {};
      const int64_t valid = std::min(core::kBlockValues, job.count - begin);
      const float* residual = job.residual == nullptr ? nullptr : job.residual + begin;
      AddFeedback(job.beta, residual, job.values + begin, valid, d);
      const bool good = BringIntoRange(job.saturate, d);
      visit(begin, std::span<const float>(d), good);
    }
  }
};

}  // namespace

const Codec& OnebitAdamSign() {
  static const OnebitAdamSignCodec codec;
  return codec;
}

}  // namespace causeway::codecs
