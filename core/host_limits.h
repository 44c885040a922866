// How much of the machine this process may use: its affinity, and the limits of its control groups and those above.
//
//   cores    min of the affinity, cpu.max (version 1: cpu.cfs_quota_us) rounded up, and LimitCores
//   memory   min of MemAvailable, and memory.max − memory.current + inactive_file of each group
//   threads  min of pids.max − pids.current of each group
//
// Files that are missing limit nothing. Thread-safe.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace causeway::core {

struct GroupLimits {
  double cores = std::numeric_limits<double>::infinity();
  int64_t memory_bytes = std::numeric_limits<int64_t>::max();  // that are left
  int64_t threads = std::numeric_limits<int64_t>::max();       // that can still be started
  std::string threads_file;                                    // which says so; empty: none does
};

// `root`: of the file system, for tests.
GroupLimits ReadGroupLimits(const std::string& root = "");

// At least 1; in a simulation always 1. Read once.
int UsableCores();
// From here on at most that number. REQUIRES: UsableCores was not called yet.
void LimitCores(int cores);

// The bytes that could be allocated now without swapping.
int64_t UsableMemoryBytes(const std::string& root = "");

}  // namespace causeway::core
