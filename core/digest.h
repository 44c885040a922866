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
#include <string_view>

namespace causeway::core {

// `values` holds whole units; the first one is unit `first_unit` of its fragment.
uint64_t DigestUnits(std::span<const float> values, int64_t first_unit);

std::string DigestText(uint64_t digest);  // 16 hexadecimal digits, as in /status

// The digest of parameters θ: a sum, so that each process can digest the values that it holds, in any order.
//
//   digest = Σ mix(tensor, index, bits)  mod 2⁶⁴     over all values of all tensors; bits: of the value as float32
//
// The sum is the same however θ is sharded, and in whatever order the tensors are listed: a tensor counts by its name.
// mix is core/random.h's SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, section 3),
// which is a bijection: one changed value always changes the sum. Thread-safe.

// The number that represents a tensor in the sum.
uint64_t ThetaSeed(std::string_view tensor);

// The contribution of values [first, first + size) of a tensor, row-major.
uint64_t ThetaDigest(uint64_t seed, int64_t first, std::span<const float> values);

}  // namespace causeway::core
