// A site's training data in two numbers, by which the coordinator tells equal data from different data.
//
//   tokens, in the order of the data ─► each as 4 bytes, little-endian ─► XXH3-64, seed 0 ─► digest
//
// The digest is of the tokens alone: the same tokens as raw uint16, as uint32, or cut into shards have the same one.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "core/ids.h"

namespace causeway::core {

struct DataFingerprint {
  int64_t tokens = 0;
  uint64_t digest = 0;

  friend bool operator==(const DataFingerprint&, const DataFingerprint&) = default;
};

// A site's declaration of its data when it joins; a field is empty where the site does not know.
struct SiteData {
  std::optional<DataFingerprint> training;  // the site's training data, including the held-out tail
  std::optional<DataFingerprint> held_out;  // the site's own file to evaluate on

  bool said() const { return training || held_out; }
  friend bool operator==(const SiteData&, const SiteData&) = default;
};
using DataOfSites = std::map<SiteId, SiteData>;

std::string FingerprintText(const DataFingerprint& data);  // "1,234 tokens, fingerprint 0011223344556677"

}  // namespace causeway::core
