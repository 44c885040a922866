// A device emulated on the host, for machines without a GPU: the kernels' own source text, and OpenBLAS for matrix
// products, in any order that events allow (tests/offload/fake_device.h). It shows the errors that a GPU would show.
// `causeway-worker-fake --device=fake` trains on it.
#pragma once

#include <array>
#include <memory>

#include "tests/offload/fake_device.h"
#include "worker/device/compute_backend.h"

namespace causeway::worker {

class FakeBackend : public ComputeBackend {
 public:
  // `seed`: of the order of queues, and of the lanes of each kernel (0: ascending).
  explicit FakeBackend(uint64_t seed = 1, offload::FakeDevice::Runs runs = offload::FakeDevice::Runs::kStepped);

  offload::FakeDevice& device() override { return device_; }
  bool timed() const override { return false; }
  void Gemm(offload::Queue queue, const GemmJob& job) override;
  void Launch(offload::Queue queue, const Kernel& kernel) override;
  // Uses the CPU's codecs: the kernels of codecs/cuda, which give the same bytes, are for threads of a GPU
  // (tests/codecs/cuda emulates them).
  bool Encodes(core::CodecId codec) const override;
  void Encode(offload::Queue queue, core::CodecId codec, const codecs::EncodeJob& job,
              unsigned long long* bad_block) override;
  absl::StatusOr<std::unique_ptr<DeviceAttention>> MakeAttention(const AttentionShape& shape, ValueType type) override;

 private:
  std::array<uint8_t, kLanes> order_;
  offload::FakeDevice device_;  // last: its threads run what is queued
};

}  // namespace causeway::worker
