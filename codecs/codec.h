// float32 values on one side, bytes on the other.
//
//   values   |block 0: 256 floats |block 1            | …
//   scales   |bf16 |bf16 | …                                 one per block (none for float32 and bfloat16)
//   codes    |block 0: code_bytes |block 1            | …    whole blocks; padding is encoded as +0
//
// Codecs remember nothing: what they drop is kept by ErrorFeedback. The scalar code in this folder is the
// specification (docs/wire_format.md, section "Codecs"); faster versions must give its bytes and its decoded bits.
// Thread-safe.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "core/codec_id.h"

namespace causeway::codecs {

class Codec {
 public:
  virtual ~Codec() = default;

  // Bytes that one block takes.
  virtual int64_t scale_bytes() const = 0;
  virtual int64_t code_bytes() const = 0;

  // Encodes `values` (finite, below core::kMaxMagnitude; the last block may be partial) into BlocksFor(size) blocks.
  // `gain` multiplies the scale of `sign` and is ignored by the others: 1 is the least-squares scale.
  virtual void Encode(std::span<const float> values, float gain, uint8_t* scales, uint8_t* codes) const = 0;

  // Decodes values.size() values; sum[i] = fma(weight, decoded[i], sum[i]) for DecodeAdd.
  virtual void Decode(const uint8_t* scales, const uint8_t* codes, std::span<float> values) const = 0;
  virtual void DecodeAdd(const uint8_t* scales, const uint8_t* codes, float weight, std::span<float> sum) const = 0;

  // INVALID_ARGUMENT if some block of `values` values would decode to a value that is not finite or not below
  // core::kMaxMagnitude, or a code is not one that Encode writes, in the padding of the last block too.
  virtual absl::Status Validate(const uint8_t* scales, const uint8_t* codes, int64_t values) const = 0;
};

// The codec with that number; lives for ever.
const Codec& GetCodec(core::CodecId id);

}  // namespace causeway::codecs
