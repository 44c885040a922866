// A chunk: a run of whole units of one tensor with one codec, decodable alone. It is the unit that crosses the network,
// that is resent after a break, and that a merge reads and writes.
//
//   0        64              64 + scales, padded to 64     + codes, padded to 64
//   | header | bf16 scales … | codes …                     |
//
// Header, little-endian: 0 u64 XXH3-64 of bytes 8…end; 8 u32 magic "CWC1"; 12 u8 codec; 13 u8 compressed
// (codecs/compression.h); 14 u8[2] zero; 16 u64 first unit (in the fragment); 24 u64 values; 32 u64 rotation seed (0
// where the codec does not rotate); 40 u8[24] zero. Source: docs/wire_format.md. Thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "codecs/chunk_plan.h"
#include "codecs/codec.h"

namespace causeway::codecs {

inline constexpr int64_t kChunkHeaderBytes = 64;

// Values of residuals that belong to a chunk: whole blocks if its codec rotates, since padding is not zero then.
int64_t ResidualValues(const ChunkSpan& span);

// Error feedback of one chunk: the encoder's input is d = fma(beta, residual, values), and next_residual ← d − decoded,
// in the codec's domain. beta = 0 switches it off: the spans are then empty. `next_residual` may be `residual`.
struct ChunkFeedback {
  float beta = 0;
  std::span<const float> residual;
  std::span<float> next_residual;
};

// Encodes span.values values. INVALID_ARGUMENT with the index in `values` of the first one that is not finite or not
// below core::kMaxMagnitude (after feedback is added, too; kMaxRotatedMagnitude where the codec rotates); next_residual
// is undefined then.
absl::StatusOr<std::string> EncodeChunk(const ChunkSpan& span, std::span<const float> values,
                                        const ChunkFeedback& feedback);

// A chunk whose header, sizes, hash and content were checked: decoding it cannot fail. Views the bytes it was made
// from.
class ChunkView {
 public:
  // INVALID_ARGUMENT gives the expected and the actual value. A compressed chunk has to be expanded first.
  static absl::StatusOr<ChunkView> Parse(absl::string_view bytes);

  const ChunkSpan& span() const { return span_; }
  bool rotates() const { return codec_->rotates(); }

  // Decodes (adds with weight: sum = fma(weight, decoded, sum)) the values from unit `first_unit` of the fragment on,
  // as many as the target holds. Requesting units or values outside the chunk is a bug of the caller.
  void Decode(int64_t first_unit, std::span<float> values) const;
  void DecodeAdd(int64_t first_unit, float weight, std::span<float> sum) const;

  // The same in the codec's domain, where `sum` has whole blocks if it rotates.
  void DecodeAddInDomain(int64_t first_unit, float weight, std::span<float> sum) const;

  // As a term of Codec::DecodeSum, from unit `first_unit` of the fragment on, with `count` values after it.
  DecodeTerm TermAt(int64_t first_unit, int64_t count, float weight) const;
  const Codec& codec() const { return *codec_; }

  double SumSquares() const { return codec_->SumSquares(scales_, codes_, span_.values); }  // ‖d‖²

 private:
  // The job that decodes into `values`; values beyond the chunk belong to its last block.
  DecodeJob JobAt(int64_t first_unit, std::span<float> values, bool in_domain) const;

  ChunkSpan span_;
  const Codec* codec_ = nullptr;
  const uint8_t* scales_ = nullptr;
  const uint8_t* codes_ = nullptr;
};

}  // namespace causeway::codecs
