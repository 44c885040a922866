#include "worker/library/external_model.h"

#include <spdlog/spdlog.h>

#include <map>
#include <optional>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/check.h"
#include "core/digest.h"
#include "core/model_manifest.h"
#include "worker/library/json_object.h"

namespace causeway::worker {
namespace {

using core::DType;
using core::TensorKind;
using core::TensorSpec;

constexpr TensorKind kKinds[] = {TensorKind::kMatrix, TensorKind::kEmbedding, TensorKind::kNorm,
                                 TensorKind::kHead,   TensorKind::kExpert,    TensorKind::kBuffer};

absl::StatusOr<TensorKind> ReadKind(JsonObject& tensor, const TensorSpec& spec) {
  std::string name;
  RETURN_IF_ERROR(tensor.Read("kind", name));
  if (name.empty()) return KindOf(spec.name, spec.shape);
  for (TensorKind kind : kKinds) {
    if (name == core::TensorKindName(kind)) return kind;
  }
  return tensor.Wrong("kind", "matrix, embedding, norm, head, expert or buffer", name);
}

absl::StatusOr<DType> ReadDType(JsonObject& tensor, const TensorSpec& spec) {
  std::string name = "float32";
  RETURN_IF_ERROR(tensor.Read("dtype", name));
  const std::optional<DType> dtype = core::DTypeFromName(name);
  if (dtype) return *dtype;
  if (spec.frozen) return DType::kFloat32;  // it is compared, and never moved
  return tensor.Wrong("dtype", "float32, bfloat16 or float16 of a tensor that is trained", name);
}

absl::StatusOr<TensorSpec> ReadTensor(JsonObject tensor) {
  TensorSpec spec;
  RETURN_IF_ERROR(tensor.Read("name", spec.name));
  tensor.Rename(absl::StrCat("tensor ", spec.name));
  RETURN_IF_ERROR(tensor.Read("shape", spec.shape));
  RETURN_IF_ERROR(tensor.Read("alias_of", spec.alias_of));
  RETURN_IF_ERROR(tensor.Read("frozen", spec.frozen));
  std::string digest;
  RETURN_IF_ERROR(tensor.Read("values_digest", digest));
  if (!digest.empty() && !absl::SimpleHexAtoi(digest, &spec.values_digest)) {
    return tensor.Wrong("values_digest", "up to 16 hexadecimal digits", digest);
  }
  ASSIGN_OR_RETURN(spec.dtype, ReadDType(tensor, spec));
  ASSIGN_OR_RETURN(spec.kind, ReadKind(tensor, spec));
  int64_t layer = LayerOf(spec.name);
  RETURN_IF_ERROR(tensor.Read("layer", layer));
  spec.layer = static_cast<int>(layer);
  RETURN_IF_ERROR(tensor.Finish());
  return spec;
}

absl::StatusOr<core::SiteData> ReadData(JsonObject& model) {
  ASSIGN_OR_RETURN(std::optional<JsonObject> given, model.ReadObject("data"));
  if (!given) return core::SiteData{};
  core::DataFingerprint fingerprint;
  RETURN_IF_ERROR(given->Read("tokens", fingerprint.tokens));
  if (fingerprint.tokens < 1) return given->Wrong("tokens", "1 or more", absl::StrCat(fingerprint.tokens));
  std::string digest;
  RETURN_IF_ERROR(given->Read("digest", digest));
  if (!absl::SimpleHexAtoi(digest, &fingerprint.digest)) {
    return given->Wrong("digest", "up to 16 hexadecimal digits", digest.empty() ? "none" : digest);
  }
  RETURN_IF_ERROR(given->Finish());
  return core::SiteData{.training = fingerprint, .held_out = std::nullopt};
}

// One that is too large, or that exports have no use for, is left out, and named in the log.
absl::StatusOr<std::vector<formats::ModelFile>> ReadFiles(JsonObject& model) {
  std::vector<formats::ModelFile> files;
  int64_t bytes = 0;
  std::map<std::string, std::string> given;
  RETURN_IF_ERROR(model.Read("files", given));
  for (const auto& [name, base64] : given) {
    std::string contents;
    if (!absl::Base64Unescape(base64, &contents)) return model.Wrong("files", "contents in base64", "others");
    absl::StatusOr<formats::ModelFile> file = formats::CompressModelFile(name, contents);
    if (file.ok() && (bytes + file->bytes > formats::kMaxModelFilesBytes || files.size() == formats::kMaxModelFiles)) {
      file = absl::InvalidArgumentError(
          absl::StrCat(name, ": the model's files are more than ", formats::kMaxModelFilesBytes, " bytes in all"));
    }
    if (!file.ok()) {
      spdlog::warn("left out of the run's exports: {}", std::string(file.status().message()));
      continue;
    }
    bytes += file->bytes;
    files.push_back(*std::move(file));
  }
  return files;
}

// For each tensor of the run's manifest its index in `given`. INVALID_ARGUMENT: one is missing or has another shape.
absl::StatusOr<std::vector<int>> Match(const core::Manifest& manifest, const std::vector<TensorSpec>& given) {
  std::map<std::string, int> by_name;
  for (size_t i = 0; i < given.size(); ++i) {
    if (given[i].synced()) by_name[given[i].name] = static_cast<int>(i);
  }
  std::vector<int> given_as;
  for (const TensorSpec& expected : manifest) {
    const auto found = by_name.find(expected.name);
    if (found == by_name.end()) {
      return absl::InvalidArgumentError(absl::StrCat("model: expected tensor ", core::Describe(expected),
                                                     " of the run's model, got none of that name that is trained"));
    }
    const TensorSpec& spec = given[found->second];
    if (spec.shape != expected.shape) {
      return absl::InvalidArgumentError(
          absl::StrCat("model: expected tensor ", core::Describe(expected), ", got ", core::Describe(spec)));
    }
    given_as.push_back(found->second);
    by_name.erase(found);
  }
  if (by_name.empty()) return given_as;
  const TensorSpec& other = given[by_name.begin()->second];
  return absl::InvalidArgumentError(absl::StrCat("model: expected the ", manifest.size(),
                                                 " tensors of the run's model, got also ", core::Describe(other)));
}

}  // namespace

int LayerOf(const std::string& name) {
  const std::vector<std::string> parts = absl::StrSplit(name, '.');
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    int layer = 0;
    const bool names_layers =
        parts[i] == "layers" || parts[i] == "h" || parts[i] == "blocks" || parts[i] == "block" || parts[i] == "layer";
    if (names_layers && absl::SimpleAtoi(parts[i + 1], &layer) && layer >= 0) return layer;
  }
  return core::kNoLayer;
}

