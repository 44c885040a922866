#include "worker/gpu/fake_backend.h"

#include <numeric>
#include <utility>

#include "core/check.h"
#include "core/random.h"
#include "worker/train/gemm.h"

namespace causeway::worker {
namespace {

Matrix HostMatrix(const DeviceMatrix& matrix) {
  return {static_cast<const float*>(matrix.data), matrix.stride, matrix.transposed};
}

// Where q, k and v begin in the rows that hold them side by side.
struct Packed {
  Packed(const AttentionShape& shape, void* rows)
      : q(static_cast<float*>(rows)), k(q + shape.heads * shape.head_size), v(k + shape.kv_heads * shape.head_size) {}
  float *q, *k, *v;
};

AttentionShape WithStride(AttentionShape shape) {
  shape.q_stride = shape.kv_stride = (shape.heads + 2 * shape.kv_heads) * shape.head_size;
  return shape;
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
    worker::Gemm(job.m, job.n, job.k, 1, HostMatrix(job.a), HostMatrix(job.b), job.beta,
                 static_cast<float*>(job.c.data), job.c.stride);
  });
}

int64_t FakeBackend::AttentionSavedBytes(const AttentionShape& shape) const {
  return shape.probabilities() * static_cast<int64_t>(sizeof(float));
}

int64_t FakeBackend::AttentionScratchBytes(const AttentionShape& shape) const {
  return shape.sequence * shape.sequence * static_cast<int64_t>(sizeof(float));
}

void FakeBackend::Attention(offload::Queue queue, const AttentionJob& job) {
  device_.Launch(queue, [job] {
    const Packed rows(job.shape, job.qkv);
    worker::Attention(WithStride(job.shape), rows.q, rows.k, rows.v, static_cast<float*>(job.saved),
                      static_cast<float*>(job.out));
  });
}

void FakeBackend::AttentionBackward(offload::Queue queue, const AttentionJob& job) {
  device_.Launch(queue, [job] {
    const Packed rows(job.shape, job.qkv), gradients(job.shape, job.dqkv);
    AttentionBackwardInput(WithStride(job.shape), static_cast<const float*>(job.dout), rows.q, rows.k, rows.v,
                           static_cast<const float*>(job.saved), static_cast<float*>(job.scratch), gradients.q,
                           gradients.k, gradients.v);
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
