#include "tests/worker/device/fake_backend.h"

#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/random.h"
#include "worker/device/blas_kernels.h"
#include "worker/device/product_attention.h"

namespace causeway::worker {
namespace {

int64_t Rows(const DeviceMatrix& matrix, int64_t rows, int64_t columns) { return matrix.transposed ? columns : rows; }
int64_t Columns(const DeviceMatrix& matrix, int64_t rows, int64_t columns) {
  return matrix.transposed ? rows : columns;
}

// The matrix that begins at value `first`, as float32: in place, or a copy of it in `wide`.
Matrix Widened(const DeviceMatrix& matrix, int64_t first, int64_t rows, int64_t columns, std::vector<float>& wide) {
  if (matrix.type == ValueType::kFloat32) {
    return {static_cast<const float*>(matrix.data) + first, matrix.stride, matrix.transposed};
  }
  const auto* const from = static_cast<const Bfloat16*>(matrix.data) + first;
  const int64_t lines = Rows(matrix, rows, columns), width = Columns(matrix, rows, columns);
  wide.resize(lines * width);
  for (int64_t line = 0; line < lines; ++line) {
    for (int64_t i = 0; i < width; ++i) wide[line * width + i] = Load(from[line * matrix.stride + i]);
  }
  return {wide.data(), width, matrix.transposed};
}

// Brings the addend of product `i` to where the result will be, for BLAS has one matrix for both.
void PlaceAddend(const GemmJob& job, int64_t i) {
  if (job.addend == nullptr) return;
  const int64_t bytes = BytesOf(job.c.type);
  for (int64_t line = 0; line < job.m; ++line) {
    const int64_t first = (i * job.c_step + line * job.c.stride) * bytes;
    std::memcpy(static_cast<char*>(job.c.data) + first, static_cast<const char*>(job.addend) + first, job.n * bytes);
  }
}

void Multiply(const GemmJob& job) {
  std::vector<float> a, b, c;
  for (int64_t i = 0; i < job.batch; ++i) {
    const Matrix left = Widened(job.a, i * job.a_step, job.m, job.k, a);
    const Matrix right = Widened(job.b, i * job.b_step, job.k, job.n, b);
    PlaceAddend(job, i);
    if (job.c.type == ValueType::kFloat32) {
      Gemm(job.m, job.n, job.k, job.alpha, left, right, job.beta, static_cast<float*>(job.c.data) + i * job.c_step,
           job.c.stride);
      continue;
    }
    Widened(job.c, i * job.c_step, job.m, job.n, c);
    Gemm(job.m, job.n, job.k, job.alpha, left, right, job.beta, c.data(), job.n);
    auto* const to = static_cast<Bfloat16*>(job.c.data) + i * job.c_step;
    for (int64_t line = 0; line < job.m; ++line) {
      for (int64_t j = 0; j < job.n; ++j) Store(c[line * job.n + j], to[line * job.c.stride + j]);
    }
  }
}

}  // namespace

FakeBackend::FakeBackend(uint64_t seed, offload::FakeDevice::Runs runs) : device_(runs, seed) {
  std::iota(order_.begin(), order_.end(), uint8_t{0});
  if (seed == 0) return;
  for (size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[core::HashCombine(seed, i) % i]);
}

void FakeBackend::Gemm(offload::Queue queue, const GemmJob& job) {
  device_.Launch(queue, [job] { Multiply(job); });
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

bool FakeBackend::Encodes(core::CodecId codec) const { return codec != core::CodecId::kOnebitAdamSign; }

void FakeBackend::Encode(offload::Queue queue, core::CodecId codec, const codecs::EncodeJob& job,
                         unsigned long long* bad_block) {
  device_.Launch(queue, [codec, job, bad_block] {
    std::vector<float> difference(job.values, job.values + job.count);
    for (int64_t i = 0; i < job.count && job.subtract != nullptr; ++i) difference[i] -= job.subtract[i];
    codecs::EncodeJob on_host = job;
    on_host.values = difference.data();
    on_host.subtract = nullptr;
    if (!codecs::GetCodec(codec).Encode(on_host)) *bad_block = 0;
  });
}

absl::StatusOr<std::unique_ptr<DeviceAttention>> FakeBackend::MakeAttention(const AttentionShape& shape,
                                                                            ValueType type) {
  return MakeProductAttention(shape, type, this);
}

}  // namespace causeway::worker
