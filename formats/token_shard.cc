#include "formats/token_shard.h"

#include <algorithm>
#include <bit>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "formats/json_lines.h"

namespace causeway::formats {
namespace {

static_assert(std::endian::native == std::endian::little);  // as the files are

constexpr int64_t kByteValues = 256;
constexpr int64_t kNarrow = 2, kWide = 4;  // bytes of a token
constexpr int64_t kNarrowValues = int64_t{1} << 16;

// llm.c's headers. Their magics are dates of one year, and they have at most 16 fields; the rest is zero.
constexpr size_t kHeaderFields = 256, kUsedFields = 16;
constexpr size_t kHeaderBytes = kHeaderFields * sizeof(int32_t);
constexpr int32_t kFirstMagic = 20240101, kLastMagic = 20241231;
struct HeaderKind {
  int32_t magic, version;
  int64_t width;
};
constexpr HeaderKind kHeaders[] = {{20240520, 1, kNarrow}, {20240801, 7, kWide}};

int32_t Int32At(std::span<const std::byte> bytes, size_t index) {
  int32_t value;
  std::memcpy(&value, bytes.data() + index * sizeof value, sizeof value);
  return value;
}

absl::Status Wrong(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

const HeaderKind* KindOf(int32_t magic) {
  const auto kind = std::ranges::find(kHeaders, magic, &HeaderKind::magic);
  return kind == std::end(kHeaders) ? nullptr : kind;
}

// By chance tokens hardly ever begin like a header of llm.c: a thousand bytes of them are not mostly zero.
bool HasHeader(std::span<const std::byte> bytes) {
  if (bytes.size() < kHeaderBytes) return false;
  const int32_t magic = Int32At(bytes, 0);
  if (KindOf(magic) != nullptr) return true;
  const auto rest = bytes.subspan(kUsedFields * sizeof(int32_t), kHeaderBytes - kUsedFields * sizeof(int32_t));
  return magic >= kFirstMagic && magic <= kLastMagic &&
         std::ranges::all_of(rest, [](std::byte byte) { return byte == std::byte{0}; });
}

// Takes llm.c's header off the bytes; `tokens` leaves as what follows. Gives the width of the tokens.
absl::StatusOr<int64_t> TakeHeader(const std::string& path, std::span<const std::byte>& tokens) {
  const int32_t magic = Int32At(tokens, 0), version = Int32At(tokens, 1), count = Int32At(tokens, 2);
  const HeaderKind* kind = KindOf(magic);
  if (kind == nullptr || kind->version != version) {
    return Wrong(path, absl::StrCat("expected tokens, with llm.c's header of magic 20240520, version 1 (uint16) or "
                                    "magic 20240801, version 7 (uint32), or with none; got llm.c's header of magic ",
                                    magic, ", version ", version));
  }
  tokens = tokens.subspan(kHeaderBytes);
  if (tokens.empty()) return Wrong(path, "expected tokens, got a header alone");
  if (int64_t{count} * kind->width != static_cast<int64_t>(tokens.size())) {
    return Wrong(path, absl::StrCat("expected ", count, " tokens of ", kind->width, " bytes, as its header says, got ",
                                    tokens.size(), " bytes"));
  }
  return kind->width;
}

// Every second uint16 is zero: the upper halves of uint32 tokens.
bool LooksWide(std::span<const std::byte> tokens) {
  if (tokens.size() % kWide != 0) return false;
  for (size_t at = kNarrow; at < tokens.size(); at += kWide) {
    if (tokens[at] != std::byte{0} || tokens[at + 1] != std::byte{0}) return false;
  }
  return true;
}

absl::StatusOr<int64_t> RawWidth(const std::string& path, std::span<const std::byte> tokens,
                                 const TokenFormat& format) {
  const int64_t width = format.token_bytes;
  if (width == kNarrow && format.vocab_size > kNarrowValues) {
    return Wrong(path,
                 absl::StrCat("expected data.token_bytes: 4 for a vocab_size of ", format.vocab_size, ", got ", width));
  }
  if (tokens.size() % width != 0) {
    return Wrong(path, absl::StrCat("expected ", width, " bytes for each token, got ", tokens.size(), " bytes"));
  }
  if (width == kNarrow && LooksWide(tokens)) {
    return Wrong(path, "expected uint16 tokens, got what looks like uint32: data.token_bytes: 4");
  }
  return width;
}

}  // namespace

absl::StatusOr<TokenShard> TokenShard::OpenBin(const std::string& path, const TokenFormat& format) {
  TokenShard shard;
  ASSIGN_OR_RETURN(shard.file_, MappedFile::Map(path));
  shard.tokens_ = shard.file_.bytes();
  const bool has_header = HasHeader(shard.tokens_);
  ASSIGN_OR_RETURN(shard.width_, has_header ? TakeHeader(path, shard.tokens_) : RawWidth(path, shard.tokens_, format));
  for (int64_t i = 0; i < shard.size(); ++i) {
    if (shard[i] < format.vocab_size) continue;
    const bool may_be_narrow = !has_header && shard.width_ == kWide && format.vocab_size <= kNarrowValues;
    return Wrong(path, absl::StrCat("token ", i, ": expected less than vocab_size ", format.vocab_size, ", got ",
                                    shard[i], may_be_narrow ? " (of uint16 tokens: data.token_bytes: 2)" : ""));
  }
  return shard;
}

absl::StatusOr<TokenShard> TokenShard::Open(const std::string& path, const TokenFormat& format) {
  if (absl::EndsWith(path, ".bin")) return OpenBin(path, format);
  TokenShard shard;
  if (absl::EndsWith(path, ".jsonl")) {
    ASSIGN_OR_RETURN(shard.decoded_, ReadJsonLines(path));
    shard.tokens_ = shard.decoded_;
  } else {
    ASSIGN_OR_RETURN(shard.file_, MappedFile::Map(path));
    shard.tokens_ = shard.file_.bytes();
  }
  if (format.vocab_size >= kByteValues) return shard;
  return Wrong(path, absl::StrCat("expected a vocab_size of ", kByteValues, " or more for bytes as tokens, got ",
                                  format.vocab_size));
}

}  // namespace causeway::formats
