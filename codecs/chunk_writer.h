// Writes a chunk piece by piece, for whoever has its values piece by piece: a merge makes a few units at a time, in
// cache, and takes its outer step with what they decode to before it makes the next ones.
//
//   Append(units 0…3) ─► scales, codes ─► decoded      Append(units 4…7) …      Finish() ─► header with hash, bytes
//
// Owned by one thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "codecs/chunk.h"
#include "codecs/codec.h"

namespace causeway::codecs {

// The gain of `sign`: with feedback, 1.25 times the least-squares scale keeps the residual smallest (PROTOCOL.md
// section 4).
float GainFor(float beta);

// The index of the first value that is not finite or not below core::kMaxMagnitude: what no codec takes.
std::optional<size_t> FirstOutOfRange(std::span<const float> values);

class ChunkWriter {
 public:
  // The chunk's size must be within core::kMaxChunkBytes, as all of PlanChunks are.
  ChunkWriter(const ChunkSpan& span, float gain);

  // Encodes the next `values`, all in range: whole units, but for the last piece. `decoded` gets what they decode to.
  void Append(std::span<const float> values, std::span<float> decoded);

  // The chunk's bytes, once all its values were appended.
  std::string Finish();

 private:
  const ChunkSpan span_;
  const Codec& codec_;
  const float gain_;
  int64_t appended_ = 0;
  std::string bytes_;
};

}  // namespace causeway::codecs
