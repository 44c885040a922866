#include "core/manifest.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/limits.h"
#include "core/text.h"

namespace causeway::core {
namespace {

absl::Status CheckAliases(const Manifest& manifest, const std::map<std::string, size_t>& index) {
  for (const TensorSpec& tensor : manifest) {
    if (tensor.alias_of.empty()) continue;
    const auto tied = index.find(tensor.alias_of);
    if (tied == index.end() || !manifest[tied->second].alias_of.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "manifest: tensor ", tensor.name, ": expected the name of a tensor to be tied to, got ",
          Shown(tensor.alias_of), tied == index.end() ? ", which is not listed" : ", which is tied itself"));
    }
    const TensorSpec& other = manifest[tied->second];
    if (other.shape != tensor.shape) {
      return absl::InvalidArgumentError(
          absl::StrCat("manifest: tensor ", Describe(tensor), ": expected the shape of ", Describe(other)));
    }
  }
  return absl::OkStatus();
}

bool IsSame(const TensorSpec& a, const TensorSpec& b) {
  return a.name == b.name && a.shape == b.shape && a.kind == b.kind && a.layer == b.layer && a.alias_of == b.alias_of &&
         a.frozen == b.frozen;
}

}  // namespace

const char* TensorKindName(TensorKind kind) {
  switch (kind) {
    case TensorKind::kMatrix: return "matrix";
    case TensorKind::kEmbedding: return "embedding";
    case TensorKind::kNorm: return "norm";
    case TensorKind::kHead: return "head";
    case TensorKind::kExpert: return "expert";
    case TensorKind::kBuffer: return "buffer";
  }
  return "unknown";
}

int64_t TensorSpec::NumValues() const {
  int64_t values = 1;
  for (int64_t extent : shape) values *= extent;
  return values;
}

std::vector<int64_t> FlatOffsets(const Manifest& manifest) {
  std::vector<int64_t> offsets = {0};
  for (const TensorSpec& spec : manifest) offsets.push_back(offsets.back() + spec.NumValues());
  return offsets;
}

int64_t NumParameters(const Manifest& manifest) {
  int64_t total = 0;
  for (const TensorSpec& tensor : manifest) total += tensor.synced() ? tensor.NumValues() : 0;
  return total;
}

std::string Describe(const TensorSpec& tensor) {
  std::string text =
      absl::StrCat(tensor.name, " [", Shown(absl::StrJoin(tensor.shape, ",")), "] ", TensorKindName(tensor.kind));
  if (tensor.layer != kNoLayer) absl::StrAppend(&text, " of layer ", tensor.layer);
  if (!tensor.alias_of.empty()) absl::StrAppend(&text, ", tied to ", Shown(tensor.alias_of));
  if (tensor.frozen) absl::StrAppend(&text, ", frozen");
  return text;
}

absl::Status ValidateManifest(const Manifest& manifest) {
  if (manifest.empty() || manifest.size() > kMaxTensors) {
    return absl::InvalidArgumentError(
        absl::StrCat("manifest: expected 1 to ", kMaxTensors, " tensors, got ", manifest.size()));
  }
  std::map<std::string, size_t> index;
  int64_t total = 0;
  for (const TensorSpec& tensor : manifest) {
    if (tensor.name.empty() || tensor.name.size() > kMaxTensorNameBytes) {
      return absl::InvalidArgumentError(absl::StrCat("manifest: expected tensor names of 1 to ", kMaxTensorNameBytes,
                                                     " bytes, got one of ", tensor.name.size()));
    }
    if (InOneLine(tensor.name) != tensor.name) {
      return absl::InvalidArgumentError(
          absl::StrCat("manifest: expected tensor names of printable UTF-8, got '", Shown(tensor.name), "'"));
    }
    if (!index.emplace(tensor.name, index.size()).second) {
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
    if (tensor.synced()) total += values;
    if (total > kMaxParameters) {
      return absl::InvalidArgumentError(absl::StrCat("manifest: expected at most ", kMaxParameters, " parameters"));
    }
    if (tensor.layer < kNoLayer || tensor.layer >= static_cast<int>(kMaxTensors)) {
      return absl::InvalidArgumentError(absl::StrCat("manifest: tensor ", tensor.name, ": layer ", tensor.layer,
                                                     " is not in 0 to ", kMaxTensors - 1));
    }
    if (tensor.values_digest != 0 && !tensor.frozen) {
      return absl::InvalidArgumentError(absl::StrCat("manifest: tensor ", tensor.name,
                                                     ": expected a digest of values of a frozen tensor only, got ",
                                                     absl::Hex(tensor.values_digest, absl::kZeroPad16)));
    }
  }
  if (total == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("manifest: expected a tensor that is trained, got ", manifest.size(), " that are frozen or tied"));
  }
  return CheckAliases(manifest, index);
}

absl::Status CompareManifests(const Manifest& expected, const Manifest& got) {
  const size_t common = std::min(expected.size(), got.size());
  for (size_t i = 0; i < common; ++i) {
    if (!IsSame(expected[i], got[i])) {
      return absl::InvalidArgumentError(absl::StrCat("the model differs from the run's at tensor ", i, ": expected ",
                                                     Describe(expected[i]), ", got ", Describe(got[i])));
    }
    const uint64_t ours = expected[i].values_digest, theirs = got[i].values_digest;
    if (ours == 0 || theirs == 0 || ours == theirs) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "the base model differs from the run's at tensor ", i, ": expected ", Describe(expected[i]),
        " with values of digest ", absl::Hex(ours, absl::kZeroPad16), ", got ", absl::Hex(theirs, absl::kZeroPad16)));
  }
  if (expected.size() == got.size()) return absl::OkStatus();
  const bool missing = expected.size() > got.size();
  return absl::InvalidArgumentError(absl::StrCat(
      "the model differs from the run's: expected ", expected.size(), " tensors, got ", got.size(), "; the first ",
      missing ? "missing" : "unexpected", " one is ", Describe(missing ? expected[common] : got[common])));
}

}  // namespace causeway::core
