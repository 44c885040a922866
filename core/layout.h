// Blocks and units, in which Causeway measures all arrays.
//
//   tensor   |■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■■□□|   values, then zero padding up to a whole unit
//   units    |        4096        |        4096        |   a tensor starts on a new unit
//   blocks   |256|256|256| … ×16  |256|256|    not sent|   a block shares one scale
//
// Ranges, digests, threads, chunks and GPU kernels all work in units; scales and bits work in blocks.
// Source: docs/wire_format.md, section "Layout".
#pragma once

#include <cstdint>

namespace causeway::core {

inline constexpr int64_t kBlockValues = 256;
inline constexpr int64_t kBlocksPerUnit = 16;
inline constexpr int64_t kUnitValues = kBlockValues * kBlocksPerUnit;  // 4096

// Blocks and units that hold `values` values; the last one may be partly padding.
constexpr int64_t BlocksFor(int64_t values) { return (values + kBlockValues - 1) / kBlockValues; }
constexpr int64_t UnitsFor(int64_t values) { return (values + kUnitValues - 1) / kUnitValues; }

}  // namespace causeway::core
