#include "formats/token_file.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <memory>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/xxh3.h"

namespace causeway::formats {
namespace {

constexpr size_t kHashedTokens = 16'384;  // at a time: they stay in the processor's cache

struct Folder {
  std::vector<std::string> files;    // to read, in order
  std::vector<std::string> skipped;  // names
};

absl::Status Wrong(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

absl::StatusOr<Folder> FilesIn(const std::string& path) {
  std::map<std::string, std::vector<std::string>> names;  // by ending
  std::error_code error;
  for (std::filesystem::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
    names[entry->path().extension().string()].push_back(entry->path().filename().string());
  }
  if (error) return Wrong(path, absl::StrCat("cannot read the folder: ", error.message()));
  const auto* chosen = ".bin";
  if (!names.contains(".bin")) {
    if (names.contains(".txt") && names.contains(".jsonl")) {
      return Wrong(path, absl::StrCat("expected .txt or .jsonl files in the folder, got both: ",
                                      *std::ranges::min_element(names[".txt"]), " and ",
                                      *std::ranges::min_element(names[".jsonl"])));
    }
    chosen = names.contains(".txt") ? ".txt" : ".jsonl";
  }
  if (!names.contains(chosen)) return Wrong(path, "expected .bin, .txt or .jsonl files in the folder, got none");
  Folder folder;
  for (const auto& [ending, ones] : names) {
    for (const std::string& name : ones) {
      if (ending == chosen) {
        folder.files.push_back((std::filesystem::path(path) / name).string());
      } else {
        folder.skipped.push_back(name);
      }
    }
  }
  std::ranges::sort(folder.files);
  std::ranges::sort(folder.skipped);
  return folder;
}

}  // namespace

absl::StatusOr<TokenFile> TokenFile::Open(const std::string& path, const TokenFormat& format) {
  Folder folder{.files = {path}, .skipped = {}};
  if (std::error_code error; std::filesystem::is_directory(path, error)) {
    ASSIGN_OR_RETURN(folder, FilesIn(path));
  }
  TokenFile file;
  file.skipped_ = std::move(folder.skipped);
  for (const std::string& name : folder.files) {
    ASSIGN_OR_RETURN(TokenShard shard, TokenShard::Open(name, format));
    file.parts_.push_back({std::move(shard), file.size_});
    file.size_ += file.parts_.back().shard.size();
  }
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
