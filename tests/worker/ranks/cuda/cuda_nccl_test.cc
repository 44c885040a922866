// The suite of collectives on a GPU by the real NCCL. One rank, since NCCL takes a GPU for each; skipped, with the
// reason, where there is no GPU or no NCCL.
#include <cuda_runtime_api.h>

#include "tests/worker/ranks/collectives_suite.h"
#include "worker/ranks/cuda/cuda_stream_hooks.h"
#include "worker/ranks/nccl_collectives.h"
#include "worker/ranks/nccl_communicator.h"
#include "worker/ranks/ordered_collectives.h"

namespace causeway::worker {
namespace {

class DeviceTestMemory final : public TestMemory {
 public:
  ~DeviceTestMemory() override {
    for (void* const memory : kept_) cudaFree(memory);
  }

  std::span<std::byte> Put(std::span<const std::byte> bytes) override {
    if (bytes.empty()) return {};
    void* memory = nullptr;
    CHECK(cudaMalloc(&memory, bytes.size()) == cudaSuccess);
    kept_.push_back(memory);
    CHECK(cudaMemcpy(memory, bytes.data(), bytes.size(), cudaMemcpyHostToDevice) == cudaSuccess);
    CHECK(cudaStreamSynchronize(nullptr) == cudaSuccess);  // the copy may still be on its way
    return {static_cast<std::byte*>(memory), bytes.size()};
  }
  std::vector<std::byte> Get(std::span<const std::byte> bytes) override {
    std::vector<std::byte> got(bytes.size());
    if (bytes.empty()) return got;
    CHECK(cudaMemcpy(got.data(), bytes.data(), bytes.size(), cudaMemcpyDeviceToHost) == cudaSuccess);
    return got;
  }

 private:
  std::vector<void*> kept_;
};

absl::StatusOr<RankUnderTest> OneRank() {
  ASSIGN_OR_RETURN(std::shared_ptr<StreamHooks> hooks, MakeCudaStreamHooks(0));
  ASSIGN_OR_RETURN(const NcclApi* const nccl, LoadNccl());
  OrderedCollectives control(nullptr);
  RankUnderTest rank;
  ASSIGN_OR_RETURN(rank.collectives, MakeNcclCollectives(*nccl, control, std::move(hooks), kLong));
  rank.memory = std::make_unique<DeviceTestMemory>();
  return rank;
}

// Why there is no test; empty: there is.
std::string WhyNot() {
  const absl::Status hooks = MakeCudaStreamHooks(0).status();
  if (absl::IsUnavailable(hooks)) return std::string(hooks.message());
  const absl::Status nccl = LoadNccl().status();
  return absl::IsNotFound(nccl) ? std::string(nccl.message()) : "";
}

std::vector<RankUnderTest> OnTheGpu(int) {
  std::vector<RankUnderTest> ranks;
  absl::StatusOr<RankUnderTest> one = OneRank();
  if (!one.ok()) ADD_FAILURE() << one.status();
  CHECK(one.ok());
  ranks.push_back(*std::move(one));
  return ranks;
}

INSTANTIATE_TEST_SUITE_P(CudaNccl, CollectivesSuite,
                         ::testing::Combine(::testing::Values(Implementation{"cuda", OnTheGpu, 1, WhyNot}),
                                            ::testing::Values(1)),
                         SuiteName);

}  // namespace
}  // namespace causeway::worker
