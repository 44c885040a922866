#include "core/cpu_phases.h"

#include "core/clock.h"

namespace causeway::core {
namespace {

std::array<std::atomic<int64_t>, kCpuPhases> nanoseconds;
thread_local CpuPhaseScope* innermost = nullptr;

}  // namespace

std::atomic<bool> internal::measures_cpu_phases = false;

std::string_view CpuPhaseName(CpuPhase phase) {
  static constexpr std::array<std::string_view, kCpuPhases> kNames = {
      "train", "copy", "encode", "hash", "receive", "check", "journal", "merge", "decode", "outer_step", "mix"};
  return kNames[static_cast<int>(phase)];
}

void MeasureCpuPhases() { internal::measures_cpu_phases = true; }

std::array<double, kCpuPhases> CpuPhaseSeconds() {
  std::array<double, kCpuPhases> seconds;
  for (int i = 0; i < kCpuPhases; ++i) seconds[i] = static_cast<double>(nanoseconds[i].load()) * 1e-9;
  return seconds;
}

void CpuPhaseScope::Begin(CpuPhase phase) {
  measures_ = true;
  phase_ = phase;
  outer_ = innermost;
  innermost = this;
  begun_ns_ = ThreadCpuNs();
}

void CpuPhaseScope::End() {
  const int64_t spent_ns = ThreadCpuNs() - begun_ns_;
  nanoseconds[static_cast<int>(phase_)] += spent_ns;
  innermost = outer_;
  if (outer_ != nullptr) outer_->begun_ns_ += spent_ns;
}

}  // namespace causeway::core
