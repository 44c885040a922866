// The files beside the weights of an export, and the form of the weights' values: decided, read and checked before
// there is anything to export.
//
//   run's config ─► config.json, generation_config.json         a Llama model
//                   tokenizer.json, tokenizer_config.json       … whose tokens are bytes (vocab_size 256)
//   assets (a Hugging Face folder) ─► its tokenizer and generation_config.json, byte for byte, in place of these
//   files of a model that sites bring ─► as they are; those of `assets` in place of them
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "core/run_config.h"
#include "formats/safetensors.h"

namespace causeway::formats {

// A tokenizer for models whose tokens are bytes, as files that Hugging Face's libraries load.
//
//   "é\n"  ──UTF-8──►  c3 a9 0a  ──►  ids 195 169 10        and back: invalid UTF-8 decodes to U+FFFD
//
// It is byte-level BPE without merges and without special tokens: token i is byte i, and every text is restored
// exactly. The format is that of the tokenizers library; each byte is named by one printable character, GPT-2's table.

inline constexpr int64_t kByteVocabulary = 256;

std::string ByteTokenizerJson();                                // tokenizer.json
std::string ByteTokenizerConfigJson(int64_t model_max_length);  // tokenizer_config.json; the length is in tokens

struct ExportForm {
  std::string run_id;
  ValueType type = ValueType::kFloat32;
  std::map<std::string, std::string> files;  // name → contents
  std::string note;                          // what is missing, for people; empty: nothing

  bool is_adapter() const;  // a peft adapter: its file of weights has its own name, and its tensors have shorter names
};

// `dtype` is "float32" or "bfloat16"; `assets` a folder, "" for none; `files` are those of a model that sites bring.
// INVALID_ARGUMENT if the config.json in `assets` has another architecture than the run's Llama model (names the key,
// the expected and the actual value), or the folder has no tokenizer; NOT_FOUND where a file cannot be read.
absl::StatusOr<ExportForm> MakeExportForm(const core::RunConfig& config, const std::string& dtype,
                                          const std::string& assets, std::map<std::string, std::string> files = {});

}  // namespace causeway::formats
