// What a model consists of, as a site declares it when it joins. All sites of a run must declare the same.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/dtype.h"

namespace causeway::core {

enum class TensorKind : uint8_t { kMatrix = 1, kEmbedding = 2, kNorm = 3, kHead = 4, kExpert = 5 };

const char* TensorKindName(TensorKind kind);  // "matrix", "embedding", "norm", "head", "expert"

inline constexpr int kNoLayer = -1;

struct TensorSpec {
  std::string name;            // unique in the manifest
  std::vector<int64_t> shape;  // row-major, float32
  TensorKind kind = TensorKind::kMatrix;
  int layer = kNoLayer;  // 0-based; kNoLayer for embeddings, head and final norm
  DType dtype = DType::kFloat32;
  std::string alias_of;
  bool frozen = false;
  uint64_t values_digest = 0;

  bool synced() const { return !frozen && alias_of.empty(); }
  int64_t NumValues() const;
  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

using Manifest = std::vector<TensorSpec>;

int64_t NumParameters(const Manifest& manifest);

// Names, shapes and sizes that a coordinator accepts from anyone: unique names, positive dimensions, within limits.h.
absl::Status ValidateManifest(const Manifest& manifest);

// OK, or INVALID_ARGUMENT that names the first difference: "tensor 3: expected wq [128,128], got wq [128,64]".
absl::Status CompareManifests(const Manifest& expected, const Manifest& got);

std::string Describe(const TensorSpec& tensor);  // "model.norm.weight [128] norm"

}  // namespace causeway::core
