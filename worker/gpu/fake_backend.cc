#include "worker/gpu/fake_backend.h"

#include <numeric>
#include <utility>

#include "core/check.h"
#include "core/random.h"
#include "worker/train/gemm.h"

namespace causeway::worker {
namespace {

// The `index`-th of a batch.
Matrix HostMatrix(const DeviceMatrix& matrix, int64_t index, int64_t step) {
  return {static_cast<const float*>(matrix.data) + index * step, matrix.stride, matrix.transposed};
}

}  // namespace

FakeBackend::FakeBackend(uint64_t seed, offload::FakeDevice::Runs runs) : device_(runs, seed) {
  std::iota(order_.begin(), order_.end(), uint8_t{0});
  if (seed == 0) return;
  for (size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[core::HashCombine(seed, i) % i]);
}

void FakeBackend::Gemm(offload::Queue queue, const GemmJob& job) {
  CHECK(job.a.type == ValueType::kFloat32 && job.b.type == ValueType::kFloat32 && job.c.type == ValueType::kFloat32);
  device_.Launch(queue, [job] {
    for (int64_t i = 0; i < job.batch; ++i) {
      worker::Gemm(job.m, job.n, job.k, job.alpha, HostMatrix(job.a, i, job.a_step), HostMatrix(job.b, i, job.b_step),
                   job.beta, static_cast<float*>(job.c.data) + i * job.c_step, job.c.stride);
    }
  });
}

void FakeBackend::Launch(offload::Queue queue, const Kernel& kernel) {
  device_.Launch(queue, [this, kernel] {
    std::visit(
        [this](const auto& arguments) {
          for (int64_t index = 0; index < arguments.blocks(); ++index) {
            HostBlock block(index, order_.data());
            arguments.Run(block);
          }
        },
        kernel);
  });
}

}  // namespace causeway::worker
