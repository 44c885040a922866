// splitmix64: random numbers as a function of their purpose (seed, site, step, …), so that no generator state has to be
// kept and every restart sees the same numbers. Pure, except for DeviceRandom; thread-safe.
#pragma once

#include <cstdint>
#include <string_view>

namespace causeway::core {

constexpr uint64_t SplitMix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

constexpr uint64_t HashCombine(uint64_t seed, uint64_t value) { return SplitMix64(seed ^ SplitMix64(value)); }

constexpr uint64_t HashCombine(uint64_t seed, std::string_view text) {
  for (char c : text) seed = SplitMix64(seed ^ static_cast<unsigned char>(c));
  return SplitMix64(seed ^ text.size());
}

// Uniform in [0, 1): the upper 53 bits.
constexpr double UnitInterval(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

// A random number from the system, for values that must differ between processes and restarts.
uint64_t DeviceRandom();

}  // namespace causeway::core
