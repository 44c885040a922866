// float32 values on one side, bytes on the other.
//
//   values   |block 0: 256 floats |block 1            | …
//            ── rotate (some) ── + β e ── quantise ──► residual e ← d − decoded
//   scales   |bf16 |bf16 | …                                 one per block, or per unit, or one
//   codes    |block 0             |block 1            | …    whole blocks; padding counts as +0 before a rotation
//
// A codec's domain is that of its residual and of the coordinator's sums: the values themselves, or, for a rotating
// codec, the values after the randomized Hadamard transform of each block (codecs/rotation.h). The transform is linear,
// so a merge adds in the domain and inverts once. In the domain a rotating codec has whole blocks: padding is not zero
// there.
//
// Codecs have no state: ErrorFeedback keeps what they drop. The scalar code in this folder is the specification
// (docs/wire_format.md, section "Codecs"); codecs/simd and codecs/cuda give its bytes and its decoded bits.
// Thread-safe; jobs that share no unit may run concurrently, so any number of threads may share a chunk.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "codecs/decode_term.h"
#include "codecs/rotation.h"
#include "core/codec_id.h"

namespace causeway::codecs {

// An encoding job. All pointers are to the job's first unit; residuals cover whole blocks if the codec rotates, else
// `count` values.
struct EncodeJob {
  const float* values = nullptr;
  int64_t count = 0;                 // number of values, without padding
  std::optional<Rotation> rotation;  // for a codec that rotates; none: `values` are in its domain, as whole blocks
  float beta = 0;                    // d = fma(β, e, x); 0: no feedback, and no residuals
  const float* residual = nullptr;   // e, in the codec's domain
  float* next_residual = nullptr;    // e ← d − decoded; may be `residual`
  const float* subtract = nullptr;   // on a device only: `values − subtract` is encoded
  float gain = 1;                    // factor on the scale of `sign` and `rotated_sign`; 1 is the least-squares scale
  bool saturate = false;             // clamps d to the codecs' range instead of refusing it; d must not be NaN
  uint8_t* scales = nullptr;
  uint8_t* codes = nullptr;
};

struct DecodeJob {
  const uint8_t* scales = nullptr;
  const uint8_t* codes = nullptr;
  std::optional<Rotation> rotation;  // none: `values` stay in the codec's domain, as whole blocks
  float* values = nullptr;
  int64_t count = 0;         // number of values, without padding
  std::optional<float> add;  // the weight: value = fma(weight, decoded, value); none: value = decoded
};

class Codec {
 public:
  virtual ~Codec() = default;

  virtual bool rotates() const { return false; }

  // Bytes that `values` values take, and where those of unit `unit` begin.
  virtual int64_t ScaleBytes(int64_t values) const = 0;
  virtual int64_t CodeBytes(int64_t values) const = 0;
  virtual int64_t ScaleOffset(int64_t unit) const = 0;
  virtual int64_t CodeOffset(int64_t unit) const = 0;

  // False if some d is not finite or not below core::kMaxMagnitude; the output is then undefined. A codec that rotates
  // takes all blocks of values below kMaxRotatedMagnitude, and refuses NaN and infinity like the others.
  virtual bool Encode(const EncodeJob& job) const = 0;
  virtual void Decode(const DecodeJob& job) const = 0;

  // sum = fma(w_n, d_n, … fma(w_1, d_1, 0) …) of `count` values in the codec's domain, as whole blocks if it rotates:
  // the same as successive Decodes that add, in one pass over memory.
  virtual void DecodeSum(std::span<const DecodeTerm> terms, int64_t count, float* sum) const;

  // ‖d‖² of `values` decoded values in the codec's domain, in double: codes are counted before they are rounded to
  // floats, blocks are added in order. The same bits on all processors.
  virtual double SumSquares(const uint8_t* scales, const uint8_t* codes, int64_t values) const = 0;

  // INVALID_ARGUMENT if some block of `values` values would decode to a value that is not finite or not below
  // core::kMaxMagnitude, or if Encode would not write some code, including in the padding of the last block.
  virtual absl::Status Validate(const uint8_t* scales, const uint8_t* codes, int64_t values) const = 0;
};

// Instruction sets for which codecs have versions of their own. All give the same bytes and the same decoded bits.
enum class Target { kScalar, kAvx2, kAvx512 };
inline constexpr Target kAllTargets[] = {Target::kScalar, Target::kAvx2, Target::kAvx512};

const char* TargetName(Target target);  // "scalar", "avx2", "avx512"
bool Supported(Target target);          // whether this processor and this build have it

// The best target of this processor; CAUSEWAY_SIMD=scalar|avx2|avx512 in the environment lowers it. Any other text ends
// the program, so that no comparison runs with the wrong target.
Target ActiveTarget();

// The codec with that number; it is never destroyed. REQUIRES: Supported(target).
const Codec& GetCodec(core::CodecId id);
const Codec& GetCodec(core::CodecId id, Target target);

// The codecs that are not made of blocks, which GetCodec hands out.
std::unique_ptr<Codec> MakeTopk(int entries, Target target);  // a codec of topk's family, by its core::TopkEntries
const Codec& OnebitAdamSign();

}  // namespace causeway::codecs
