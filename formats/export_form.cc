#include "formats/export_form.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/json_text.h"
#include "formats/file_kind.h"
#include "formats/hf_config.h"
#include "formats/model_directory.h"
#include "formats/posix_file.h"

namespace causeway::formats {
namespace {

using Json = nlohmann::ordered_json;

// The bytes that are printable characters of Latin-1 stand for themselves.
bool IsPrintable(int64_t byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
}

// UTF-8 of a code point below 0x800.
std::string Utf8(int64_t code_point) {
  if (code_point < 0x80) return {static_cast<char>(code_point)};
  return {static_cast<char>(0xc0 | (code_point >> 6)), static_cast<char>(0x80 | (code_point & 0x3f))};
}

// Character → id. The other bytes are named by the characters from U+0100 on, in their order.
Json Vocabulary() {
  Json vocabulary = Json::object();
  int64_t next = kByteVocabulary;
  for (int64_t byte = 0; byte < kByteVocabulary; ++byte) vocabulary[Utf8(IsPrintable(byte) ? byte : next++)] = byte;
  return vocabulary;
}

constexpr int64_t kMaxAssetBytes = 256 << 20;  // the largest tokenizers have some tens of megabytes
constexpr char kConfig[] = "config.json", kGenerationConfig[] = "generation_config.json";
constexpr const char* kTokenIds[] = {"bos_token_id", "eos_token_id", "pad_token_id"};

// A tokenizer is one of the first three; the others go with it.
constexpr const char* kTokenizers[] = {"tokenizer.json", "tokenizer.model", "vocab.json"};
constexpr const char* kAssets[] = {"tokenizer.json",
                                   "tokenizer.model",
                                   "vocab.json",
                                   "vocab.txt",
                                   "merges.txt",
                                   "added_tokens.json",
                                   "chat_template.json",
                                   "chat_template.jinja",
                                   "tokenizer_config.json",
                                   "spiece.model",
                                   "sentencepiece.bpe.model",
                                   "special_tokens_map.json",
                                   kGenerationConfig};

// As transformers writes it for a model without settings of its own.
std::string GenerationConfigJson(const Json& config) {
  Json json = {{"_from_model_config", true}};
  for (const char* id : kTokenIds) {
    if (!config[id].is_null()) json[id] = config[id];
  }
  return json.dump(2) + "\n";
}

// Special tokens are the tokenizer's matter, so their ids come from the folder's config.json, once it is known to be of
// the same architecture.
absl::Status TakeTokenIds(const std::string& folder, const core::LlamaConfig& llama, Json& config) {
  const std::string config_path = absl::StrCat(folder, "/", kConfig);
  ASSIGN_OR_RETURN(const core::LlamaConfig theirs, ReadHfConfig(config_path));
  if (const std::string difference = HfConfigDifference(llama, theirs); !difference.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(config_path, ": ", difference, ": the tokenizer is of another model than the run's"));
  }
  ASSIGN_OR_RETURN(const std::string text, ReadFile(config_path, kMaxAssetBytes));
  ASSIGN_OR_RETURN(const Json json, core::ParseJson<Json>(text, config_path));
  for (const char* id : kTokenIds) config[id] = json.value(id, Json());
  return absl::OkStatus();
}

bool HasTokenizer(const ExportForm& form) {
  return std::ranges::any_of(kTokenizers, [&](const char* name) { return form.files.contains(name); });
}

// Files of the folder as they are.
absl::Status ReadAssets(const std::string& folder, ExportForm& form) {
  for (const char* name : kAssets) {
    const std::string path = absl::StrCat(folder, "/", name);
    if (!Exists(path)) continue;
    ASSIGN_OR_RETURN(form.files[name], ReadFile(path, kMaxAssetBytes));
    const FileKind* kind = RecognizeFile(std::as_bytes(std::span<const char>(form.files[name])));
    RETURN_IF_ERROR(RefuseKind(path, kind != nullptr && kind->stands_in ? kind : nullptr, "a part of a tokenizer",
                               FileUse::kModel));
  }
  if (HasTokenizer(form)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(folder, ": expected a tokenizer (tokenizer.json, tokenizer.model or vocab.json), got none"));
}

// Those that loaders would look for in vain.
std::string MissingFiles(const ExportForm& form) {
  if (form.is_adapter()) return "";
  if (!form.files.contains(kConfig)) {
    return "exports have weights alone, by their names in the sites' model: a PreTrainedModel brings its config.json, "
           "and DiLoCo(assets=…) any other's";
  }
  return HasTokenizer(form) ? ""
                            : "exports have no tokenizer: DiLoCo(assets=tokenizer) at a site brings it, and "
                              "--assets a folder's";
}

absl::StatusOr<ValueType> TypeOf(const std::string& dtype) {
  if (dtype == "float32") return ValueType::kFloat32;
  if (dtype == "bfloat16") return ValueType::kBfloat16;
  return absl::InvalidArgumentError(absl::StrCat("dtype of an export: expected float32 or bfloat16, got ", dtype));
}

}  // namespace

