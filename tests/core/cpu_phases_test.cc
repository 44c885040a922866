#include "core/cpu_phases.h"

#include <gtest/gtest.h>

#include <thread>

#include "core/clock.h"

namespace causeway::core {
namespace {

double SecondsOf(CpuPhase phase) { return CpuPhaseSeconds()[static_cast<int>(phase)]; }

// Until the thread has spent so much processor time more.
void Spend(int64_t ns) {
  const int64_t end = ThreadCpuNs() + ns;
  while (ThreadCpuNs() < end) {
  }
}

constexpr int64_t kSpent = 3'000'000;

TEST(CpuPhases, NothingIsCountedUntilItIsMeasured) {
  {
    const CpuPhaseScope scope(CpuPhase::kMix);
    Spend(kSpent);
  }
  EXPECT_EQ(SecondsOf(CpuPhase::kMix), 0);
}

TEST(CpuPhases, AScopeInsideAnotherOneCountsForItself) {
  MeasureCpuPhases();
  const int64_t begin = ThreadCpuNs();
  {
    const CpuPhaseScope outer(CpuPhase::kDecode);
    Spend(kSpent);
    {
      const CpuPhaseScope inner(CpuPhase::kHash);
      Spend(2 * kSpent);
    }
    Spend(kSpent);
  }
  const double all = static_cast<double>(ThreadCpuNs() - begin) * 1e-9;
  EXPECT_GE(SecondsOf(CpuPhase::kDecode), 2e-9 * kSpent);
  EXPECT_GE(SecondsOf(CpuPhase::kHash), 2e-9 * kSpent);
  EXPECT_LE(SecondsOf(CpuPhase::kDecode) + SecondsOf(CpuPhase::kHash), all);  // nothing is counted twice
}

TEST(CpuPhases, AnotherThreadsTimeIsItsOwn) {
  MeasureCpuPhases();
  const CpuPhaseScope waits(CpuPhase::kCopy);
  std::jthread([] {
    const CpuPhaseScope works(CpuPhase::kReceive);
    Spend(kSpent);
  }).join();
  EXPECT_GE(SecondsOf(CpuPhase::kReceive), 1e-9 * kSpent);
}

}  // namespace
}  // namespace causeway::core
