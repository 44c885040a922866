#include "formats/model_directory.h"

#include <xxhash.h>
#include <zstd.h>

#include <algorithm>
#include <climits>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/check.h"
#include "core/json_text.h"
#include "core/text.h"
#include "formats/named_file.h"
#include "formats/safetensors.h"
#include "formats/sha256.h"

namespace causeway::formats {
namespace {

constexpr const char* kExtensions[] = {".json", ".txt", ".model", ".jinja", ".tiktoken", ".bpe", ".vocab", ".md"};
constexpr size_t kMaxNameBytes = 128;
constexpr int kLevel = 9;  // a tokenizer.json of 9 MB: 1.6 MB in 0.3 s

absl::Status Wrong(const std::string& name, const std::string& expected, const std::string& got) {
  return absl::InvalidArgumentError(
      absl::StrCat("file ", core::Quoted(core::Shown(name)), " of the model: expected ", expected, ", got ", got));
}

constexpr char kSingle[] = "/model.safetensors", kIndex[] = "/model.safetensors.index.json";
constexpr int64_t kMaxIndexBytes = 64 << 20;  // far above kMaxTensors lines

// The files of a model, in bytewise order of their names.
absl::StatusOr<std::set<std::string>> ShardsOf(const std::string& dir) {
  const std::string single = dir + kSingle, index = dir + kIndex;
  if (Exists(single)) return std::set<std::string>{single};
  if (!HasModel(dir)) {
    return absl::NotFoundError(absl::StrCat(dir, ": expected model.safetensors or model.safetensors.index.json"));
  }
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(index, kMaxIndexBytes));
  ASSIGN_OR_RETURN(const nlohmann::json json, core::ParseJson<nlohmann::json>(text, index));
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(index, ": expected a JSON object with weight_map"));
  }
  std::set<std::string> shards;
  for (const auto& [tensor, file] : json["weight_map"].items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    if (name.empty() || name.size() > NAME_MAX || absl::StrContains(name, "/") || core::InOneLine(name) != name) {
      return absl::InvalidArgumentError(absl::StrCat(index, ": weight_map: ", core::Shown(tensor),
                                                     ": expected a file name, got ", core::ShownJson(file)));
    }
    shards.insert(absl::StrCat(dir, "/", name));
  }
  return shards;
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", core::Shown(absl::StrJoin(shape, ",")), "]");
}

// Tied models have one matrix under one of these names, and some files the same one under both.
constexpr char kEmbedding[] = "model.embed_tokens.weight", kHead[] = "lm_head.weight";

