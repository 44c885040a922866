// The codecs on a GPU: the bytes and the decoded bits of the CPU's, from the same kernels (codecs/simd/lanes.h), with 16
// threads as the 16 lanes.
//
//   values, residual (device) ─► one CTA a unit ─► codes in shared memory ─► lines of 64 bytes ─► scales, codes
//                                                                       (mapped pinned host memory, or device memory)
//
// The payload is written once, in whole lines, so that it may go straight over the bus into memory that gRPC sends from.
// Nothing here allocates or waits: calls are queued on the stream, and what they point to lives until it has run.
// Thread-safe.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/status.h"
#include "codecs/codec.h"

namespace causeway::codecs::cuda {

// All codecs of blocks; topk and onebit_adam_sign stay on the CPU.
bool Supports(core::CodecId id);

// `*bad_block` that no block was out of range.
inline constexpr unsigned long long kNoBadBlock = ~0ull;

// As Codec::Encode. All pointers are to memory that the device reaches: 4-byte aligned values, and `scales` and `codes`
// on a line of 64 bytes, as they lie in a chunk that begins on one. `bad_block` (device or mapped; set to kNoBadBlock by
// the caller) gets the first block that is out of range. INTERNAL if the launch fails; UNIMPLEMENTED for another codec.
absl::Status Encode(core::CodecId id, const EncodeJob& job, unsigned long long* bad_block, cudaStream_t stream);

// As Codec::Decode.
absl::Status Decode(core::CodecId id, const DecodeJob& job, cudaStream_t stream);

}  // namespace causeway::codecs::cuda
