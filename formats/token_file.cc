#include "formats/token_file.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/check.h"
#include "core/xxh3.h"
#include "formats/token_folder.h"

namespace causeway::formats {
namespace {

constexpr size_t kHashedTokens = 16'384;  // at a time: they stay in the processor's cache

}  // namespace

absl::StatusOr<TokenFile> TokenFile::Open(const std::string& path, const TokenFormat& format,
                                          const std::string& held_out_path) {
  TokenFile file;
  TokenFolder folder{.files = {path}};
  if (std::error_code error; std::filesystem::is_directory(path, error)) {
    ASSIGN_OR_RETURN(folder, FindTokenFiles(path, held_out_path));
    file.skipped_ = folder.Skipped();
    if (!folder.for_validation.empty()) {
      file.notes_.push_back(absl::StrCat(path, ": trains on ", absl::StrJoin(folder.for_validation, ", "),
                                         " too, whose names are of validation data: --held_out=FILE holds a file out"));
    }
  } else if (!held_out_path.empty() && HasSameFile(path, held_out_path)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": expected data beside what --held_out=", held_out_path,
                                                   " holds out, got the same file for both"));
  }
  for (const std::string& name : folder.files) {
    ASSIGN_OR_RETURN(TokenShard shard, TokenShard::Open(name, format));
    if (!shard.note().empty()) file.notes_.push_back(shard.note());
    file.parts_.push_back({std::move(shard), file.size_});
    file.size_ += file.parts_.back().shard.size();
  }
  file.names_ = std::move(folder.files);
  return file;
}

uint32_t TokenFile::operator[](int64_t position) const {
  CHECK(position >= 0 && position < size_);
  auto part = std::upper_bound(parts_.begin(), parts_.end(), position,
                               [](int64_t wanted, const Part& candidate) { return wanted < candidate.first; });
  --part;  // the last one that begins at or before it
  return part->shard[position - part->first];
}

core::DataFingerprint TokenFile::Fingerprint() const {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), XXH3_freeState);
  CHECK(state != nullptr && XXH3_64bits_reset(state.get()) == XXH_OK);
  std::array<uint32_t, kHashedTokens> tokens;
  size_t filled = 0;
  const auto hash = [&] { XXH3_64bits_update(state.get(), tokens.data(), filled * sizeof(uint32_t)); };
  for (const Part& part : parts_) {
    for (int64_t i = 0; i < part.shard.size(); ++i) {
      tokens[filled++] = part.shard[i];
      if (filled < tokens.size()) continue;
      hash();
      filled = 0;
    }
  }
  hash();
  return {.tokens = size_, .digest = XXH3_64bits_digest(state.get())};
}

}  // namespace causeway::formats
