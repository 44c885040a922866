#include "formats/token_file.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/check.h"
#include "core/digest.h"
#include "formats/mapped_file.h"

namespace causeway::formats {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostShown = 3;  // names of one reason
constexpr char kFolders[] = "/";

absl::Status WrongFolder(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

// Documents that lie beside data and are none, whatever their ending.
bool IsDocument(const std::string& name) {
  static constexpr const char* kDocuments[] = {"readme",       "license",    "licence", "copying",      "notice",
                                               "changelog",    "changes",    "authors", "citation",     "copyright",
                                               "contributing", "sha256sums", "md5sum",  "requirements", "checksums",
                                               "dataset_card", "datasheet"};
  const std::string lower = absl::AsciiStrToLower(name);
  return std::ranges::any_of(kDocuments, [&](const char* document) { return absl::StartsWith(lower, document); });
}

bool SameBytes(const std::string& a, const std::string& b) {
  std::error_code error;
  const auto size = fs::file_size(a, error);
  if (error || fs::file_size(b, error) != size || error || size == 0) return false;
  const auto mapped_a = MappedFile::Map(a), mapped_b = MappedFile::Map(b);
  return mapped_a.ok() && mapped_b.ok() && std::ranges::equal(mapped_a->bytes(), mapped_b->bytes());
}

// The size of a file, and a digest of its first and last MiB: files of which they differ are different.
std::pair<size_t, uint64_t> EndsOf(const std::string& path) {
  constexpr size_t kEnds = 1 << 20;
  const auto mapped = MappedFile::Map(path);
  if (!mapped.ok()) return {};
  const auto bytes = mapped->bytes();
  const size_t ends = std::min(kEnds, bytes.size());
  const uint64_t both[] = {core::Xxh3(bytes.data(), ends), core::Xxh3(bytes.last(ends).data(), ends)};
  return {bytes.size(), core::Xxh3(both, sizeof both)};
}

// fineweb_val_000000.bin, validation.txt: a word of the name.
bool IsForValidation(const std::string& name) {
  static constexpr const char* kWords[] = {"val", "valid", "validation", "eval", "heldout", "test"};
  const std::vector<std::string> words =
      absl::StrSplit(absl::AsciiStrToLower(name), absl::ByAnyChar("_-. ()0123456789"), absl::SkipEmpty());
  return std::ranges::any_of(words, [](const std::string& word) {
    return std::ranges::any_of(kWords, [&](const char* one) { return word == one; });
  });
}

// The files that `path` names: itself, or those in the folder.
std::vector<std::string> FilesAt(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return {path};
  std::vector<std::string> files;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
    if (std::error_code ignored; fs::is_regular_file(entry->path(), ignored)) files.push_back(entry->path().string());
  }
  return files;
}

bool IsOneOf(const std::string& path, const std::vector<std::string>& held_out) {
  return std::ranges::any_of(held_out, [&](const std::string& other) {
    std::error_code error;
    return fs::equivalent(path, other, error) || SameBytes(path, other);
  });
}

std::string Shown(const std::vector<std::string>& names) {
  const auto shown = std::min(names.size(), kMostShown);
  return absl::StrCat(absl::StrJoin(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
                      shown < names.size() ? ", …" : "");
}

// "3 of .npy (a.npy, b.npy, c.npy)"
std::string OtherText(const std::string& ending, const std::vector<std::string>& names) {
  const std::string kind = ending == kFolders ? (names.size() == 1 ? " folder" : " folders")
                           : ending.empty()   ? " without an ending"
                                              : " of " + ending;
  return absl::StrCat(names.size(), kind, " (", Shown(names), ")");
}

// Puts each name where it belongs; chosen ones are by ending.
absl::StatusOr<std::map<std::string, std::vector<std::string>>> Sort(const std::string& path, TokenFolder& folder) {
  std::map<std::string, std::vector<std::string>> names;
  std::error_code error;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    std::error_code ignored;
    if (name.starts_with(".")) {
      folder.hidden.push_back(name);
    } else if (entry->is_directory(ignored)) {
      folder.other[kFolders].push_back(name);
    } else {
      names[entry->path().extension().string()].push_back(name);
    }
  }
  if (error) return WrongFolder(path, absl::StrCat("cannot read the folder: ", error.message()));
  std::ranges::sort(folder.hidden);
  for (auto* kinds : {&names, &folder.other}) {
    for (auto& [ending, ones] : *kinds) std::ranges::sort(ones);
  }
  return names;
}

// The ending that is read of those there.
absl::StatusOr<std::string> ChooseEnding(const std::string& path,
                                         const std::map<std::string, std::vector<std::string>>& names) {
  for (const char* tokens : {".bin", ".npy"}) {
    if (names.contains(tokens)) return tokens;
  }
  const auto text = names.find(".txt"), lines = names.find(".jsonl");
  if (text != names.end() && lines != names.end()) {
    return WrongFolder(path, absl::StrCat("expected .txt or .jsonl files in the folder, got both: ", text->second[0],
                                          " and ", lines->second[0]));
  }
  return text != names.end() ? ".txt" : ".jsonl";
}

constexpr size_t kHashedTokens = 16'384;  // at a time: they stay in the processor's cache

}  // namespace

