#include "worker/parallel/owned_parts.h"

#include "absl/strings/str_cat.h"

namespace causeway::worker {

std::vector<int64_t> OwnedParts::firsts() const {
  std::vector<int64_t> firsts;
  for (const TensorPart& part : parts) firsts.push_back(part.tensor < 0 ? -1 : part.first);
  return firsts;
}

OwnedParts OwnedPartsOf(const PartitionLayout& layout, const core::Manifest& manifest, int level, int rank) {
  OwnedParts owned;
  for (size_t group = 0; group < layout.groups().size(); ++group) {
    for (const TensorPart& part : layout.Within(group, layout.PartOf(group, level, rank))) {
      owned.parts.push_back(part);
      core::TensorSpec& spec = owned.manifest.emplace_back();
      if (part.tensor < 0) {
        spec.name = absl::StrCat("padding.", group);
      } else {
        const core::TensorSpec& whole = manifest[static_cast<size_t>(part.tensor)];
        spec = whole;
        spec.shape.assign(whole.shape.size() - 1, 1);  // the optimizer asks for the number of dimensions
      }
      spec.shape.push_back(part.count);
    }
  }
  return owned;
}

}  // namespace causeway::worker
