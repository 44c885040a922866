// Writes a chunk piece by piece, for callers whose values come piece by piece: a merge produces a few units at a time,
// in cache, and takes its outer step with their decoded values before it produces the next ones.
//
//   WriteMean(units 0…3) ─► scales, codes ─► decoded      WriteMean(units 4…7) …      Finish() ─► header, hash, bytes
//
// Owned by one thread at a time, except for WriteMean: pieces that share no unit may be written concurrently.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "codecs/chunk.h"
#include "codecs/codec.h"

namespace causeway::codecs {

// The gain of `sign` and `rotated_sign`: with feedback, 1.25 times the least-squares scale keeps the residual smallest
// (docs/wire_format.md).
float GainFor(float beta);

class ChunkWriter {
 public:
  // REQUIRES: the chunk's size is within core::kMaxChunkBytes, as all of PlanChunks are.
  ChunkWriter(const ChunkSpan& span, float gain);
  // The same, into `bytes` (ChunkBytes), which outlive it. Multiples of 64 bytes let kernels write whole lines.
  ChunkWriter(const ChunkSpan& span, float gain, std::span<char> bytes);

  // Encodes the next values: whole units, except for the last piece; all at once with onebit_adam_sign. False if one is
  // out of range (Codec::Encode); the writer is then unusable.
  bool Append(std::span<const float> values, const ChunkFeedback& feedback);

  // Encodes all values at once with another encoder, which gets the job without its values, and writes scales, codes
  // and next residual. Returns its status; if that is not OK, the writer is unusable.
  using Encoder = absl::FunctionRef<absl::Status(const EncodeJob&)>;
  absl::Status EncodeBy(Encoder encode, const ChunkFeedback& feedback);

  // Writes a merge's mean from unit `unit` of the chunk on, in any order: clamped where it is out of range, and, with
  // `in_domain`, rotated already (in whole blocks, if the codec rotates). `decoded` receives the piece's decoded
  // values, without padding.
  void WriteMean(int64_t unit, std::span<const float> mean, bool in_domain, const ChunkFeedback& feedback,
                 std::span<float> decoded);

  // Called once all values are appended or written: adds header and hash. With memory of its own, Finish seals the
  // chunk and returns the bytes.
  void Seal();
  std::string Finish();

 private:
  // The job for `count` values from value `first` on, without the values.
  EncodeJob JobAt(int64_t first, int64_t count, const ChunkFeedback& feedback);
  Rotation RotationAt(int64_t value) const {
    return {span_.rotation_seed, (span_.first_value() + value) / core::kBlockValues};
  }

  const ChunkSpan span_;
  const Codec& codec_;
  const float gain_;
  std::atomic<int64_t> written_ = 0;  // number of values written
  std::string own_;
  std::span<char> bytes_;
};

}  // namespace causeway::codecs