std::string TokenFolder::Skipped() const {
  std::vector<std::string> parts;
  if (!held_out.empty()) parts.push_back(absl::StrCat(Shown(held_out), ", which --held_out holds out"));
  if (!twins.empty()) parts.push_back(Shown(twins));
  if (!hidden.empty()) {
    parts.push_back(absl::StrCat(hidden.size(), hidden.size() == 1 ? " name that begins" : " names that begin",
                                 " with \".\" (", Shown(hidden), ")"));
  }
  for (const auto& [ending, names] : other) parts.push_back(OtherText(ending, names));
  return parts.empty() ? "" : "skips " + absl::StrJoin(parts, "; ");
}

absl::StatusOr<TokenFolder> FindTokenFiles(const std::string& path, const std::string& held_out_path) {
  TokenFolder folder;
  ASSIGN_OR_RETURN(auto names, Sort(path, folder));
  ASSIGN_OR_RETURN(const std::string chosen, ChooseEnding(path, names));
  const std::vector<std::string> held_out = held_out_path.empty() ? std::vector<std::string>() : FilesAt(held_out_path);
  std::vector<std::string> taken;
  for (auto& [ending, ones] : names) {
    if (ending != chosen) folder.other[ending] = std::move(ones);
  }
  std::map<std::pair<size_t, uint64_t>, std::vector<std::string>> by_ends;
  // Files before links to them.
  std::stable_partition(names[chosen].begin(), names[chosen].end(), [&](const std::string& name) {
    std::error_code error;
    return !fs::is_symlink(fs::path(path) / name, error);
  });
  for (const std::string& name : names[chosen]) {
    const std::string file = (fs::path(path) / name).string();
    if (IsOneOf(file, held_out)) {
      folder.held_out.push_back(name);
      continue;
    }
    std::vector<std::string>& alike = by_ends[EndsOf(file)];
    const auto twin = std::ranges::find_if(alike, [&](const std::string& other) {
      std::error_code error;
      return fs::equivalent(file, other, error) || SameBytes(file, other);
    });
    if (twin != alike.end()) {
      folder.twins.push_back(absl::StrCat(name, " (", fs::path(*twin).filename().string(), " again)"));
      continue;
    }
    alike.push_back(file);
    taken.push_back(name);
    folder.files.push_back(file);
  }
  std::ranges::sort(taken);
  std::ranges::sort(folder.files);
  if (held_out_path.empty()) {
    std::ranges::copy_if(taken, std::back_inserter(folder.for_validation), IsForValidation);
    if (folder.for_validation.size() == taken.size()) folder.for_validation.clear();
  }
  const std::string skipped = folder.Skipped();
  const std::string and_skipped = skipped.empty() ? "" : "; " + skipped;
  if (taken.empty()) {
    return WrongFolder(path, absl::StrCat("expected .bin, .npy, .txt or .jsonl files in the folder, got ",
                                          folder.held_out.empty() ? "none" : "none but what is held out", and_skipped));
  }
  if (!folder.other.empty() && std::ranges::all_of(taken, IsDocument)) {
    return WrongFolder(path, absl::StrCat("expected data in the folder, got ", Shown(taken), " alone", and_skipped,
                                          ": unpack or convert the data; to train on ", taken[0], ", name that file"));
  }
  return folder;
}

bool HasSameFile(const std::string& path, const std::string& held_out_path) {
  return IsOneOf(path, FilesAt(held_out_path));
}

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
