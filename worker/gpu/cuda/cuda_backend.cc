#include "worker/gpu/cuda/cuda_backend.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "codecs/cuda/cuda_codec.h"
#include "core/check.h"
#include "offload/cuda/cuda_device.h"
#include "worker/gpu/cuda/choose_attention.h"
#include "worker/gpu/cuda/cublas_lt.h"
#include "worker/gpu/cuda/cuda_encode_backend.h"
#include "worker/gpu/cuda/launch_kernel.h"

namespace causeway::worker {
namespace {

using offload::Queue;

constexpr size_t kWorkspaceBytes = size_t{32} << 20;

cudaDataType_t TypeOf(ValueType type) { return type == ValueType::kFloat32 ? CUDA_R_32F : CUDA_R_16BF; }

class CudaBackend final : public ComputeBackend {
 public:
  CudaBackend(std::unique_ptr<offload::CudaDevice> device, const CublasLt* blas, CudaLibraries libraries)
      : device_(std::move(device)), blas_(*blas), libraries_(std::move(libraries)) {}
  ~CudaBackend() override;

  absl::Status Open();

  offload::Device& device() override { return *device_; }
  void Gemm(Queue queue, const GemmJob& job) override;
  void Launch(Queue queue, const Kernel& kernel) override;
  bool Encodes(core::CodecId codec) const override { return codecs::cuda::Supports(codec); }
  void Encode(Queue queue, core::CodecId codec, const codecs::EncodeJob& job, unsigned long long* bad_block) override;
  absl::StatusOr<std::unique_ptr<DeviceAttention>> MakeAttention(const AttentionShape& shape, ValueType type) override;

 private:
  // The choice of the algorithm depends on these.
  using Shape =
      std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, bool, bool, int64_t, bool, ValueType, ValueType>;

  cudaStream_t StreamOf(Queue queue) const { return static_cast<cudaStream_t>(device_->StreamOf(queue)); }
  // Keeps the first error; false if there is one.
  bool Done(cublasStatus_t result, absl::string_view what);

