// What a site trains on, in two numbers: by them the coordinator tells equal data from different data.
//
//   tokens, in the order of the data ─► each as 4 bytes, little-endian ─► XXH3-64, seed 0 ─► digest
//
// The digest is of the tokens alone: the same tokens as raw uint16, as uint32, or cut into shards have the same one.
#pragma once

#include <cstdint>
#include <string>

namespace causeway::core {

struct DataFingerprint {
  int64_t tokens = 0;
  uint64_t digest = 0;

  friend bool operator==(const DataFingerprint&, const DataFingerprint&) = default;
};

std::string FingerprintText(const DataFingerprint& data);  // "1,234 tokens, fingerprint 0011223344556677"

}  // namespace causeway::core
