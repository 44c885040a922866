// A file that loaders need beside the weights of a model that sites bring, such as config.json and the tokenizer's:
// compressed, so that one fits a message. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace causeway::formats {

inline constexpr int64_t kMaxModelFilesBytes = 64 << 20;         // of all of a model's; the largest tokenizer has 40 MB
inline constexpr size_t kMaxModelFiles = 64;                     // of a model
inline constexpr size_t kMaxCompressedFileBytes = 7 << 20;       // fits into core::kMaxControlMessageBytes
inline constexpr char kAdapterConfig[] = "adapter_config.json";  // of peft: the weights are an adapter's

struct ModelFile {
  std::string name;
  int64_t bytes = 0;
  uint64_t digest = 0;     // XXH3-64 of the contents
  std::string compressed;  // zstd; empty: not at hand
};

// INVALID_ARGUMENT: `name` may not be among a model's files: letters, digits, "._-", and an extension that texts and
// tokenizers have. Code and weights are none.
absl::Status CheckModelFileName(const std::string& name);

// INVALID_ARGUMENT as above, or if the file is too large.
absl::StatusOr<ModelFile> CompressModelFile(const std::string& name, const std::string& contents);

// The contents. INVALID_ARGUMENT if `compressed` has others than `bytes` and `digest` say.
absl::StatusOr<std::string> ExpandModelFile(const ModelFile& file);

}  // namespace causeway::formats
