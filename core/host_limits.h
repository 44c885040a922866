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
  int64_t memory_bytes = std::numeric_limits<int64_t>::max();  // memory that is left
  int64_t threads = std::numeric_limits<int64_t>::max();       // threads that can still be started
  std::string threads_file;                                    // the file with that limit; empty: there is no limit
};

// `root` is the root of the file system; tests pass their own.
GroupLimits ReadGroupLimits(const std::string& root = "");

// At least 1; in a simulation always 1. Read once.
int UsableCores();
// From this call on UsableCores returns at most `cores`. REQUIRES: UsableCores was not called yet.
void LimitCores(int cores);

// The bytes that could be allocated now without swapping.
int64_t UsableMemoryBytes(const std::string& root = "");

}  // namespace causeway::core
