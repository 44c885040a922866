#include "core/fragment_map.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "core/check.h"

namespace causeway::core {
namespace {

std::vector<std::vector<int>> AssignBalanced(const Manifest& manifest, int num_fragments) {
  std::vector<int> by_size(manifest.size());
  std::iota(by_size.begin(), by_size.end(), 0);
  std::stable_sort(by_size.begin(), by_size.end(),
                   [&](int a, int b) { return manifest[a].NumValues() > manifest[b].NumValues(); });
  std::vector<std::vector<int>> tensors(num_fragments);
  std::vector<int64_t> load(num_fragments, 0);
  for (int tensor : by_size) {
    const auto lightest = std::min_element(load.begin(), load.end()) - load.begin();
    tensors[lightest].push_back(tensor);
    load[lightest] += manifest[tensor].NumValues();
  }
  for (auto& list : tensors) std::sort(list.begin(), list.end());
  return tensors;
}

std::vector<std::vector<int>> AssignByLayer(const Manifest& manifest, int num_fragments,
                                            FragmentAssignment assignment) {
  int layers = 0;
  bool has_tensor_of_no_layer = false;
  for (const TensorSpec& tensor : manifest) {
    layers = std::max(layers, tensor.layer + 1);
    has_tensor_of_no_layer |= tensor.layer == kNoLayer;
  }
  const bool own_fragment = has_tensor_of_no_layer && num_fragments > 1;
  const int for_layers = num_fragments - (own_fragment ? 1 : 0);
  std::vector<std::vector<int>> tensors(num_fragments);
  for (size_t i = 0; i < manifest.size(); ++i) {
    const int64_t layer = manifest[i].layer;
    int64_t fragment = num_fragments - 1;
    if (layer != kNoLayer) {
      fragment = assignment == FragmentAssignment::kStrided ? layer % for_layers : layer * for_layers / layers;
    }
    tensors[fragment].push_back(static_cast<int>(i));
  }
  return tensors;
}

}  // namespace

FragmentMap::FragmentMap(Manifest manifest, const std::vector<std::vector<int>>& tensors_of_fragment)
    : manifest_(std::move(manifest)) {
  for (const std::vector<int>& tensors : tensors_of_fragment) {
    Fragment fragment;
    fragment.id = static_cast<FragmentId>(fragments_.size());
    for (int tensor : tensors) {
      const int64_t values = manifest_[tensor].NumValues();
      fragment.tensors.push_back({tensor, fragment.units, values, manifest_[tensor].kind});
      fragment.units += UnitsFor(values);
      fragment.parameters += values;
    }
    fragments_.push_back(std::move(fragment));
  }
}

absl::StatusOr<FragmentMap> BuildFragmentMap(const Manifest& manifest, int num_fragments,
                                             FragmentAssignment assignment) {
  CHECK(num_fragments >= 1);
  const auto tensors = assignment == FragmentAssignment::kBalanced ? AssignBalanced(manifest, num_fragments)
                                                                   : AssignByLayer(manifest, num_fragments, assignment);
  for (int p = 0; p < num_fragments; ++p) {
    if (!tensors[p].empty()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("sync.num_fragments: ", num_fragments, " fragments leave fragment ", p,
                     " empty with this model; expected fewer (one for each layer and one for embeddings and head)"));
  }
  return FragmentMap(manifest, tensors);
}

}  // namespace causeway::core
