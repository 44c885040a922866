// Offloading of the inner optimizer's state: `offload` of run.yaml (core/run_config.h).
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"

namespace causeway::core {

inline constexpr int64_t kAutoInterleave = -1;  // offload.k: auto
inline constexpr int64_t kAllOnCpu = 0;         // offload.k: cpu
inline constexpr int64_t kResident = -2;        // offload.k: resident

// "auto", "cpu", "resident", "2".
inline std::string InterleaveName(int64_t k) {
  if (k == kAutoInterleave) return "auto";
  if (k == kResident) return "resident";
  return k == kAllOnCpu ? "cpu" : std::to_string(k);
}

inline constexpr double kAutoShare = -1;  // offload.resident_share: auto

// "auto", "0.25".
inline std::string ShareName(double share) { return share == kAutoShare ? "auto" : absl::StrCat(share); }

// The place where workers that have a device update the inner optimizer's state. Changes no bit of the result.
struct OffloadConfig {
  int64_t k = kAutoInterleave;  // every k-th subgroup on the device; kAutoInterleave: by measured bandwidths
  double resident_share =
      kAutoShare;                  // share of the subgroups that stay on the device; auto: with k auto, as many as fit
  int64_t subgroup = 100'000'000;  // values moved at a time; the device holds two times 12 bytes of each

  friend bool operator==(const OffloadConfig&, const OffloadConfig&) = default;
};

}  // namespace causeway::core
