// The digest of parameters, by which sites and coordinator verify that they hold the same bits (invariant 1).
//
// A unit's digest is XXH3-64 of its 4096 float32 bit patterns (little-endian, padding included), seeded with the unit's
// index in its fragment; the digest of a range is the sum of its units' digests modulo 2^64. So it can be computed by
// tiles or ranks in any order, and a mismatch can be narrowed down to a unit. Pure, thread-safe.
// Source: docs/wire_format.md, section "Digest".
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace causeway::core {

// `values` holds whole units; the first one is unit `first_unit` of its fragment.
uint64_t DigestUnits(std::span<const float> values, int64_t first_unit);

std::string DigestText(uint64_t digest);  // 16 hexadecimal digits, as in /status

}  // namespace causeway::core