std::string ByteTokenizerJson() {
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
  const Json json = {{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens", Json::array()},
                     {"normalizer", nullptr},
                     {"pre_tokenizer", byte_level},
                     {"post_processor", nullptr},
                     {"decoder", byte_level},
                     {"model",
                      {{"type", "BPE"},
                       {"dropout", nullptr},
                       {"unk_token", nullptr},
                       {"continuing_subword_prefix", nullptr},
                       {"end_of_word_suffix", nullptr},
                       {"fuse_unk", false},
                       {"byte_fallback", false},
                       {"vocab", Vocabulary()},
                       {"merges", Json::array()}}}};
  return json.dump(2) + "\n";
}

std::string ByteTokenizerConfigJson(int64_t model_max_length) {
  const Json json = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                     {"model_max_length", model_max_length},
                     {"clean_up_tokenization_spaces", false}};  // it would change the text
  return json.dump(2) + "\n";
}

bool ExportForm::is_adapter() const { return files.contains(kAdapterConfig); }

absl::StatusOr<ExportForm> MakeExportForm(const core::RunConfig& config, const std::string& dtype,
                                          const std::string& assets, std::map<std::string, std::string> files) {
  ExportForm form{.run_id = config.run_id, .files = std::move(files)};
  ASSIGN_OR_RETURN(form.type, TypeOf(dtype));
  if (config.model_kind == core::ModelKind::kSynthetic) {
    if (assets.empty()) return form;
    return absl::InvalidArgumentError(absl::StrCat(
        "assets of an export: expected a run of a language model, got assets ", assets, " for another kind"));
  }
  if (config.model_kind == core::ModelKind::kExternal) {
    if (const std::string path = absl::StrCat(assets, "/", kConfig); !assets.empty() && Exists(path)) {
      ASSIGN_OR_RETURN(form.files[kConfig], ReadFile(path, kMaxAssetBytes));
    }
    if (!assets.empty()) RETURN_IF_ERROR(ReadAssets(assets, form));
    form.note = MissingFiles(form);
    return form;
  }
  Json json = Json::parse(HfConfigJson(config.llama));
  json["torch_dtype"] = dtype;
  if (!assets.empty()) {
    RETURN_IF_ERROR(TakeTokenIds(assets, config.llama, json));
    RETURN_IF_ERROR(ReadAssets(assets, form));
  } else if (config.llama.vocab_size == kByteVocabulary) {
    form.files["tokenizer.json"] = ByteTokenizerJson();
    form.files["tokenizer_config.json"] = ByteTokenizerConfigJson(config.llama.max_position_embeddings);
  } else {
    form.note = "exports have no tokenizer: name a Hugging Face folder of this model as assets to add its tokenizer";
  }
  form.files[kConfig] = json.dump(2) + "\n";
  form.files.emplace(kGenerationConfig, GenerationConfigJson(json));
  return form;
}

}  // namespace causeway::formats
