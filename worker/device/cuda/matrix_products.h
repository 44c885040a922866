// Matrix products on a GPU, by cuBLASLt, for float32 or bfloat16 operands, with float32 sums.
//
//   a job ─► its shape ─► described once, its algorithm found or measured once ─► queued
//
// cuBLASLt proposes up to eight algorithms for a shape, with split sums among them, all in a fixed order; the fastest
// is taken. They are timed on the real operands when the shape first occurs; results go where the job's own will be,
// or, where the job adds to them, into scratch. If there is no memory for that, or a second has been spent, cuBLASLt's
// own first choice is taken. One owner thread.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "offload/cuda/cuda_device.h"
#include "worker/device/compute_backend.h"
#include "worker/device/cuda/cublas_lt.h"
#include "worker/device/product_choice.h"

namespace causeway::worker {

class MatrixProducts {
 public:
  // `device` and `blas` outlive it. If `times` is false, each first choice is taken, and none is exported.
  static absl::StatusOr<std::unique_ptr<MatrixProducts>> Make(offload::CudaDevice* device, const CublasLt* blas,
                                                              bool times);
  ~MatrixProducts();

  // Errors are the device's.
  void Queue(offload::Queue queue, const GemmJob& job);

  std::map<std::string, std::string> Choices() const {
    return times_ ? choices_->Export() : std::map<std::string, std::string>();
  }
  void SetChoices(const std::map<std::string, std::string>& choices);

 private:
  // cuBLASLt's matrices are column-major: a row-major one is its own transpose there, so that it computes Cᵀ = Bᵀ · Aᵀ.
  struct Product {
    cublasLtMatmulDesc_t product = nullptr;
    cublasLtMatrixLayout_t first = nullptr, second = nullptr, result = nullptr;
    cublasLtMatmulAlgo_t algorithm = {};
  };

  MatrixProducts(offload::CudaDevice* device, const CublasLt* blas, bool times);

  // Keeps the first error; false if there is one.
  bool Done(cublasStatus_t status, const std::string& what);
  bool Describe(const ProductShape& shape, Product& product);
  // False, with the device's error, if cuBLASLt has no algorithm.
  bool Choose(const ProductShape& shape, const GemmJob& job, cudaStream_t stream, Product& product);
  std::vector<cublasLtMatmulAlgo_t> Proposed(const ProductShape& shape, const Product& product);
  bool Known(const ProductShape& shape, Product& product) const;
  // The durations of several runs in ms, empty if one fails; `to` receives the products.
  std::vector<float> Times(const GemmJob& job, cudaStream_t stream, const Product& product,
                           const cublasLtMatmulAlgo_t& algorithm, void* to);
  cublasStatus_t Multiply(const GemmJob& job, cudaStream_t stream, const Product& product,
                          const cublasLtMatmulAlgo_t& algorithm, void* to);
  void Forget();

  offload::CudaDevice* const device_;
  const CublasLt& blas_;
  const bool times_;
  const std::shared_ptr<ProductChoices> choices_;
  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  float measured_ms_ = 0;
  std::map<ProductShape, Product> products_;
};

}  // namespace causeway::worker
