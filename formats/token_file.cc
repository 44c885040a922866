#include "formats/token_file.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "formats/posix_file.h"

namespace causeway::formats {
namespace {

constexpr int64_t kByteValues = 256;
constexpr int64_t kTokenBytes = 2;
constexpr size_t kHeaderBytes = 256 * sizeof(int32_t);  // llm.c's
constexpr int32_t kMagic = 20240520;                    // uint16 tokens
constexpr int32_t kHeaderVersion = 1;
constexpr int32_t kWideMagic = 20240801;  // uint32 tokens

// llm.c's magics are dates of this year. Its headers have at most 16 fields; the rest of their 256 is zero.
constexpr int32_t kFirstMagic = 20240101, kLastMagic = 20241231;
constexpr size_t kHeaderFields = 16;

int32_t Int32At(std::span<const std::byte> bytes, size_t index) {
  int32_t value;
  std::memcpy(&value, bytes.data() + index * sizeof value, sizeof value);
  return value;
}

absl::Status Wrong(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

// Begins like one of llm.c's files that has no tokens of 2 bytes, rather than with tokens. By chance tokens hardly ever
// do: a thousand bytes of them are not mostly zero.
bool HasOtherHeader(std::span<const std::byte> bytes) {
  const int32_t magic = Int32At(bytes, 0);
  if (magic == kWideMagic) return true;
  const auto rest = bytes.subspan(kHeaderFields * sizeof(int32_t), kHeaderBytes - kHeaderFields * sizeof(int32_t));
  return magic >= kFirstMagic && magic <= kLastMagic &&
         std::ranges::all_of(rest, [](std::byte byte) { return byte == std::byte{0}; });
}

// Takes llm.c's header off the bytes of a .bin file, if it has one; `tokens` leaves as what follows.
absl::Status TakeHeader(const std::string& path, std::span<const std::byte>& tokens) {
  if (tokens.size() < kHeaderBytes) return absl::OkStatus();
  const int32_t magic = Int32At(tokens, 0);
  const int32_t version = Int32At(tokens, 1);
  const int32_t count = Int32At(tokens, 2);
  if (magic != kMagic) {
    if (!HasOtherHeader(tokens)) return absl::OkStatus();
    return Wrong(
        path, absl::StrCat("expected uint16 tokens, with llm.c's header of magic ", kMagic, ", version ",
                           kHeaderVersion, ", or with none; got llm.c's header of magic ", magic, ", version ", version,
                           magic == kWideMagic ? ": uint32 tokens, which are not read yet"
                                               : ", which is of no file of tokens that is known"));
  }
  tokens = tokens.subspan(kHeaderBytes);
  if (version != kHeaderVersion) {
    return Wrong(path, absl::StrCat("expected a header of version ", kHeaderVersion, ", got ", version));
  }
  if (int64_t{count} * kTokenBytes != static_cast<int64_t>(tokens.size())) {
    return Wrong(path, absl::StrCat("expected ", count, " tokens of 2 bytes, as its header says, got ", tokens.size(),
                                    " bytes"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> ShardsIn(const std::string& folder) {
  std::vector<std::string> shards;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().extension() == ".bin") shards.push_back(entry->path().string());
  }
  if (error) return Wrong(folder, absl::StrCat("cannot read the folder: ", error.message()));
  if (shards.empty()) return Wrong(folder, "expected .bin files in the folder, got none");
  std::sort(shards.begin(), shards.end());
  return shards;
}

}  // namespace

absl::StatusOr<TokenFile::Mapping> TokenFile::Mapping::Map(const std::string& path) {
  ASSIGN_OR_RETURN(const FileDescriptor file, OpenRegularFile(path));
  ASSIGN_OR_RETURN(const int64_t size, FileSize(file, path));
  if (size == 0) return Wrong(path, "expected tokens, got an empty file");
  void* memory = ::mmap(nullptr, static_cast<size_t>(size), PROT_READ, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) return FileError("map", path);
  return Mapping({static_cast<const std::byte*>(memory), static_cast<size_t>(size)});
}

TokenFile::Mapping::~Mapping() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

uint32_t TokenFile::Shard::At(int64_t index) const {
  if (width == 1) return std::to_integer<uint32_t>(tokens[index]);
  uint16_t token;
  std::memcpy(&token, tokens.data() + index * kTokenBytes, sizeof token);
  return token;
}

absl::StatusOr<TokenFile> TokenFile::Open(const std::string& path, int64_t vocab_size) {
  TokenFile file;
  if (std::error_code error; std::filesystem::is_directory(path, error)) {
    ASSIGN_OR_RETURN(const std::vector<std::string> shards, ShardsIn(path));
    for (const std::string& shard : shards) RETURN_IF_ERROR(file.AddBin(shard, vocab_size));
  } else if (absl::EndsWith(path, ".bin")) {
    RETURN_IF_ERROR(file.AddBin(path, vocab_size));
  } else {
    RETURN_IF_ERROR(file.AddText(path, vocab_size));
  }
  return file;
}

absl::Status TokenFile::AddText(const std::string& path, int64_t vocab_size) {
  ASSIGN_OR_RETURN(Mapping mapping, Mapping::Map(path));
  if (vocab_size < kByteValues) {
    return Wrong(
        path, absl::StrCat("expected a vocab_size of ", kByteValues, " or more for bytes as tokens, got ", vocab_size));
  }
  const std::span<const std::byte> tokens = mapping.bytes();
  Add(std::move(mapping), tokens, 1);
  return absl::OkStatus();
}

absl::Status TokenFile::AddBin(const std::string& path, int64_t vocab_size) {
  ASSIGN_OR_RETURN(Mapping mapping, Mapping::Map(path));
  std::span<const std::byte> tokens = mapping.bytes();
  RETURN_IF_ERROR(TakeHeader(path, tokens));
  if (tokens.empty()) return Wrong(path, "expected tokens, got a header alone");
  if (tokens.size() % kTokenBytes != 0) {
    return Wrong(path, absl::StrCat("expected 2 bytes for each token, got ", tokens.size(), " bytes"));
  }
  Add(std::move(mapping), tokens, kTokenBytes);
  const Shard& shard = shards_.back();
  for (int64_t i = 0; i < shard.size(); ++i) {
    if (shard.At(i) < vocab_size) continue;
    return Wrong(path,
                 absl::StrCat("token ", i, ": expected less than vocab_size ", vocab_size, ", got ", shard.At(i)));
  }
  return absl::OkStatus();
}

void TokenFile::Add(Mapping mapping, std::span<const std::byte> tokens, int64_t width) {
  shards_.push_back({std::move(mapping), tokens, width, size_});
  size_ += shards_.back().size();
}

uint32_t TokenFile::operator[](int64_t position) const {
  CHECK(position >= 0 && position < size_);
  auto shard = std::upper_bound(shards_.begin(), shards_.end(), position,
                                [](int64_t wanted, const Shard& candidate) { return wanted < candidate.first; });
  --shard;  // the last one that begins at or before it
  return shard->At(position - shard->first);
}

}  // namespace causeway::formats
