// Exports a run's global parameters in a form that any safetensors reader, and Hugging Face's transformers, can load.
//
//   W of fragment 0, 1, … (padded units)  ──►  dir/model.safetensors   tensors in manifest order, unpadded
//   ExportForm: files beside the weights  ──►  dir/config.json …       for a Llama model; a tokenizer
//   all of these                          ──►  dir/SHA256SUMS         for sha256sum -c and ReadModelDirectory
//
// The metadata of model.safetensors says which run it is from and how many rounds made each fragment. Errors name the
// file.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "core/fragment_map.h"
#include "formats/export_form.h"

namespace causeway::formats {

// fragments[p] is W of fragment p in the map's layout, versions[p] its version. Creates the folder if necessary. The
// weights come last, so that a folder which has them is complete.
absl::Status WriteExport(const std::string& dir, const ExportForm& form, const core::FragmentMap& map,
                         std::span<const std::span<const float>> fragments, std::span<const core::Version> versions);

// The same from the unpadded tensors, in manifest order.
absl::Status WriteExport(const std::string& dir, const ExportForm& form, const core::Manifest& manifest,
                         std::span<const std::span<const float>> tensors, std::span<const core::Version> versions);

// The origin that WriteExport has left in the weights of `dir`; nullopt where there are no weights, or those of another
// program.
struct ExportFound {
  std::string run_id;
  core::Version rounds = 0;  // rounds that all fragments have
};
std::optional<ExportFound> FindExport(const std::string& dir);

// FAILED_PRECONDITION: WriteExport would replace files that no export of that run has written.
absl::Status CheckReplacesNothingElse(const std::string& dir, const ExportForm& form);

// One site's live parameters, for comparison: tensors[i] are the unpadded values of tensor i of the manifest.
absl::Status WriteLocalDump(const std::string& path, const core::Manifest& manifest,
                            std::span<const std::span<const float>> tensors);

}  // namespace causeway::formats
