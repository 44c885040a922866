// The digest of parameters, by which sites and coordinator verify that they hold the same bits (invariant 1).
//
// A unit's digest is XXH3-64 of its 4096 float32 bit patterns (little-endian, padding included), seeded with the unit's
// index in its fragment; the digest of a range is the sum of its units' digests modulo 2^64. So it can be computed by
// tiles or ranks in any order, and a mismatch can be narrowed down to a unit. Pure, thread-safe.
// Source: docs/wire_format.md, section "Digest".
#pragma once

#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

// XXH3-64 with the widest vectors of the processor: the library's plain functions are compiled for the oldest
// processor, and a third as fast as those that choose at run time. The hashes are the same.
//
// Not every build of the library has the latter (shared ones for x86-64 do), so they are weak symbols. Thread-safe.

extern "C" [[gnu::weak]] XXH64_hash_t XXH3_64bits_withSeed_dispatch(const void* bytes, size_t size, XXH64_hash_t seed);

namespace causeway::core {

// With seed 0 the hash is that of XXH3_64bits(bytes, size).
inline uint64_t Xxh3(const void* bytes, size_t size, uint64_t seed = 0) {
  if (XXH3_64bits_withSeed_dispatch != nullptr) return XXH3_64bits_withSeed_dispatch(bytes, size, seed);
  return XXH3_64bits_withSeed(bytes, size, seed);
}

}  // namespace causeway::core

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

// The digest's term for a tensor's values [first, first + values.size()), row-major. `seed` comes from ThetaSeed.
uint64_t ThetaDigest(uint64_t seed, int64_t first, std::span<const float> values);

}  // namespace causeway::core

// Proofs that their maker knows a secret, which they do not reveal. Pure; thread-safe.

namespace causeway::core {

// HMAC-SHA256 (RFC 2104): 32 bytes.
std::string KeyedProof(std::string_view secret, std::string_view text);

// Compares two secrets in a time that does not depend on where they differ.
bool SameSecret(std::string_view a, std::string_view b);

}  // namespace causeway::core