  std::unique_ptr<offload::CudaDevice> device_;
  const CublasLt& blas_;
  const CudaLibraries libraries_;
  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  std::map<Shape, cublasLtMatmulAlgo_t> algorithms_;
};

absl::Status CudaBackend::Open() {
  if (!Done(blas_.create(&handle_), "opening cuBLASLt")) return device_->status();
  ASSIGN_OR_RETURN(workspace_, device_->Allocate(kWorkspaceBytes));
  return device_->status();
}

CudaBackend::~CudaBackend() {
  if (handle_ != nullptr) blas_.destroy(handle_);
}

bool CudaBackend::Done(cublasStatus_t result, absl::string_view what) {
  if (result == CUBLAS_STATUS_SUCCESS) return device_->status().ok();
  device_->Fail(absl::InternalError(absl::StrCat("cuBLASLt: ", what, ": ", blas_.status_name(result))));
  return false;
}

void CudaBackend::Encode(Queue queue, core::CodecId codec, const codecs::EncodeJob& job,
                         unsigned long long* bad_block) {
  EncodeOn(*device_, queue, codec, job, bad_block);
}

// cuBLASLt's matrices are column-major: a row-major one is its own transpose there, so that it computes Cᵀ = Bᵀ · Aᵀ.
void CudaBackend::Gemm(Queue queue, const GemmJob& job) {
  if (!device_->status().ok()) return;
  CHECK(job.a.type == job.b.type);
  cublasLtMatmulDesc_t product = nullptr;
  if (!Done(blas_.desc_create(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing a product")) return;
  const cublasOperation_t of_a = job.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t of_b = job.b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  blas_.desc_set(product, CUBLASLT_MATMUL_DESC_TRANSA, &of_b, sizeof(of_b));
  blas_.desc_set(product, CUBLASLT_MATMUL_DESC_TRANSB, &of_a, sizeof(of_a));
  cublasLtMatrixLayout_t first = nullptr, second = nullptr, result = nullptr;
  const auto layout = [&](cublasLtMatrixLayout_t& made, const DeviceMatrix& matrix, int64_t rows, int64_t columns,
                          int64_t step) {
    blas_.layout_create(&made, TypeOf(matrix.type), static_cast<uint64_t>(rows), static_cast<uint64_t>(columns),
                        matrix.stride);
    const auto batch = static_cast<int32_t>(job.batch);
    blas_.layout_set(made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof(batch));
    blas_.layout_set(made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof(step));
  };
  layout(first, job.b, job.b.transposed ? job.k : job.n, job.b.transposed ? job.n : job.k, job.b_step);
  layout(second, job.a, job.a.transposed ? job.m : job.k, job.a.transposed ? job.k : job.m, job.a_step);
  layout(result, job.c, job.n, job.m, job.c_step);

  const Shape shape{job.m,
                    job.n,
                    job.k,
                    job.a.stride,
                    job.b.stride,
                    job.c.stride,
                    job.a.transposed,
                    job.b.transposed,
                    job.batch,
                    job.beta != 0,
                    job.a.type,
                    job.c.type};
  auto found = algorithms_.find(shape);
  if (found == algorithms_.end()) {
    cublasLtMatmulPreference_t preference = nullptr;
    blas_.preference_create(&preference);
    blas_.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspaceBytes,
                         sizeof(kWorkspaceBytes));
    cublasLtMatmulHeuristicResult_t best = {};
    int count = 0;
    const cublasStatus_t chosen =
        blas_.heuristic(handle_, product, first, second, result, result, preference, 1, &best, &count);
    blas_.preference_destroy(preference);
    const std::string what = absl::StrCat("choosing a product of ", job.m, " × ", job.k, " by ", job.k, " × ", job.n);
    if (Done(count > 0 ? chosen : CUBLAS_STATUS_NOT_SUPPORTED, what)) {
      found = algorithms_.emplace(shape, best.algo).first;
    }
  }
  if (found != algorithms_.end()) {
    Done(blas_.matmul(handle_, product, &job.alpha, job.b.data, first, job.a.data, second, &job.beta,
                      job.addend == nullptr ? job.c.data : job.addend, result, job.c.data, result, &found->second,
                      workspace_, kWorkspaceBytes, StreamOf(queue)),
         absl::StrCat("a product of ", job.m, " × ", job.k, " by ", job.k, " × ", job.n));
  }
  for (cublasLtMatrixLayout_t made : {first, second, result}) blas_.layout_destroy(made);
  blas_.desc_destroy(product);
}

void CudaBackend::Launch(Queue queue, const Kernel& kernel) {
  if (!device_->status().ok()) return;
  if (!LaunchValueKernel(kernel, StreamOf(queue))) LaunchModelKernel(kernel, StreamOf(queue));
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) {
    device_->Fail(absl::InternalError(absl::StrCat("CUDA: launching a kernel: ", cudaGetErrorString(error))));
  }
}

absl::StatusOr<std::unique_ptr<DeviceAttention>> CudaBackend::MakeAttention(const AttentionShape& shape,
                                                                            ValueType type) {
  return ChooseAttention(
      {.kind = libraries_.attention, .shape = shape, .type = type, .library_directory = libraries_.directory},
      device_.get(), this);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ComputeBackend>> MakeCudaBackend(int index, const CudaLibraries& libraries) {
  ASSIGN_OR_RETURN(std::unique_ptr<offload::CudaDevice> device, offload::MakeCudaDevice(index));
  ASSIGN_OR_RETURN(const CublasLt* const blas, LoadCublasLt(libraries.directory));
  auto backend = std::make_unique<CudaBackend>(std::move(device), blas, libraries);
  RETURN_IF_ERROR(backend->Open());
  return backend;
}

}  // namespace causeway::worker
