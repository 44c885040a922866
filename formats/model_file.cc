#include "formats/model_file.h"

#include <xxhash.h>
#include <zstd.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/check.h"
#include "core/text.h"

namespace causeway::formats {
namespace {

constexpr const char* kExtensions[] = {".json", ".txt", ".model", ".jinja", ".tiktoken", ".bpe", ".vocab", ".md"};
constexpr size_t kMaxNameBytes = 128;
constexpr int kLevel = 9;  // a tokenizer.json of 9 MB: 1.6 MB in 0.3 s

absl::Status Wrong(const std::string& name, const std::string& expected, const std::string& got) {
  return absl::InvalidArgumentError(
      absl::StrCat("file ", core::Quoted(core::Shown(name)), " of the model: expected ", expected, ", got ", got));
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

}  // namespace causeway::formats
