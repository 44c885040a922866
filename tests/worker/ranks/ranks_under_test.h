// The ranks of a site as threads of a test, and what collectives_suite.h asks of an implementation.
#pragma once

#include <spdlog/spdlog.h>

#include <deque>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "core/thread.h"
#include "worker/ranks/collectives.h"

namespace causeway::worker {

// Where an implementation's values lie: the host, or a device.
class TestMemory {
 public:
  virtual ~TestMemory() = default;
  virtual std::span<std::byte> Put(std::span<const std::byte> bytes) = 0;  // a copy that stays as long as this does
  virtual std::vector<std::byte> Get(std::span<const std::byte> bytes) = 0;
};

class HostTestMemory final : public TestMemory {
 public:
  std::span<std::byte> Put(std::span<const std::byte> bytes) override {
    return kept_.emplace_back(bytes.begin(), bytes.end());
  }
  std::vector<std::byte> Get(std::span<const std::byte> bytes) override { return {bytes.begin(), bytes.end()}; }

 private:
  std::deque<std::vector<std::byte>> kept_;
};

struct RankUnderTest {
  std::unique_ptr<Collectives> collectives;
  std::unique_ptr<TestMemory> memory = std::make_unique<HostTestMemory>();
};

// Calls `body(rank)` on a thread for each, and returns what they returned.
inline std::vector<absl::Status> OnRanks(int world, const std::function<absl::Status(int rank)>& body) {
  spdlog::default_logger();  // made before there are threads: a sanitizer does not see into the library
  std::vector<absl::Status> statuses(world);
  std::vector<core::Thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] { statuses[rank] = body(rank); });
  }
  for (core::Thread& thread : threads) thread.Join();
  return statuses;
}

// Makes all ranks of a world.
using MakeRanks = std::function<std::vector<RankUnderTest>(int world)>;

struct Implementation {
  std::string name;
  MakeRanks make;
  int most_ranks = 4;
  std::function<std::string()> why_not;  // why it cannot be tested here; empty: it can

  friend void PrintTo(const Implementation& implementation, std::ostream* out) { *out << implementation.name; }
};

}  // namespace causeway::worker
