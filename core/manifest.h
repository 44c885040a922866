// The tensors of a model, as a site declares them when it joins. All sites of a run must declare the same.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/dtype.h"

namespace causeway::core {

// A buffer is not trained, such as a running statistic: its W is the mean of the sites' values, whatever the outer
// optimizer.
enum class TensorKind : uint8_t { kMatrix = 1, kEmbedding = 2, kNorm = 3, kHead = 4, kExpert = 5, kBuffer = 6 };

const char* TensorKindName(TensorKind kind);  // "matrix", "embedding", "norm", "head", "expert", "buffer"

inline constexpr int kNoLayer = -1;

struct TensorSpec {
  std::string name;            // unique in the manifest
  std::vector<int64_t> shape;  // row-major
  TensorKind kind = TensorKind::kMatrix;
  int layer = kNoLayer;           // 0-based; kNoLayer for embeddings, head and final norm
  DType dtype = DType::kFloat32;  // the parameter's type in its site's optimizer; sites of a run may differ
  std::string alias_of;           // the tensor to which it is tied, which crosses in its place; empty: none
  bool frozen = false;            // not trained, so it never crosses
  uint64_t values_digest = 0;     // frozen tensors: XXH3-64 of the values; 0 = not given

  int64_t NumValues() const;
  bool synced() const { return !frozen && alias_of.empty(); }  // whether it has a place in a fragment
  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

using Manifest = std::vector<TensorSpec>;

int64_t NumParameters(const Manifest& manifest);  // counts the synced tensors

// The offset of each tensor in one array of all values, back to back in the manifest's order; the last entry is the
// end.
std::vector<int64_t> FlatOffsets(const Manifest& manifest);

// Checks the requirements on any manifest: unique names, positive dimensions, sizes within limits.h; aliases only of
// existing tensors of the same shape; at least one synced tensor.
absl::Status ValidateManifest(const Manifest& manifest);

// Whether sites with these manifests can be in one run. Types may differ, and a digest that either side lacks is not
// compared. INVALID_ARGUMENT names the first difference: "tensor 3: expected wq [128,128], got wq [128,64]".
absl::Status CompareManifests(const Manifest& expected, const Manifest& got);

std::string Describe(const TensorSpec& tensor);  // "model.norm.weight [128] norm, frozen"

}  // namespace causeway::core
