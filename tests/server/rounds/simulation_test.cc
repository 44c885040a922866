// Weeks of churn in virtual time: see simulated_run.h. A failure prints its seed; CAUSEWAY_SIMULATION_SEED=N repeats
// that one alone, CAUSEWAY_SIMULATION_ROUNDS=N plays so many rounds in all.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "tests/server/rounds/simulated_run.h"

namespace causeway::server {
namespace {

constexpr int64_t kRoundsOfASeed = 500;

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::atoll(value);
}

TEST(RoundSimulation, NothingIsLostMergedTwiceOrStuck) {
  const int64_t only = FromEnvironment("CAUSEWAY_SIMULATION_SEED", -1);
  const int64_t goal = FromEnvironment("CAUSEWAY_SIMULATION_ROUNDS", 20'000);
  int64_t rounds = 0;
  int64_t events = 0;
  int64_t lost_fragments = 0;
  std::map<std::string, int> drops;
  for (int64_t seed = std::max<int64_t>(only, 0); rounds < goal; ++seed) {
    SimulatedRun run(static_cast<uint64_t>(seed));
    const std::string failure = run.Run(kRoundsOfASeed);
    ASSERT_EQ(failure, "") << "repeat it with CAUSEWAY_SIMULATION_SEED=" << seed << "\n" << run.Describe();
    rounds += run.rounds();
    events += run.events();
    lost_fragments += run.lost_fragments();
    for (const auto& [reason, times] : run.drops()) drops[reason] += times;
    if (only >= 0) break;
  }
  std::printf("%lld rounds, %lld events, %lld fragments that started from the anchor\n", static_cast<long long>(rounds),
              static_cast<long long>(events), static_cast<long long>(lost_fragments));
  for (const auto& [reason, times] : drops) std::printf("  %d times: %s\n", times, reason.c_str());
}

}  // namespace
}  // namespace causeway::server
