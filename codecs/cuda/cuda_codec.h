// The codecs on a GPU: they give the CPU's bytes and decoded bits, from the same kernels (codecs/simd/lanes.h), with 16
// threads as the 16 lanes.
//
//   values, residual (device) ─► one CTA a unit ─► codes in shared memory ─► lines of 64 bytes ─► scales, codes
//                                                                       (mapped pinned host memory, or device memory)
//
// Codes are written once, in whole lines, so that they may go straight over the bus into memory that gRPC sends from.
// Nothing here allocates or waits: calls are queued on the stream, and what they point to lives until it has run.
// Thread-safe.
#pragma once

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "codecs/codec.h"

namespace causeway::codecs::cuda {

// True for all codecs but onebit_adam_sign. The GPU only encodes topk's family; decoding it is UNIMPLEMENTED.
bool Supports(core::CodecId id);

// The value of `*bad_block` if no block was out of range.
inline constexpr unsigned long long kNoBadBlock = ~0ull;

// As Codec::Encode. All pointers are to memory that the device can access; `scales` and `codes` begin at a multiple of
// 16 bytes, as they do in a chunk that does, and preferably of 64. `bad_block` (device or mapped; set to kNoBadBlock by
// the caller; one for each job in flight; null with `saturate`) gets the job's first block that is out of range.
// INTERNAL if the launch fails; UNIMPLEMENTED for another codec. Misuse is the caller's bug.
absl::Status Encode(core::CodecId id, const EncodeJob& job, unsigned long long* bad_block, cudaStream_t stream);

// As Codec::Decode.
absl::Status Decode(core::CodecId id, const DecodeJob& job, cudaStream_t stream);

}  // namespace causeway::codecs::cuda
