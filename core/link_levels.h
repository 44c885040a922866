// The links between the ranks of a site, by level, and the link to the coordinator.
//
//   pair of 2 ─► node of 4 pairs ─► site of 48 nodes ─► (WAN) 4 sites
//
// Plain data; formats/yaml_message.h reads it from a file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace causeway::core {

struct LinkLevel {
  std::string name;
  int64_t of = 1;          // groups of the level below that it joins; for the innermost level, ranks
  double bytes_per_s = 0;  // rate of one rank, in each direction
  double latency_s = 0;    // one way

  friend bool operator==(const LinkLevel&, const LinkLevel&) = default;
};

struct LinkLevels {
  std::vector<LinkLevel> site;   // innermost first
  std::optional<LinkLevel> wan;  // the WAN; bytes_per_s is the rate of one site

  int64_t ranks() const {
    int64_t all = 1;
    for (const LinkLevel& level : site) all *= level.of;
    return all;
  }
};

inline constexpr int kMaxLinkLevels = 8;
inline constexpr int64_t kMaxLevelRanks = 1'000'000;

}  // namespace causeway::core
