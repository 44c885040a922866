#include "core/manifest.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/check.h"
#include "core/limits.h"

namespace causeway::core {

const char* TensorKindName(TensorKind kind) {
  switch (kind) {
    case TensorKind::kMatrix: return "matrix";
    case TensorKind::kEmbedding: return "embedding";
    case TensorKind::kNorm: return "norm";
    case TensorKind::kHead: return "head";
    case TensorKind::kExpert: return "expert";
  }
  return "unknown";
}

int64_t TensorSpec::NumValues() const {
  int64_t values = 1;
  for (int64_t extent : shape) values *= extent;
  return values;
}

int64_t NumParameters(const Manifest& manifest) {
  int64_t total = 0;
  for (const TensorSpec& tensor : manifest) total += tensor.NumValues();
  return total;
}

std::string Describe(const TensorSpec& tensor) {
  std::string text =
      absl::StrCat(tensor.name, " [", absl::StrJoin(tensor.shape, ","), "] ", TensorKindName(tensor.kind));
  if (tensor.layer != kNoLayer) absl::StrAppend(&text, " of layer ", tensor.layer);
  return text;
}

absl::Status ValidateManifest(const Manifest& manifest) {
  if (manifest.empty() || manifest.size() > kMaxTensors) {
    return absl::InvalidArgumentError(
        absl::StrCat("manifest: expected 1 to ", kMaxTensors, " tensors, got ", manifest.size()));
  }
  std::set<std::string> names;
  int64_t total = 0;
  for (const TensorSpec& tensor : manifest) {
    if (tensor.name.empty() || tensor.name.size() > kMaxTensorNameBytes) {
      return absl::InvalidArgumentError(absl::StrCat("manifest: expected tensor names of 1 to ", kMaxTensorNameBytes,
                                                     " bytes, got one of ", tensor.name.size()));
    }
    if (!names.insert(tensor.name).second) {
      return absl::InvalidArgumentError(absl::StrCat("manifest: tensor ", tensor.name, " is listed twice"));
    }
    int64_t values = 1;
    for (int64_t extent : tensor.shape) {
      if (extent < 1 || values > kMaxParameters / extent) {
        return absl::InvalidArgumentError(absl::StrCat("manifest: tensor ", Describe(tensor),
                                                       ": expected positive dimensions and at most ", kMaxParameters,
                                                       " values"));
      }
      values *= extent;
    }
    total += values;
    if (total > kMaxParameters) {
      return absl::InvalidArgumentError(absl::StrCat("manifest: expected at most ", kMaxParameters, " parameters"));
    }
    if (tensor.layer < kNoLayer || tensor.layer >= static_cast<int>(kMaxTensors)) {
      return absl::InvalidArgumentError(absl::StrCat("manifest: tensor ", tensor.name, ": layer ", tensor.layer,
                                                     " is not in 0 to ", kMaxTensors - 1));
    }
  }
  return absl::OkStatus();
}

absl::Status CompareManifests(const Manifest& expected, const Manifest& got) {
  const size_t common = std::min(expected.size(), got.size());
  for (size_t i = 0; i < common; ++i) {
    if (expected[i] == got[i]) continue;
    return absl::InvalidArgumentError(absl::StrCat("the model differs from the run's at tensor ", i, ": expected ",
                                                   Describe(expected[i]), ", got ", Describe(got[i])));
  }
  if (expected.size() == got.size()) return absl::OkStatus();
  const bool missing = expected.size() > got.size();
  return absl::InvalidArgumentError(absl::StrCat(
      "the model differs from the run's: expected ", expected.size(), " tensors, got ", got.size(), "; the first ",
      missing ? "missing" : "unexpected", " one is ", Describe(missing ? expected[common] : got[common])));
}

}  // namespace causeway::core
