// The schedule of fragments: `sync` of run.yaml (core/run_config.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/ids.h"
#include "core/schedule.h"

namespace causeway::core {

enum class FragmentAssignment { kStrided, kSequential, kBalanced };

// Synchronous: a round takes all active sites, and each site waits for it where the schedule applies its update.
// Quorum: a round takes min_quorum sites and any others that come within the grace; no site waits.
enum class SyncMode { kSynchronous, kQuorum };

inline constexpr int64_t kAutoDelay = -1;  // fragment_sync_delay: auto

// The anchors and residuals kept on a device that encodes contributions, in addition to the host's: all of them where
// there is room, or those of the fragment being encoded.
enum class SyncMemory { kAuto, kFragment };

struct SyncConfig {
  SyncMode mode = SyncMode::kSynchronous;
  int64_t sync_every = 20;  // H
  int num_fragments = 4;    // P
  int parts = 1;            // into which each is divided: fragments of equal offset, for as many shards
  FragmentAssignment fragment_assignment = FragmentAssignment::kStrided;
  int64_t fragment_sync_delay = 1;     // τ; kAutoDelay: each site chooses its own at each send
  float fragment_update_alpha = 0.5f;  // α
  std::vector<Step> fragment_offsets;  // t_p of each fragment; empty: spread evenly over H
  FirstSend first_send = FirstSend::kFull;
  SyncMemory device_memory = SyncMemory::kAuto;
  // Name prefixes of each fragment's tensors; the longest match decides. Empty: fragment_assignment.
  std::vector<std::vector<std::string>> fragments;

  bool auto_delay() const { return fragment_sync_delay == kAutoDelay; }
  int map_fragments() const { return num_fragments * parts; }  // of the fragment map
  FragmentSchedule Schedule() const {
    const int64_t delay = auto_delay() ? 0 : fragment_sync_delay;
    const FragmentSchedule whole(sync_every, num_fragments, delay, fragment_offsets, first_send);
    if (parts == 1) return whole;
    std::vector<Step> offsets;
    for (FragmentId f = 0; f < map_fragments(); ++f) offsets.push_back(whole.Offset(f / parts));
    return FragmentSchedule(sync_every, map_fragments(), delay, std::move(offsets), first_send);
  }
  friend bool operator==(const SyncConfig&, const SyncConfig&) = default;
};

}  // namespace causeway::core
