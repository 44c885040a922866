// A codec whose blocks stand alone, as those of all codecs do: the loops over blocks, written once.
//
//   values   |256        |256        |44 … +0 |     the last block is filled with +0 before it is encoded
//             EncodeBlock EncodeBlock EncodeBlock
//   bytes    |scale|codes|scale|codes|scale|codes   (scales and codes lie in two arrays)
//
// A codec is then two functions of one block and the test whether a block is one that it writes. Each reads or writes
// 256 values that lie in the first-level cache, so decoding to a buffer first costs little. Thread-safe.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "codecs/codec.h"
#include "core/layout.h"

namespace causeway::codecs {

using BlockValues = std::span<float, core::kBlockValues>;
using ConstBlockValues = std::span<const float, core::kBlockValues>;

class BlockCodec : public Codec {
 public:
  void Encode(std::span<const float> values, float gain, uint8_t* scales, uint8_t* codes) const final;
  void Decode(const uint8_t* scales, const uint8_t* codes, std::span<float> values) const final;
  void DecodeAdd(const uint8_t* scales, const uint8_t* codes, float weight, std::span<float> sum) const final;
  absl::Status Validate(const uint8_t* scales, const uint8_t* codes, int64_t values) const final;

 private:
  // `valid` of the values are the caller's, 1 to 256; the others are padding: +0 when encoding.
  virtual void EncodeBlock(ConstBlockValues values, int64_t valid, float gain, uint8_t* scale,
                           uint8_t* codes) const = 0;
  virtual void DecodeBlock(const uint8_t* scale, const uint8_t* codes, BlockValues values) const = 0;
  virtual absl::Status ValidateBlock(const uint8_t* scale, const uint8_t* codes, int64_t valid) const = 0;
};

// The codecs behind GetCodec.
const Codec& Float32();
const Codec& Bfloat16();
const Codec& Int8();
const Codec& Int4();
const Codec& Sign();

}  // namespace causeway::codecs
