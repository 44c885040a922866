#include "worker/device/cuda/matrix_products.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "spdlog/spdlog.h"

namespace causeway::worker {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr int kMostProposed = 8, kRuns = 3;
constexpr float kMostMeasuredMs = 1000;

cudaDataType_t TypeOf(ValueType type) { return type == ValueType::kFloat32 ? CUDA_R_32F : CUDA_R_16BF; }

// Memory that C reaches over, in bytes.
size_t ResultBytes(const GemmJob& job) {
  return static_cast<size_t>(((job.batch - 1) * job.c_step + job.m * job.c.stride) * BytesOf(job.c.type));
}

}  // namespace

absl::StatusOr<std::unique_ptr<MatrixProducts>> MatrixProducts::Make(offload::CudaDevice* device, const CublasLt* blas,
                                                                     bool times) {
  std::unique_ptr<MatrixProducts> products(new MatrixProducts(device, blas, times));
  if (!products->Done(blas->create(&products->handle_), "opening it")) return device->status();
  ASSIGN_OR_RETURN(products->workspace_, device->Allocate(kWorkspaceBytes));
  if (cudaEventCreate(&products->begin_) != cudaSuccess || cudaEventCreate(&products->end_) != cudaSuccess) {
    return absl::InternalError("CUDA: making events to time matrix products");
  }
  return products;
}

MatrixProducts::MatrixProducts(offload::CudaDevice* device, const CublasLt* blas, bool times)
    : device_(device),
      blas_(*blas),
      times_(times),
      choices_(ProductChoices::Shared(absl::StrCat(device->name(), ", cuBLASLt ", blas->version()))) {}

MatrixProducts::~MatrixProducts() {
  Forget();
  for (const cudaEvent_t event : {begin_, end_}) {
    if (event != nullptr) cudaEventDestroy(event);
  }
  if (handle_ != nullptr) blas_.destroy(handle_);
}

void MatrixProducts::Forget() {
  for (const auto& [shape, product] : products_) {
    for (cublasLtMatrixLayout_t layout : {product.first, product.second, product.result}) blas_.layout_destroy(layout);
    blas_.desc_destroy(product.product);
  }
  products_.clear();
}

void MatrixProducts::SetChoices(const std::map<std::string, std::string>& choices) {
  choices_->Import(choices);
  Forget();
}

bool MatrixProducts::Done(cublasStatus_t status, const std::string& what) {
  if (status == CUBLAS_STATUS_SUCCESS) return device_->status().ok();
  device_->Fail(absl::InternalError(absl::StrCat("cuBLASLt: ", what, ": ", blas_.status_name(status))));
  return false;
}

void MatrixProducts::Queue(offload::Queue queue, const GemmJob& job) {
  if (!device_->status().ok()) return;
  CHECK(job.a.type == job.b.type);
  const auto stream = static_cast<cudaStream_t>(device_->StreamOf(queue));
  const ProductShape shape = ProductShape::Of(job);
  const auto [found, is_new] = products_.try_emplace(shape);
  Product& product = found->second;
  if (is_new && !(Describe(shape, product) && Choose(shape, job, stream, product))) return;
  const cublasStatus_t status = Multiply(job, stream, product, product.algorithm, job.c.data);
  if (status != CUBLAS_STATUS_SUCCESS) Done(status, absl::StrCat("a product of ", shape.Text()));
}

cublasStatus_t MatrixProducts::Multiply(const GemmJob& job, cudaStream_t stream, const Product& product,
                                        const cublasLtMatmulAlgo_t& algorithm, void* to) {
  return blas_.matmul(handle_, product.product, &job.alpha, job.b.data, product.first, job.a.data, product.second,
                      &job.beta, job.addend == nullptr ? job.c.data : job.addend, product.result, to, product.result,
                      &algorithm, workspace_, kWorkspaceBytes, stream);
}

// ---- Descriptions ----

