// A codec of independent blocks, for any number of values: whole blocks go through the loops directly, the last,
// partial one through a padded buffer.
//
//   values   |256        |256        |44 … +0 |
//             └ loops.encode ───────┘ └ a run of one block
//   bytes    |scale|codes|scale|codes|scale|codes   (scales and codes lie in two arrays)
//
// Thread-safe.
#pragma once

#include <cstdint>

#include "codecs/block_format.h"
#include "codecs/codec.h"

namespace causeway::codecs {

class BlockCodec final : public Codec {
 public:
  // Null loops are replaced by the reference's.
  BlockCodec(const BlockFormat& format, BlockLoops loops) : format_(format), loops_(loops) {}

  bool rotates() const override { return format_.rotates; }
  int64_t ScaleBytes(int64_t values) const override { return core::BlocksFor(values) * format_.scale_bytes; }
  int64_t CodeBytes(int64_t values) const override { return core::BlocksFor(values) * format_.code_bytes; }
  int64_t ScaleOffset(int64_t unit) const override { return unit * core::kBlocksPerUnit * format_.scale_bytes; }
  int64_t CodeOffset(int64_t unit) const override { return unit * core::kBlocksPerUnit * format_.code_bytes; }

  bool Encode(const EncodeJob& job) const override;
  void Decode(const DecodeJob& job) const override;
  void DecodeSum(std::span<const DecodeTerm> terms, int64_t count, float* sum) const override;
  double SumSquares(const uint8_t* scales, const uint8_t* codes, int64_t values) const override;
  absl::Status Validate(const uint8_t* scales, const uint8_t* codes, int64_t values) const override;

 private:
  // Whole blocks of the job, and the values of a partial one after them; a job in the domain of a codec that rotates
  // has none.
  struct Parts {
    int64_t blocks;
    int64_t rest;
  };
  Parts PartsOf(int64_t count, bool in_domain) const;
  int64_t Valid(int64_t block, int64_t values) const;  // the number of the block's values without padding
  bool EncodeLoops(const EncodeRun& run) const;
  void DecodeLoops(const DecodeRun& run) const;
  void SumLoops(const SumRun& run) const;
  bool EncodeLast(const EncodeJob& job, const EncodeRun& whole, int64_t valid) const;
  void DecodeLast(const DecodeJob& job, const DecodeRun& whole, int64_t valid) const;

  const BlockFormat& format_;
  const BlockLoops loops_;
};

}  // namespace causeway::codecs
