#include "core/fragment_map.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/check.h"
#include "core/run_config.h"

namespace causeway::core {
namespace {

std::vector<std::vector<int>> AssignBalanced(const Manifest& manifest, int num_fragments) {
  std::vector<int> by_size;
  for (size_t i = 0; i < manifest.size(); ++i) {
    if (manifest[i].synced()) by_size.push_back(static_cast<int>(i));
  }
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
    if (!tensor.synced()) continue;
    layers = std::max(layers, tensor.layer + 1);
    has_tensor_of_no_layer |= tensor.layer == kNoLayer;
  }
  const bool own_fragment = has_tensor_of_no_layer && num_fragments > 1;
  const int for_layers = num_fragments - (own_fragment ? 1 : 0);
  std::vector<std::vector<int>> tensors(num_fragments);
  for (size_t i = 0; i < manifest.size(); ++i) {
    if (!manifest[i].synced()) continue;
    const int64_t layer = manifest[i].layer;
    int64_t fragment = num_fragments - 1;
    if (layer != kNoLayer) {
      fragment = assignment == FragmentAssignment::kStrided ? layer % for_layers : layer * for_layers / layers;
    }
    tensors[fragment].push_back(static_cast<int>(i));
  }
  return tensors;
}

// The fragment with the longest prefix of this name; −1: none has one.
int FragmentOfPrefix(const std::string& name, const std::vector<std::vector<std::string>>& prefixes_of_fragment) {
  int fragment = -1;
  size_t longest = 0;
  for (size_t p = 0; p < prefixes_of_fragment.size(); ++p) {
    for (const std::string& prefix : prefixes_of_fragment[p]) {
      if (!name.starts_with(prefix) || (fragment >= 0 && prefix.size() <= longest)) continue;
      fragment = static_cast<int>(p);
      longest = prefix.size();
    }
  }
  return fragment;
}

absl::StatusOr<FragmentMap> BuildFromPrefixes(const Manifest& manifest,
                                              const std::vector<std::vector<std::string>>& prefixes_of_fragment) {
  std::vector<std::vector<int>> tensors(prefixes_of_fragment.size());
  for (size_t i = 0; i < manifest.size(); ++i) {
    if (!manifest[i].synced()) continue;
    const int fragment = FragmentOfPrefix(manifest[i].name, prefixes_of_fragment);
    if (fragment < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("expected a prefix of tensor ", manifest[i].name, " in sync.fragments, got none"));
    }
    tensors[fragment].push_back(static_cast<int>(i));
  }
  for (size_t p = 0; p < tensors.size(); ++p) {
    if (!tensors[p].empty()) continue;
    return absl::InvalidArgumentError(absl::StrCat("expected a tensor in each of sync.fragments, got none in fragment ",
                                                   p, " by the prefixes [",
                                                   absl::StrJoin(prefixes_of_fragment[p], ", "), "]"));
  }
  return FragmentMap(manifest, tensors);
}

// Each fragment in `parts` runs of units: one ends with the unit that brings it to its share of the values.
absl::StatusOr<FragmentMap> Divide(const FragmentMap& map, int parts) {
  std::vector<std::vector<TensorPart>> divided;
  for (const Fragment& fragment : map.fragments()) {
    if (fragment.units < parts) {
      return absl::InvalidArgumentError(absl::StrCat("sync.parts: expected at most ", fragment.units,
                                                     ", the units of 4096 values that fragment ", fragment.id,
                                                     " has, got ", parts));
    }
    int64_t taken = 0, units_left = fragment.units;
    int part = 0;
    divided.emplace_back();
    for (const TensorPlace& place : fragment.tensors) {
      int64_t begin = 0;  // unit of the tensor that the open run begins with
      for (int64_t unit = 0; unit < place.units(); ++unit) {
        taken += std::min(kUnitValues, place.values - unit * kUnitValues);
        --units_left;
        const bool has_share = taken * parts >= fragment.parameters * (part + 1);
        const bool ends = part + 1 < parts && (has_share || units_left == parts - part - 1);
        const bool last_of_tensor = unit + 1 == place.units();
        if (!ends && !last_of_tensor) continue;
        divided.back().push_back({place.tensor, begin, last_of_tensor ? 0 : unit + 1 - begin});
        begin = unit + 1;
        if (!ends) continue;
        divided.emplace_back();
        ++part;
      }
    }
  }
  return FragmentMap::FromParts(map.manifest(), divided);
}

}  // namespace

FragmentMap::FragmentMap(Manifest manifest, const std::vector<std::vector<int>>& tensors_of_fragment) {
  std::vector<std::vector<TensorPart>> parts;
  for (const std::vector<int>& tensors : tensors_of_fragment) {
    auto& list = parts.emplace_back();
    for (int tensor : tensors) list.push_back({tensor});
  }
  *this = FromParts(std::move(manifest), parts);
}

FragmentMap FragmentMap::FromParts(Manifest manifest, const std::vector<std::vector<TensorPart>>& parts_of_fragment) {
  FragmentMap map;
  map.manifest_ = std::move(manifest);
  for (const std::vector<TensorPart>& parts : parts_of_fragment) {
    Fragment fragment;
    fragment.id = static_cast<FragmentId>(map.fragments_.size());
    for (const TensorPart& part : parts) {
      const TensorSpec& tensor = map.manifest_[part.tensor];
      const int64_t begin = part.begin_unit * kUnitValues, left = tensor.NumValues() - begin;
      const int64_t values = part.num_units == 0 ? left : std::min(left, part.num_units * kUnitValues);
      fragment.tensors.push_back({part.tensor, fragment.units, values, tensor.kind, part.begin_unit});
      fragment.units += UnitsFor(values);
      fragment.parameters += values;
    }
    map.fragments_.push_back(std::move(fragment));
  }
  return map;
}

std::vector<std::vector<TensorPart>> FragmentMap::parts() const {
  std::vector<std::vector<TensorPart>> parts;
  for (const Fragment& fragment : fragments_) {
    auto& list = parts.emplace_back();
    for (const TensorPlace& place : fragment.tensors) {
      const int64_t begin = place.begin_unit * kUnitValues;
      const bool to_end = begin + place.values == manifest_[place.tensor].NumValues();
      list.push_back({place.tensor, place.begin_unit, to_end ? 0 : place.units()});
    }
  }
  return parts;
}

absl::StatusOr<FragmentMap> BuildFragmentMap(const Manifest& manifest, const SyncConfig& sync) {
  ASSIGN_OR_RETURN(const FragmentMap map, sync.fragments.empty()
                                              ? BuildFragmentMap(manifest, sync.num_fragments, sync.fragment_assignment)
                                              : BuildFromPrefixes(manifest, sync.fragments));
  if (sync.parts == 1) return map;
  return Divide(map, sync.parts);
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
