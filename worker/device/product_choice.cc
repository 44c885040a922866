#include "worker/device/product_choice.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace causeway::worker {
namespace {

constexpr absl::string_view kOf = "products.of", kProduct = "product.";

ProductShape::Operand OperandOf(const DeviceMatrix& matrix, int64_t step) {
  const int64_t bytes = BytesOf(matrix.type);
  return {.stride = matrix.stride,
          .step = step,
          .alignment = AlignmentOf(matrix.data, matrix.stride * bytes, step * bytes),
          .transposed = matrix.transposed,
          .type = matrix.type};
}

std::string TextOf(const ProductShape::Operand& operand) {
  return absl::StrCat(operand.type == ValueType::kFloat32 ? "f32" : "bf16", operand.transposed ? "t" : "", ",",
                      operand.stride, ",", operand.step, ",", operand.alignment);
}

}  // namespace

int64_t AlignmentOf(const void* data, int64_t stride_bytes, int64_t step_bytes) {
  constexpr int64_t kMost = 256;
  const int64_t bits = static_cast<int64_t>(reinterpret_cast<uintptr_t>(data)) | stride_bytes | step_bytes | kMost;
  return bits & -bits;
}

ProductShape ProductShape::Of(const GemmJob& job) {
  const bool adds = job.beta != 0, in_place = adds && job.addend == nullptr;
  const int64_t bytes = BytesOf(job.c.type);
  return {.m = job.m,
          .n = job.n,
          .k = job.k,
          .batch = job.batch,
          .a = OperandOf(job.a, job.a_step),
          .b = OperandOf(job.b, job.b_step),
          .c = OperandOf(job.c, job.c_step),
          .adds = adds,
          .in_place = in_place,
          .addend_alignment =
              AlignmentOf(job.addend == nullptr ? job.c.data : job.addend, job.c.stride * bytes, job.c_step * bytes)};
}

std::string ProductShape::Text() const {
  return absl::StrCat(m, "x", n, "x", k, "x", batch, " ", TextOf(a), " ", TextOf(b), " ", TextOf(c), " ",
                      in_place ? "in place"
                      : adds   ? "adds"
                               : "sets",
                      " ", addend_alignment);
}

size_t Fastest(std::span<const std::vector<float>> times_ms) {
  constexpr float kShare = 0.98f;
  size_t best = 0;
  float best_ms = 0;
  bool any = false;
  for (size_t i = 0; i < times_ms.size(); ++i) {
    if (times_ms[i].empty()) continue;
    const float ms = *std::ranges::min_element(times_ms[i]);
    if (any && ms >= kShare * best_ms) continue;
    best = i;
    best_ms = ms;
    any = true;
  }
  return best;
}

std::shared_ptr<ProductChoices> ProductChoices::Shared(const std::string& of) {
  static core::Mutex mutex;
  static std::map<std::string, std::shared_ptr<ProductChoices>> all;
  core::MutexLock lock(mutex);
  std::shared_ptr<ProductChoices>& choices = all[of];
  if (choices == nullptr) choices = std::make_shared<ProductChoices>(of);
  return choices;
}

std::optional<std::string> ProductChoices::Find(const ProductShape& shape) const {
  core::MutexLock lock(mutex_);
  const auto found = algorithms_.find(shape.Text());
  return found == algorithms_.end() ? std::nullopt : std::optional(found->second);
}

void ProductChoices::Set(const ProductShape& shape, const std::string& algorithm) {
  core::MutexLock lock(mutex_);
  algorithms_[shape.Text()] = algorithm;
}

std::map<std::string, std::string> ProductChoices::Export() const {
  core::MutexLock lock(mutex_);
  std::map<std::string, std::string> exported;
  for (const auto& [text, algorithm] : algorithms_) {
    exported[absl::StrCat(kProduct, text)] = absl::BytesToHexString(algorithm);
  }
  if (!exported.empty()) exported[std::string(kOf)] = of_;
  return exported;
}

void ProductChoices::Import(const std::map<std::string, std::string>& exported) {
  const auto of = exported.find(std::string(kOf));
  if (of == exported.end() || of->second != of_) return;
  core::MutexLock lock(mutex_);
  for (const auto& [key, value] : exported) {
    std::string algorithm;
    if (!absl::StartsWith(key, kProduct)) continue;
    if (std::ranges::all_of(value, absl::ascii_isxdigit)) algorithm = absl::HexStringToBytes(value);
    if (!algorithm.empty()) algorithms_[key.substr(kProduct.size())] = algorithm;
  }
}

}  // namespace causeway::worker