bool MatrixProducts::Describe(const ProductShape& shape, Product& product) {
  if (!Done(blas_.desc_create(&product.product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing a product")) return false;
  const cublasOperation_t of_a = shape.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t of_b = shape.b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  blas_.desc_set(product.product, CUBLASLT_MATMUL_DESC_TRANSA, &of_b, sizeof(of_b));
  blas_.desc_set(product.product, CUBLASLT_MATMUL_DESC_TRANSB, &of_a, sizeof(of_a));
  const auto layout = [&](cublasLtMatrixLayout_t& made, const ProductShape::Operand& operand, int64_t rows,
                          int64_t columns) {
    if (operand.transposed) std::swap(rows, columns);
    blas_.layout_create(&made, TypeOf(operand.type), static_cast<uint64_t>(columns), static_cast<uint64_t>(rows),
                        operand.stride);
    const auto batch = static_cast<int32_t>(shape.batch);
    blas_.layout_set(made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof(batch));
    blas_.layout_set(made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &operand.step, sizeof(operand.step));
  };
  layout(product.first, shape.b, shape.k, shape.n);
  layout(product.second, shape.a, shape.m, shape.k);
  layout(product.result, shape.c, shape.m, shape.n);
  return true;
}

// ---- Algorithms ----

bool MatrixProducts::Known(const ProductShape& shape, Product& product) const {
  const std::optional<std::string> bytes = choices_->Find(shape);
  cublasLtMatmulAlgo_t algorithm;
  if (!bytes || bytes->size() != sizeof(algorithm)) return false;
  std::memcpy(&algorithm, bytes->data(), sizeof(algorithm));
  cublasLtMatmulHeuristicResult_t result = {};
  if (blas_.algo_check(handle_, product.product, product.first, product.second, product.result, product.result,
                       &algorithm, &result) != CUBLAS_STATUS_SUCCESS ||
      result.workspaceSize > kWorkspaceBytes) {
    return false;
  }
  product.algorithm = algorithm;
  return true;
}

std::vector<cublasLtMatmulAlgo_t> MatrixProducts::Proposed(const ProductShape& shape, const Product& product) {
  cublasLtMatmulPreference_t preference = nullptr;
  blas_.preference_create(&preference);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    blas_.preference_set(preference, attribute, &value, sizeof(value));
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kWorkspaceBytes});
  // Parts of split sums are float32, too.
  const uint32_t in_result = shape.c.type == ValueType::kFloat32 ? CUBLASLT_REDUCTION_SCHEME_INPLACE : 0;
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE} | in_result);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<uint32_t>(shape.b.alignment));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<uint32_t>(shape.a.alignment));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<uint32_t>(shape.addend_alignment));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<uint32_t>(shape.c.alignment));
  cublasLtMatmulHeuristicResult_t results[kMostProposed] = {};
  int count = 0;
  const cublasStatus_t status = blas_.heuristic(handle_, product.product, product.first, product.second, product.result,
                                                product.result, preference, kMostProposed, results, &count);
  blas_.preference_destroy(preference);
  std::vector<cublasLtMatmulAlgo_t> proposed;
  for (int i = 0; i < count && status == CUBLAS_STATUS_SUCCESS; ++i) {
    if (results[i].state == CUBLAS_STATUS_SUCCESS) proposed.push_back(results[i].algo);
  }
  if (proposed.empty()) {
    Done(status == CUBLAS_STATUS_SUCCESS ? CUBLAS_STATUS_NOT_SUPPORTED : status,
         absl::StrCat("choosing a product of ", shape.Text()));
  }
  return proposed;
}

std::vector<float> MatrixProducts::Times(const GemmJob& job, cudaStream_t stream, const Product& product,
                                         const cublasLtMatmulAlgo_t& algorithm, void* to) {
  std::vector<float> times;
  if (Multiply(job, stream, product, algorithm, to) != CUBLAS_STATUS_SUCCESS) return {};  // loads its code
  for (int run = 0; run < kRuns; ++run) {
    float ms = 0;
    if (cudaEventRecord(begin_, stream) != cudaSuccess ||
        Multiply(job, stream, product, algorithm, to) != CUBLAS_STATUS_SUCCESS ||
        cudaEventRecord(end_, stream) != cudaSuccess || cudaEventSynchronize(end_) != cudaSuccess ||
        cudaEventElapsedTime(&ms, begin_, end_) != cudaSuccess) {
      return {};
    }
    times.push_back(ms);
    measured_ms_ += ms;
  }
  measured_ms_ += times.front();  // of the first, untimed run
  return times;
}

bool MatrixProducts::Choose(const ProductShape& shape, const GemmJob& job, cudaStream_t stream, Product& product) {
  if (times_ && Known(shape, product)) return true;
  const std::vector<cublasLtMatmulAlgo_t> proposed = Proposed(shape, product);
  if (proposed.empty()) return false;
  product.algorithm = proposed.front();
  if (!times_) return true;
  std::vector<std::vector<float>> times(proposed.size());
  const bool measures = proposed.size() > 1 && measured_ms_ < kMostMeasuredMs;
  void* scratch = nullptr;
  if (measures && shape.in_place) {
    if (const auto memory = device_->Allocate(ResultBytes(job)); memory.ok()) scratch = *memory;
  }
  void* const to = shape.in_place ? scratch : job.c.data;
  for (size_t i = 0; i < proposed.size() && measures && to != nullptr && measured_ms_ < kMostMeasuredMs; ++i) {
    times[i] = Times(job, stream, product, proposed[i], to);
  }
  if (scratch != nullptr) device_->Free(scratch);
  const size_t best = Fastest(times);
  product.algorithm = proposed[best];
  choices_->Set(shape, std::string(reinterpret_cast<const char*>(&product.algorithm), sizeof(product.algorithm)));
  spdlog::debug("product of {}: algorithm {} of {}, {:.3f} ms, {:.0f} ms measured so far", shape.Text(), best,
                proposed.size(), times[best].empty() ? 0.0f : *std::ranges::min_element(times[best]), measured_ms_);
  return device_->status().ok();
}

}  // namespace causeway::worker
