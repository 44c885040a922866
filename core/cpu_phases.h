// For measurements: the CPU time of this process by phase (tests/bench/round). Off unless MeasureCpuPhases was called;
// when on, a scope costs two reads of the thread's clock, when off, one load.
//
//   scope kDecode │──── decode ────┐            ┌── decode ──│      a nested scope counts separately
//   scope kHash                    └── hash ────┘
//
// Thread-safe; a scope belongs to the thread that made it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>

namespace causeway::core {

enum class CpuPhase {
  kTrain,      // inner steps
  kCopy,       // θ, for a contribution
  kEncode,     // outer gradient, codec, residual
  kHash,       // of chunks and anchors
  kReceive,    // gRPC's slices into chunks
  kCheck,      // content of chunks, and their norms
  kJournal,    // payloads and rows to files
  kMerge,      // coordinator: decode, outer step, encode, in one pass
  kDecode,     // site: update
  kOuterStep,  // site
  kMix,        // θ with W
};
inline constexpr int kCpuPhases = static_cast<int>(CpuPhase::kMix) + 1;

std::string_view CpuPhaseName(CpuPhase phase);

void MeasureCpuPhases();                           // from this call on
std::array<double, kCpuPhases> CpuPhaseSeconds();  // over all scopes that have ended; zeros if not measuring

namespace internal {
extern std::atomic<bool> measures_cpu_phases;
}

class CpuPhaseScope {
 public:
  explicit CpuPhaseScope(CpuPhase phase) {
    if (internal::measures_cpu_phases.load(std::memory_order_relaxed)) Begin(phase);
  }
  ~CpuPhaseScope() {
    if (measures_) End();
  }
  CpuPhaseScope(const CpuPhaseScope&) = delete;
  CpuPhaseScope& operator=(const CpuPhaseScope&) = delete;

 private:
  void Begin(CpuPhase phase);
  void End();

  bool measures_ = false;
  CpuPhase phase_ = CpuPhase::kTrain;
  int64_t begun_ns_ = 0;  // plus the time of nested scopes
  CpuPhaseScope* outer_ = nullptr;
};

}  // namespace causeway::core
