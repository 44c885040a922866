// The digest of parameters θ: a sum, so that each process can digest the values that it holds, in any order.
//
//   digest = Σ mix(tensor, index, bits)  mod 2⁶⁴     over all values of all tensors; bits: of the value as float32
//
// The sum is the same however θ is sharded, and in whatever order the tensors are listed: a tensor counts by its name.
// mix is core/random.h's SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, section 3),
// which is a bijection: one changed value always changes the sum. Thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace causeway::core {

// The number that represents a tensor in the sum.
uint64_t ThetaSeed(std::string_view tensor);

// The contribution of values [first, first + size) of a tensor, row-major.
uint64_t ThetaDigest(uint64_t seed, int64_t first, std::span<const float> values);

}  // namespace causeway::core
