// A codec's bytes without a chunk around them. The rotation, where there is one, is always the same.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <span>
#include <vector>

#include "codecs/codec.h"
#include "tests/codecs/by_specification.h"
#include "tests/codecs/test_values.h"

namespace causeway::codecs {

struct Encoded {
  std::vector<uint8_t> scales, codes;
  std::vector<float> residual;  // d − decoded in the codec's domain, if there was feedback
};

inline constexpr Rotation kRotation = {77, 32};

inline std::optional<Rotation> RotationOf(core::CodecId id) {
  return GetCodec(id).rotates() ? std::optional(kRotation) : std::nullopt;
}

// As many as `values` has in the codec's domain.
inline size_t DomainValues(core::CodecId id, size_t values) {
  return GetCodec(id).rotates() ? core::BlocksFor(values) * core::kBlockValues : values;
}

// The values that are encoded, from values and residual, by the specification; beta 0 takes no residual.
inline std::vector<float> InDomain(core::CodecId id, std::span<const float> values, float beta = 0,
                                   std::span<const float> residual = {}) {
  std::vector<float> d(values.begin(), values.end());
  if (GetCodec(id).rotates()) d = RotatedBySpecification(kRotation, values);
  for (size_t i = 0; beta > 0 && i < d.size(); ++i) d[i] = std::fma(beta, residual[i], d[i]);
  return d;
}

inline std::vector<float> OutOfDomain(core::CodecId id, std::span<const float> decoded, size_t values) {
  std::vector<float> plain(decoded.begin(), decoded.end());
  if (GetCodec(id).rotates()) plain = RotatedBackBySpecification(kRotation, decoded);
  plain.resize(values);
  return plain;
}

inline Encoded EncodeWith(const Codec& codec, std::span<const float> values, float gain = 1, float beta = 0,
                          std::span<const float> residual = {}) {
  const auto count = static_cast<int64_t>(values.size());
  Encoded encoded = {std::vector<uint8_t>(codec.ScaleBytes(count)), std::vector<uint8_t>(codec.CodeBytes(count)),
                     std::vector<float>(residual.size())};
  EncodeJob job = {.values = values.data(),
                   .count = count,
                   .beta = beta,
                   .gain = gain,
                   .scales = encoded.scales.data(),
                   .codes = encoded.codes.data()};
  if (codec.rotates()) job.rotation = kRotation;
  if (beta > 0) {
    job.residual = residual.data();
    job.next_residual = encoded.residual.data();
  }
  EXPECT_TRUE(codec.Encode(job));
  return encoded;
}

inline Encoded Encode(core::CodecId id, std::span<const float> values, float gain = 1) {
  return EncodeWith(GetCodec(id), values, gain);
}

inline DecodeJob JobOf(core::CodecId id, const Encoded& encoded, std::span<float> values) {
  return {.scales = encoded.scales.data(),
          .codes = encoded.codes.data(),
          .rotation = RotationOf(id),
          .values = values.data(),
          .count = static_cast<int64_t>(values.size())};
}

inline std::vector<float> Decode(core::CodecId id, const Encoded& encoded, size_t count) {
  std::vector<float> values(count);
  GetCodec(id).Decode(JobOf(id, encoded, values));
  return values;
}

inline std::vector<float> RoundTrip(core::CodecId id, std::span<const float> values, float gain = 1) {
  return Decode(id, Encode(id, values, gain), values.size());
}

// Holds the bytes, the decoded values and the residual of every version of the codec against the second writing.
inline void ExpectAsSpecified(core::CodecId id, std::span<const float> values, float gain, float beta = 0,
                              std::span<const float> residual = {}) {
  const std::vector<float> d = InDomain(id, values, beta, residual);
  const Specified specified = BySpecification(id, d, gain);
  const std::vector<float> expected = OutOfDomain(id, specified.decoded, values.size());
  for (Target target : kAllTargets) {
    if (!Supported(target)) continue;
    SCOPED_TRACE(TargetName(target));
    const Codec& codec = GetCodec(id, target);
    const Encoded encoded = EncodeWith(codec, values, gain, beta, residual);
    ASSERT_EQ(encoded.scales, specified.scales);
    ASSERT_EQ(encoded.codes, specified.codes);
    EXPECT_TRUE(codec.Validate(encoded.scales.data(), encoded.codes.data(), std::ssize(values)).ok());
    std::vector<float> decoded(values.size());
    codec.Decode(JobOf(id, encoded, decoded));
    ASSERT_EQ(Bits(decoded), Bits(expected));
    for (size_t i = 0; i < residual.size(); ++i) ASSERT_EQ(encoded.residual[i], d[i] - specified.decoded[i]) << i;
  }
}

}  // namespace causeway::codecs
