// A chunk: a run of whole units of one tensor with one codec, decodable alone. It is what crosses the network, what is
// resumed after a cut, and what a merge reads and writes.
//
//   0        64              64 + scales, padded to 64     + codes, padded to 64
//   | header | bf16 scales … | codes …                     |
//
// Header, little-endian: 0 u64 XXH3-64 of bytes 8…end; 8 u32 magic "CWC1"; 12 u8 codec; 13 u8[3] zero; 16 u64 first
// unit (in the fragment); 24 u64 values; 32 u64 rotation seed (0 where the codec does not rotate); 40 u8[24] zero.
// Source: docs/wire_format.md. Thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/codec_id.h"
#include "core/fragment_map.h"

namespace causeway::codecs {

inline constexpr int64_t kChunkHeaderBytes = 64;

// What a chunk covers in its fragment. Values beyond `values` up to the next unit are padding and stay zero.
struct ChunkSpan {
  core::CodecId codec = core::CodecId::kFloat32;
  int64_t first_unit = 0;
  int64_t values = 0;

  int64_t units() const { return core::UnitsFor(values); }
  int64_t first_value() const { return first_unit * core::kUnitValues; }  // in the fragment's padded array
  friend bool operator==(const ChunkSpan&, const ChunkSpan&) = default;
};

// The chunks of a fragment sent with `codec`, in unit order; the same for everyone who knows the map. Each has as many
// whole units of one tensor as fit core::kMaxChunkBytes.
std::vector<ChunkSpan> PlanChunks(const core::Fragment& fragment, core::CodecId codec);

int64_t ChunkBytes(core::CodecId codec, int64_t values);

// Error feedback of one chunk: what is encoded is d = fma(beta, residual, values), and next_residual ← d − decoded.
// beta = 0 switches it off: the spans are then empty. `next_residual` may be `residual`.
struct ChunkFeedback {
  float beta = 0;
  std::span<const float> residual;
  std::span<float> next_residual;
};

// Encodes span.values values. INVALID_ARGUMENT with the index in `values` of the first one that is not finite or not
// below core::kMaxMagnitude (after feedback is added, too); next_residual is then untouched.
absl::StatusOr<std::string> EncodeChunk(const ChunkSpan& span, std::span<const float> values,
                                        const ChunkFeedback& feedback);

// A chunk whose header, sizes, hash and content were checked: decoding it cannot fail. Views the bytes it was made
// from.
class ChunkView {
 public:
  // INVALID_ARGUMENT that says what was expected and what came.
  static absl::StatusOr<ChunkView> Parse(absl::string_view bytes);

  const ChunkSpan& span() const { return span_; }

  // Decodes (adds with weight: sum = fma(weight, decoded, sum)) the values from unit `first_unit` of the fragment on,
  // as many as the target holds. Asking for units or values outside the chunk is the caller's bug.
  void Decode(int64_t first_unit, std::span<float> values) const;
  void DecodeAdd(int64_t first_unit, float weight, std::span<float> sum) const;

 private:
  // The chunk's block at which `first_unit` of the fragment begins, once `values` from there are known to be in it.
  int64_t BlockOffset(int64_t first_unit, int64_t values) const;

  ChunkSpan span_;
  const uint8_t* scales_ = nullptr;
  const uint8_t* codes_ = nullptr;
};

}  // namespace causeway::codecs
