// Ranks over NcclCollectives of a library that has NCCL's names and prototypes (fake_nccl.cc), loaded as the real one
// is.
#pragma once

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "tests/folders.h"
#include "tests/worker/ranks/fake_stream.h"
#include "tests/worker/ranks/ranks_under_test.h"
#include "tests/worker/ranks/thread_wire.h"
#include "worker/ranks/nccl_collectives.h"
#include "worker/ranks/nccl_communicator.h"
#include "worker/ranks/ordered_collectives.h"

namespace causeway::worker {

// A variable of the environment while this lives. No rank may run when it begins or ends.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) { setenv(name, value.c_str(), 1); }
  ~Variable() { unsetenv(name_); }

 private:
  const char* const name_;
};

inline const NcclApi& FakeNccl() {
  const Variable file("CAUSEWAY_NCCL", InBuild("tests/worker/ranks/fake/libnccl.so.2"));
  const absl::StatusOr<const NcclApi*> loaded = LoadNccl();
  CHECK(loaded.ok());
  return **loaded;
}

// `last` is the library of the last rank.
inline std::vector<absl::StatusOr<std::unique_ptr<Collectives>>> TryNcclRanks(int world, Collectives::Timeout timeout,
                                                                              const NcclApi& last = FakeNccl()) {
  const NcclApi& nccl = FakeNccl();
  ThreadRanks ranks(world);
  std::vector<absl::StatusOr<std::unique_ptr<Collectives>>> made(world);
  OnRanks(world, [&](int rank) {
    OrderedCollectives control(world == 1 ? nullptr : ranks.wire(rank));
    made[rank] =
        MakeNcclCollectives(rank == world - 1 ? last : nccl, control, std::make_shared<FakeStreamHooks>(), timeout);
    return made[rank].status();
  });
  return made;
}

inline std::vector<RankUnderTest> OverNccl(int world) {
  std::vector<RankUnderTest> result(world);
  auto made = TryNcclRanks(world, std::chrono::seconds(60));
  for (int rank = 0; rank < world; ++rank) {
    CHECK(made[rank].ok());
    result[rank].collectives = *std::move(made[rank]);
  }
  return result;
}

}  // namespace causeway::worker
