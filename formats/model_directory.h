// A model in the form in which models are distributed: a folder with model.safetensors, or with
// model.safetensors.index.json and the shards that it lists. It is what `init_from` names.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/manifest.h"

namespace causeway::formats {

// A file that loaders need beside the weights of a model that sites bring, such as config.json and the tokenizer's:
// compressed, so that one fits a message. Pure.

inline constexpr int64_t kMaxModelFilesBytes = 64 << 20;    // a model's files together; the largest tokenizer: 40 MB
inline constexpr size_t kMaxModelFiles = 64;                // files of one model
inline constexpr size_t kMaxCompressedFileBytes = 7 << 20;  // fits into core::kMaxControlMessageBytes
inline constexpr char kAdapterConfig[] = "adapter_config.json";  // peft's file: the weights are an adapter's

struct ModelFile {
  std::string name;
  int64_t bytes = 0;
  uint64_t digest = 0;     // XXH3-64 of the contents
  std::string compressed;  // zstd; empty: not at hand
};

// INVALID_ARGUMENT: `name` may not be among a model's files: letters, digits, "._-", and an extension that texts and
// tokenizers have. Code and weights are not among them.
absl::Status CheckModelFileName(const std::string& name);

// INVALID_ARGUMENT as above, or if the file is too large.
absl::StatusOr<ModelFile> CompressModelFile(const std::string& name, const std::string& contents);

// The contents. INVALID_ARGUMENT if `compressed` has others than `bytes` and `digest` say.
absl::StatusOr<std::string> ExpandModelFile(const ModelFile& file);

// Whether the folder exists and has weights, or an index of them.
bool HasModel(const std::string& dir);

// Reads tensor i of the manifest into tensors[i] (row-major, as many values as its shape), as float32 whatever the file
// has. INVALID_ARGUMENT or NOT_FOUND names the file and the tensor that is missing, has another shape, or is in the
// folder but not in the model: a model that differs would start worse than from its seed, silently. (Rotary
// frequencies, which old checkpoints contain, are derived values and skipped. A model whose head is tied to its
// embedding may be in the folder with both, which are equal then, or with the head alone.)
//
// `model` has all tensors of the model where the manifest is that of one rank, which holds a part of them.
absl::Status ReadModelDirectory(const std::string& dir, const core::Manifest& manifest,
                                std::span<const std::span<float>> tensors, const core::Manifest& model = {});

}  // namespace causeway::formats