// The head of a model whose head is its embedding: `embedding` takes its values where the files had none.
absl::Status ReadTiedHead(const SafetensorsFile& file, const core::TensorSpec& spec, bool embedding_is_missing,
                          std::span<float> embedding) {
  const SafetensorsFile::Entry& head = *file.Find(kHead);
  const auto wrong = [&](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat(file.path(), ": tensor ", kHead, ": ", what));
  };
  if (head.shape != spec.shape) {
    return wrong(absl::StrCat("expected shape ", ShapeText(spec.shape), ", got ", ShapeText(head.shape)));
  }
  if (embedding_is_missing) return file.Read(kHead, embedding);
  std::vector<float> values(embedding.size());
  RETURN_IF_ERROR(file.Read(kHead, values));
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] == embedding[i]) continue;  // as numbers: 0 and −0 are one
    return wrong(absl::StrCat("expected the values of ", kEmbedding,
                              ", since the run ties them (tie_word_embeddings), got others: value ", i, " is ",
                              values[i], " instead of ", embedding[i],
                              "; the model is untied: tie_word_embeddings: false in its config.json"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckModelFileName(const std::string& name) {
  const bool plain =
      std::ranges::all_of(name, [](char c) { return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-'; });
  if (!plain || name.empty() || name.size() > kMaxNameBytes || name[0] == '.') {
    return Wrong(name, absl::StrCat("a name of letters, digits and ._- up to ", kMaxNameBytes, " bytes"), "another");
  }
  const bool known = std::ranges::any_of(kExtensions, [&](const char* end) { return absl::EndsWith(name, end); });
  if (known && !absl::EndsWith(name, ".index.json")) return absl::OkStatus();
  return Wrong(name, absl::StrCat("one of ", absl::StrJoin(kExtensions, ", "), ", no code and no weights"), "another");
}

absl::StatusOr<ModelFile> CompressModelFile(const std::string& name, const std::string& contents) {
  RETURN_IF_ERROR(CheckModelFileName(name));
  if (std::ssize(contents) > kMaxModelFilesBytes) {
    return Wrong(name, absl::StrCat("at most ", kMaxModelFilesBytes, " bytes"), absl::StrCat(contents.size()));
  }
  ModelFile file{.name = name,
                 .bytes = std::ssize(contents),
                 .digest = XXH3_64bits(contents.data(), contents.size()),
                 .compressed = std::string(ZSTD_compressBound(contents.size()), '\0')};
  const size_t size =
      ZSTD_compress(file.compressed.data(), file.compressed.size(), contents.data(), contents.size(), kLevel);
  CHECK(!ZSTD_isError(size));
  file.compressed.resize(size);
  if (size <= kMaxCompressedFileBytes) return file;
  return Wrong(name, absl::StrCat("at most ", kMaxCompressedFileBytes, " bytes compressed"), absl::StrCat(size));
}

absl::StatusOr<std::string> ExpandModelFile(const ModelFile& file) {
  if (file.bytes < 0 || file.bytes > kMaxModelFilesBytes) {
    return Wrong(file.name, absl::StrCat("0 to ", kMaxModelFilesBytes, " bytes"), absl::StrCat(file.bytes));
  }
  std::string contents(file.bytes, '\0');
  const size_t size = ZSTD_decompress(contents.data(), contents.size(), file.compressed.data(), file.compressed.size());
  if (ZSTD_isError(size) || size != contents.size() || XXH3_64bits(contents.data(), size) != file.digest) {
    return Wrong(file.name, absl::StrCat("a zstd frame of its ", file.bytes, " bytes"), "other contents");
  }
  return contents;
}

bool HasModel(const std::string& dir) { return Exists(dir + kSingle) || Exists(dir + kIndex); }

absl::Status ReadModelDirectory(const std::string& dir, const core::Manifest& manifest,
                                std::span<const std::span<float>> tensors, const core::Manifest& model) {
  CHECK(manifest.size() == tensors.size());
  std::set<std::string> elsewhere;  // tensors that other ranks hold
  for (const core::TensorSpec& spec : model) elsewhere.insert(spec.name);
  std::map<std::string, size_t> missing;  // name → index in the manifest
  for (size_t i = 0; i < manifest.size(); ++i) missing[manifest[i].name] = i;
  const bool is_tied = !missing.contains(kHead) && !elsewhere.contains(kHead);
  for (const auto& [name, index] : missing) elsewhere.erase(name);
  std::optional<size_t> embedding;  // where the head is tied to it
  if (is_tied && missing.contains(kEmbedding)) embedding = missing[kEmbedding];
  const auto is_skipped = [&](const std::string& name) {
    const bool tied_head = name == kHead && is_tied && (embedding || elsewhere.contains(kEmbedding));
    return absl::EndsWith(name, "rotary_emb.inv_freq") || tied_head || elsewhere.contains(name);
  };
  std::optional<SafetensorsFile> with_head;

  ASSIGN_OR_RETURN(const std::set<std::string> shards, ShardsOf(dir));
  for (const std::string& path : shards) {
    RETURN_IF_ERROR(CheckSha256Sum(dir, std::filesystem::path(path).filename()));
    ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(path));
    for (const SafetensorsFile::Entry& entry : file.tensors()) {
      if (is_skipped(entry.name)) continue;
      const auto wanted = missing.find(entry.name);
      if (wanted == missing.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat(path, ": tensor ", core::Shown(entry.name), ": expected a tensor of the run's model, once"));
      }
      const core::TensorSpec& spec = manifest[wanted->second];
      if (entry.shape != spec.shape) {
        return absl::InvalidArgumentError(absl::StrCat(path, ": tensor ", entry.name, ": expected shape ",
                                                       ShapeText(spec.shape), ", got ", ShapeText(entry.shape)));
      }
      RETURN_IF_ERROR(file.Read(entry.name, tensors[wanted->second]));
      missing.erase(wanted);
    }
    if (embedding && file.Find(kHead) != nullptr) with_head = std::move(file);
  }
  if (with_head) {
    RETURN_IF_ERROR(ReadTiedHead(*with_head, manifest[*embedding], missing.erase(kEmbedding) > 0, tensors[*embedding]));
  }
  if (missing.empty()) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat(dir, ": tensor ", missing.begin()->first, " is missing"));
}

}  // namespace causeway::formats
