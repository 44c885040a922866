#include "formats/model_export.h"

#include <algorithm>
#include <limits>
#include <set>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "core/check.h"
#include "formats/atomic_file.h"
#include "formats/posix_file.h"
#include "formats/safetensors.h"
#include "formats/sha256.h"

namespace causeway::formats {
namespace {

constexpr char kWeights[] = "model.safetensors", kAdapterWeights[] = "adapter_model.safetensors";
constexpr char kRunId[] = "run_id", kVersions[] = "versions";

const char* WeightsOf(const ExportForm& form) { return form.is_adapter() ? kAdapterWeights : kWeights; }

// As peft saves it: without the adapter's name.
core::Manifest AdapterNames(core::Manifest manifest) {
  for (core::TensorSpec& tensor : manifest) {
    tensor.name = absl::StrReplaceAll(tensor.name, {{".modules_to_save.default.", "."}, {".default.", "."}});
  }
  return manifest;
}

// The tensors of all fragments, unpadded: views, and copies of those that fragments share.
struct Tensors {
  std::vector<std::span<const float>> views;
  std::vector<std::vector<float>> copies;

  Tensors(const core::FragmentMap& map, std::span<const std::span<const float>> fragments)
      : views(map.manifest().size()), copies(map.manifest().size()) {
    for (const core::Fragment& fragment : map.fragments()) {
      const std::span<const float> padded = fragments[fragment.id];
      CHECK(static_cast<int64_t>(padded.size()) == fragment.padded_values());
      for (const core::TensorPlace& place : fragment.tensors) {
        Add(place, map.manifest()[place.tensor].NumValues(),
            padded.subspan(place.first_unit * core::kUnitValues, place.values));
      }
    }
  }

  void Add(const core::TensorPlace& place, int64_t all, std::span<const float> values) {
    if (std::ssize(values) == all) {
      views[place.tensor] = values;
      return;
    }
    copies[place.tensor].resize(all);
    std::ranges::copy(values, copies[place.tensor].begin() + place.begin_unit * core::kUnitValues);
    views[place.tensor] = copies[place.tensor];
  }
};

absl::Status WriteTensors(const std::string& path, const core::Manifest& manifest,
                          std::span<const std::span<const float>> tensors, std::map<std::string, std::string> metadata,
                          ValueType type) {
  CHECK(manifest.size() == tensors.size());
  std::vector<TensorData> data;
  for (size_t i = 0; i < manifest.size(); ++i) {
    if (manifest[i].synced()) data.push_back({manifest[i].name, manifest[i].shape, tensors[i]});
  }
  metadata["format"] = "pt";  // transformers refuses files that do not say for which framework they are
  return WriteSafetensors(path, data, metadata, type).status();
}

}  // namespace

absl::Status WriteExport(const std::string& dir, const ExportForm& form, const core::FragmentMap& map,
                         std::span<const std::span<const float>> fragments, std::span<const core::Version> versions) {
  CHECK(static_cast<int>(fragments.size()) == map.num_fragments() && versions.size() == fragments.size());
  const Tensors tensors(map, fragments);
  return WriteExport(dir, form, map.manifest(), tensors.views, versions);
}

absl::Status WriteExport(const std::string& dir, const ExportForm& form, const core::Manifest& manifest,
                         std::span<const std::span<const float>> tensors, std::span<const core::Version> versions) {
  RETURN_IF_ERROR(MakeWritableFolder(dir));
  RETURN_IF_ERROR(RemoveSha256Sums(dir));
  std::set<std::string> names = {WeightsOf(form)};
  for (const auto& [name, contents] : form.files) {
    RETURN_IF_ERROR(WriteFileAtomically(dir + "/" + name, contents));
    names.insert(name);
  }
  RETURN_IF_ERROR(WriteTensors(absl::StrCat(dir, "/", WeightsOf(form)),
                               form.is_adapter() ? AdapterNames(manifest) : manifest, tensors,
                               {{kRunId, form.run_id}, {kVersions, absl::StrJoin(versions, ",")}}, form.type));
  return WriteSha256Sums(dir, names);
}

std::optional<ExportFound> FindExport(const std::string& dir) {
  auto file = SafetensorsFile::Open(absl::StrCat(dir, "/", kWeights));
  if (!file.ok()) file = SafetensorsFile::Open(absl::StrCat(dir, "/", kAdapterWeights));
  if (!file.ok()) return std::nullopt;
  const auto run_id = file->metadata().find(kRunId), versions = file->metadata().find(kVersions);
  if (run_id == file->metadata().end() || versions == file->metadata().end()) return std::nullopt;
  ExportFound found{.run_id = run_id->second, .rounds = std::numeric_limits<core::Version>::max()};
  for (const absl::string_view text : absl::StrSplit(versions->second, ',')) {
    core::Version version = 0;
    if (!absl::SimpleAtoi(text, &version)) return std::nullopt;
    found.rounds = std::min(found.rounds, version);
  }
  return found;
}

absl::Status CheckReplacesNothingElse(const std::string& dir, const ExportForm& form) {
  const std::optional<ExportFound> found = FindExport(dir);
  if (found && found->run_id == form.run_id) return absl::OkStatus();
  for (const std::string& name : NamesIn(dir).value_or(std::vector<std::string>())) {
    const auto own = form.files.find(name);
    if (own == form.files.end() && !(absl::StrContains(name, ".safetensors") && !absl::EndsWith(name, ".tmp")))
      continue;
    // An export that was interrupted has left files and no weights.
    if (own != form.files.end() && ReadFile(dir + "/" + name, std::ssize(own->second)).value_or("") == own->second)
      continue;
    return absl::FailedPreconditionError(
        absl::StrCat("expected a folder without a model, or with an export of run ", form.run_id, ", got ", dir,
                     found ? absl::StrCat(" with an export of run ", found->run_id)
                           : absl::StrCat(" with a ", name, " that no export has written")));
  }
  return absl::OkStatus();
}

absl::Status WriteLocalDump(const std::string& path, const core::Manifest& manifest,
                            std::span<const std::span<const float>> tensors) {
  return WriteTensors(path, manifest, tensors, {}, ValueType::kFloat32);
}

}  // namespace causeway::formats
