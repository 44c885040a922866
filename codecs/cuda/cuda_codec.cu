#include "absl/strings/str_cat.h"
#include "codecs/cuda/cuda_codec.h"
#include "codecs/cuda/topk_kernel.h"
#include "codecs/cuda/unit_kernels.h"
#include "core/check.h"
#include "core/layout.h"

namespace causeway::codecs::cuda {
namespace {

struct Kernels {
  void (*encode)(EncodeTask) = nullptr;
  void (*decode)(DecodeTask) = nullptr;
  bool rotates = false;
};

template <class K>
Kernels KernelsOf(bool rotates = false) {
  return {EncodeUnits<K>, DecodeUnits<K>, rotates};
}

template <core::CodecId kId>
Kernels TopkKernels() {
  return {EncodeTopk<core::TopkEntries(kId)>, nullptr};
}

Kernels KernelsFor(core::CodecId id) {
  using core::CodecId;
  switch (id) {
    case CodecId::kFloat32: return KernelsOf<simd::Float32Kernel<Lanes>>();
    case CodecId::kBfloat16: return KernelsOf<simd::Bfloat16Kernel<Lanes>>();
    case CodecId::kInt8: return KernelsOf<simd::Int8Kernel<Lanes>>();
    case CodecId::kInt4: return KernelsOf<simd::Int4Kernel<Lanes>>();
    case CodecId::kE3m0: return KernelsOf<simd::E3m0Kernel<Lanes>>();
    case CodecId::kSign: return KernelsOf<simd::SignKernel<Lanes, simd::kMaxExponent>>();
    case CodecId::kRotatedSign: return KernelsOf<simd::SignKernel<Lanes, simd::kMaxRotatedExponent>>(true);
    case CodecId::kRotatedLm2: return KernelsOf<simd::LloydMax2Kernel<Lanes>>(true);
    case CodecId::kRotatedLm4: return KernelsOf<simd::LloydMax4Kernel<Lanes>>(true);
    case CodecId::kTopk32: return TopkKernels<CodecId::kTopk32>();
    case CodecId::kTopk: return TopkKernels<CodecId::kTopk>();
    case CodecId::kTopk128: return TopkKernels<CodecId::kTopk128>();
    case CodecId::kTopk256: return TopkKernels<CodecId::kTopk256>();
    case CodecId::kTopk512: return TopkKernels<CodecId::kTopk512>();
    case CodecId::kOnebitAdamSign: return {};
  }
  return {};
}

absl::Status NoKernel(core::CodecId id) {
  return absl::UnimplementedError(absl::StrCat("codec ", core::CodecName(id), " has no CUDA version"));
}

// A misaligned access on the device would cost the process its context.
void CheckPointers(const Kernels& kernels, bool rotate, const uint8_t* scales, const uint8_t* codes) {
  constexpr uintptr_t kAlignment = sizeof(uint4);
  CHECK(kernels.rotates || !rotate);
  CHECK(reinterpret_cast<uintptr_t>(scales) % kAlignment == 0 && reinterpret_cast<uintptr_t>(codes) % kAlignment == 0);
}

absl::Status LaunchStatus(const char* what) {
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("CUDA ", what, ": ", cudaGetErrorString(error)));
}

unsigned UnitsOf(int64_t count) { return static_cast<unsigned>(core::UnitsFor(count)); }

}  // namespace

bool Supports(core::CodecId id) { return KernelsFor(id).encode != nullptr; }

absl::Status Encode(core::CodecId id, const EncodeJob& job, unsigned long long* bad_block, cudaStream_t stream) {
  const Kernels kernels = KernelsFor(id);
  if (kernels.encode == nullptr) return NoKernel(id);
  CheckPointers(kernels, job.rotation.has_value(), job.scales, job.codes);
  CHECK((job.residual == nullptr) == (job.beta == 0) && (job.residual == nullptr) == (job.next_residual == nullptr));
  CHECK(bad_block != nullptr || job.saturate);
  if (job.count == 0) return absl::OkStatus();
  const bool rotate = job.rotation.has_value();
  const EncodeTask task = {.job = job,
                           .blocks = core::BlocksFor(job.count),
                           .rotate = rotate,
                           .rotation = job.rotation.value_or(Rotation{}),
                           .whole_blocks = kernels.rotates,
                           .in_domain = kernels.rotates && !rotate,
                           .bad_block = bad_block};
  kernels.encode<<<UnitsOf(job.count), kThreads, 0, stream>>>(task);
  return LaunchStatus("encode");
}

absl::Status Decode(core::CodecId id, const DecodeJob& job, cudaStream_t stream) {
  const Kernels kernels = KernelsFor(id);
  if (kernels.decode == nullptr) return NoKernel(id);
  CheckPointers(kernels, job.rotation.has_value(), job.scales, job.codes);
  if (job.count == 0) return absl::OkStatus();
  const bool rotate = job.rotation.has_value();
  const DecodeTask task = {.job = job,
                           .blocks = core::BlocksFor(job.count),
                           .rotate = rotate,
                           .rotation = job.rotation.value_or(Rotation{}),
                           .whole_blocks = kernels.rotates && !rotate,
                           .add = job.add.has_value(),
                           .weight = job.add.value_or(0.0f)};
  kernels.decode<<<UnitsOf(job.count), kThreads, 0, stream>>>(task);
  return LaunchStatus("decode");
}

}  // namespace causeway::codecs::cuda