TensorKind KindOf(const std::string& name, const std::vector<int64_t>& shape) {
  if (shape.size() <= 1) return TensorKind::kNorm;
  if (shape.size() == 3 && absl::StrContains(name, "experts")) return TensorKind::kExpert;
  if (LayerOf(name) != core::kNoLayer) return TensorKind::kMatrix;
  for (const absl::string_view part : absl::StrSplit(name, '.')) {
    if (absl::StartsWith(part, "embed") || part == "wte" || part == "wpe") return TensorKind::kEmbedding;
    if (part == "lm_head" || part == "output") return TensorKind::kHead;
  }
  return TensorKind::kMatrix;
}

absl::StatusOr<ExternalModel> ParseExternalModel(const std::string& json, const core::RunConfig& config) {
  ASSIGN_OR_RETURN(JsonObject root, JsonObject::Parse(json, "model"));
  std::vector<TensorSpec> given;
  ASSIGN_OR_RETURN(std::vector<JsonObject> tensors, root.ReadObjects("tensors"));
  for (JsonObject& tensor : tensors) {
    ASSIGN_OR_RETURN(TensorSpec read, ReadTensor(std::move(tensor)));
    given.push_back(std::move(read));
  }
  ExternalModel model;
  ASSIGN_OR_RETURN(model.data, ReadData(root));
  ASSIGN_OR_RETURN(model.files, ReadFiles(root));
  RETURN_IF_ERROR(root.Finish());
  if (config.model_kind == core::ModelKind::kExternal) {
    for (size_t i = 0; i < given.size(); ++i) {
      model.manifest.push_back(given[i]);
      model.given_as.push_back(static_cast<int>(i));
    }
  } else {
    model.files.clear();
    model.manifest = core::ModelManifest(config);
    ASSIGN_OR_RETURN(model.given_as, Match(model.manifest, given));
  }
  RETURN_IF_ERROR(core::ValidateManifest(model.manifest));
  for (size_t i = 0; i < model.manifest.size(); ++i) {
    model.manifest[i].dtype = given[model.given_as[i]].dtype;
    const auto& tensor = model.manifest[i];
    model.tensors.push_back({.values = tensor.NumValues(),
                             .dtype = tensor.dtype,
                             .digest_seed = core::ThetaSeed(tensor.name),
                             .synced = tensor.synced()});
  }
  return model;
}

}  // namespace causeway::worker
