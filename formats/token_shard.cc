#include "formats/token_shard.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/check.h"
#include "core/text.h"
#include "formats/file_kind.h"
#include "formats/json_lines.h"
#include "formats/token_looks.h"

namespace causeway::formats {
namespace {

// The header of a file of numpy.save: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
//
//   | 93 N U M P Y | version | length | {'descr': '<u2', 'fortran_order': False, 'shape': (3000,), } | values |
//
// The values are tokens as they lie there, so that they are mapped like those of a .bin. Pure.

struct NumpyArray {
  std::span<const std::byte> values;  // little-endian
  int64_t width = 0;                  // bytes of a value: 1, 2, 4 or 8
  bool is_signed = false;
};

constexpr size_t kMagicBytes = 6, kVersionBytes = 2;
constexpr size_t kShownBytes = 40;

absl::Status Wrong(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

// The dictionary of the header; `values` leaves as what follows.
std::optional<std::string> TakeHeader(std::span<const std::byte>& values) {
  const std::string_view text(reinterpret_cast<const char*>(values.data()), values.size());
  const size_t begin = kMagicBytes + kVersionBytes;
  if (text.size() < begin + sizeof(uint32_t)) return std::nullopt;
  const size_t length_bytes = text[kMagicBytes] == 1 ? sizeof(uint16_t) : sizeof(uint32_t);
  uint32_t length = 0;
  std::memcpy(&length, text.data() + begin, length_bytes);
  if (length > text.size() - begin - length_bytes) return std::nullopt;
  values = values.subspan(begin + length_bytes + length);
  return std::string(text.substr(begin + length_bytes, length));
}

// The text after 'KEY': in the dictionary, up to `end`; empty where there is no such key.
std::string ValueOf(const std::string& header, const std::string& key, char end) {
  const size_t at = header.find(absl::StrCat("'", key, "':"));
  if (at == std::string::npos) return "";
  const std::string value(absl::StripLeadingAsciiWhitespace(header.substr(at + key.size() + 3)));
  return value.substr(0, value.find(end, 1));
}

// "<u2"; a record's type is a list.
std::string NumpyTypeOf(const std::string& header) {
  const std::string type = ValueOf(header, "descr", header.find("'descr': [") == std::string::npos ? '\'' : ']');
  return type.starts_with("'") ? type.substr(1) : type;
}

// <u2 for people: uint16.
std::string TypeName(const std::string& type) {
  constexpr std::pair<char, const char*> kKinds[] = {{'u', "uint"}, {'i', "int"}, {'f', "float"}, {'c', "complex"}};
  for (const auto& [kind, name] : kKinds) {
    int bytes = 0;
    if (type.size() < 3 || type[1] != kind || !absl::SimpleAtoi(type.substr(2), &bytes)) continue;
    return absl::StrCat(name, 8 * bytes, type[0] == '>' ? ", big-endian" : "");
  }
  return absl::StrCat("values of type ", core::Clipped(type, kShownBytes));
}

// Extents of the shape; nothing where it is none.
std::optional<std::vector<int64_t>> ShapeOf(const std::string& header) {
  const std::string text = ValueOf(header, "shape", ')');
  if (!text.starts_with("(")) return std::nullopt;
  std::vector<int64_t> shape;
  for (const absl::string_view extent : absl::StrSplit(text.substr(1), ',', absl::SkipWhitespace())) {
    if (!absl::SimpleAtoi(extent, &shape.emplace_back()) || shape.back() < 0) return std::nullopt;
  }
  return shape;
}

// Whether the shape has as many values as there are, without overflow.
bool Fits(const std::vector<int64_t>& shape, int64_t values) {
  int64_t product = 1;
  for (const int64_t extent : shape) {
    if (__builtin_mul_overflow(product, extent, &product)) return false;
  }
  return product == values;
}

// An array of whole numbers, of any shape, row after row. INVALID_ARGUMENT names the type of another one.
absl::StatusOr<NumpyArray> ReadNumpyArray(const std::string& path, std::span<const std::byte> file) {
  NumpyArray array{.values = file};
  const std::optional<std::string> header = TakeHeader(array.values);
  const auto shape = header ? ShapeOf(*header) : std::nullopt;
  if (!shape) return Wrong(path, "expected an array of numpy.save, got a header that is damaged or cut short");
  const std::string type = NumpyTypeOf(*header);
  const bool whole_numbers = type.size() == 3 && (type[1] == 'u' || type[1] == 'i') && type[0] != '>';
  if (!whole_numbers || !absl::SimpleAtoi(type.substr(2), &array.width) || array.width > 8 ||
      !std::has_single_bit(static_cast<uint64_t>(array.width))) {
    return Wrong(path, absl::StrCat("expected an array of whole numbers, little-endian, got ", TypeName(type),
                                    R"(: numpy.save("train.npy", array.astype("<u4")))"));
  }
  array.is_signed = type[1] == 'i';
  if (shape->size() > 1 && ValueOf(*header, "fortran_order", ',') == "True") {
    return Wrong(path, R"(expected rows of tokens, got Fortran's order: numpy.save("train.npy", array.copy("C")))");
  }
  const auto bytes = static_cast<int64_t>(array.values.size());
  if (bytes % array.width != 0 || !Fits(*shape, bytes / array.width)) {
    return Wrong(path, absl::StrCat("expected (", absl::StrJoin(*shape, ", "), ") tokens of ", array.width,
                                    " bytes, as its header says, got ", bytes, " bytes"));
  }
  if (bytes == 0) return Wrong(path, "expected tokens, got a header alone");
  return array;
}

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

// The Python that writes tokens as the run reads them.
std::string HowToWrite(const TokenFormat& format) {
  return absl::StrCat("write numpy.array(tokens, \"", format.vocab_size > kNarrowValues ? "<u4" : "<u2",
                      "\").tofile(\"train.bin\")");
}

const char* NameOf(int64_t width) { return width == kNarrow ? "uint16" : "uint32"; }

// The remedy if the tokens are of the type that they look like.
std::string AdviceFor(std::string_view look, const TokenFormat& format) {
  if (look == kLooksUint32 && format.token_bytes == kNarrow) return "data.token_bytes: 4";
  return HowToWrite(format);
}

absl::StatusOr<int64_t> RawWidth(const std::string& path, std::span<const std::byte> tokens,
                                 const TokenFormat& format) {
  const int64_t width = format.token_bytes;
  if (LookOfTokens(tokens) == kLooksText) {
    return Wrong(path, absl::StrCat("expected ", NameOf(width),
                                    " tokens, got what looks like text: name it .txt, or .jsonl if it is JSON lines"));
  }
  if (width == kNarrow && format.vocab_size > kNarrowValues) {
    return Wrong(path,
                 absl::StrCat("expected data.token_bytes: 4 for a vocab_size of ", format.vocab_size, ", got ", width));
  }
  if (tokens.size() % width != 0) {
    return Wrong(path, absl::StrCat("expected ", width, " bytes for each token, got ", tokens.size(), " bytes"));
  }
  return width;
}

std::string_view TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Numbers below 128 are UTF-8, too, but each second or third byte of theirs is zero, and they are to be a .bin.
bool HasZeroHalves(std::string_view text) {
  constexpr size_t kLeastBytes = 4, kMostBytes = 1 << 16;
  text = text.substr(0, kMostBytes);
  size_t zeros[2] = {};
  for (size_t i = 0; i < text.size(); ++i) zeros[i % 2] += text[i] == '\0';
  const size_t half = text.size() / 2;
  return text.size() >= kLeastBytes && (zeros[0] >= half || zeros[1] >= half);
}

absl::Status CheckText(const std::string& path, std::span<const std::byte> bytes) {
  constexpr char kTokensElsewhere[] = "; tokens are read from files that end in .bin, or from .npy";
  const std::string_view text = TextOf(bytes);
  if (const size_t end = core::Utf8BytesOfPart(text); end < text.size()) {
    return Wrong(path, absl::StrFormat(
                           "expected text in UTF-8, got byte 0x%02x in line %d: iconv converts text of another "
                           "encoding%s",
                           static_cast<unsigned char>(text[end]), core::PlaceInText(text, end).line, kTokensElsewhere));
  }
  return HasZeroHalves(text) ? Wrong(path, absl::StrCat("expected text in UTF-8, got bytes of which each second is 0",
                                                        kTokensElsewhere))
                             : absl::OkStatus();
}

}  // namespace

absl::Status TokenShard::CheckTokens(const std::string& path, const TokenFormat& format, bool is_raw) const {
  for (int64_t i = 0; i < size(); ++i) {
    const int64_t value = Value(i);
    if (value >= 0 && value < format.vocab_size) continue;
    std::string advice;
    const std::string_view look = is_raw ? LookOfTokens(tokens_) : "";
    const bool as_read = look.empty() || (width_ == kWide && look == kLooksUint32);
    if (is_raw && width_ == kWide && format.vocab_size <= kNarrowValues && look.empty()) {
      advice = " (of uint16 tokens: data.token_bytes: 2)";
    } else if (!as_read) {
      advice = absl::StrCat(" (the file looks like ", std::string(look), ": ", AdviceFor(look, format), ")");
    }
    if (is_raw && FitsBigEndian(tokens_, width_, format.vocab_size)) {
      advice = absl::StrCat(" (the bytes look big-endian: ", HowToWrite(format), ")");
    }
    return Wrong(path, absl::StrCat("token ", i, ": expected ", value < 0 ? "0 to " : "", "less than vocab_size ",
                                    format.vocab_size, ", got ", value, advice));
  }
  return absl::OkStatus();
}

int64_t TokenShard::Value(int64_t index) const {
  int64_t value = 0;
  std::memcpy(&value, tokens_.data() + index * width_, static_cast<size_t>(width_));
  const int unused_bits = 64 - 8 * static_cast<int>(width_);
  return is_signed_ ? static_cast<int64_t>(static_cast<uint64_t>(value) << unused_bits) >> unused_bits : value;
}

absl::Status TokenShard::OpenBin(const std::string& path, const TokenFormat& format) {
  const bool has_header = HasHeader(tokens_);
  ASSIGN_OR_RETURN(width_, has_header ? TakeHeader(path, tokens_) : RawWidth(path, tokens_, format));
  RETURN_IF_ERROR(CheckTokens(path, format, !has_header));
  const std::string_view look = has_header ? "" : LookOfTokens(tokens_);
  if (look.empty() || (width_ == kWide && look == kLooksUint32)) return absl::OkStatus();
  constexpr int64_t kFirst = 6;
  std::vector<int64_t> first;
  for (int64_t i = 0; i < std::min(kFirst, size()); ++i) first.push_back(Value(i));
  note_ = absl::StrCat(path, ": is read as ", NameOf(width_), " (data.token_bytes: ", width_,
                       "): ", absl::StrJoin(first, ", "), ", …; it looks like ", std::string(look),
                       " as well. If that is what it is: ", AdviceFor(look, format),
                       "; a .npy, or llm.c's header, says which");
  return absl::OkStatus();
}

absl::Status TokenShard::OpenNumpy(const std::string& path, const TokenFormat& format) {
  ASSIGN_OR_RETURN(const NumpyArray array, ReadNumpyArray(path, tokens_));
  tokens_ = array.values;
  width_ = array.width;
  is_signed_ = array.is_signed;
  return CheckTokens(path, format, /*is_raw=*/false);
}

absl::Status TokenShard::OpenText(const std::string& path, const TokenFormat& format) {
  if (absl::EndsWith(path, ".jsonl")) {
    ASSIGN_OR_RETURN(decoded_, ReadJsonLines(path, TextOf(tokens_)));
    tokens_ = decoded_;
  } else {
    RETURN_IF_ERROR(CheckText(path, tokens_));
  }
  if (format.vocab_size >= kByteValues) return absl::OkStatus();
  return Wrong(path, absl::StrCat("expected a vocab_size of ", kByteValues, " or more for bytes as tokens, got ",
                                  format.vocab_size));
}

absl::StatusOr<TokenShard> TokenShard::Open(const std::string& path, const TokenFormat& format) {
  TokenShard shard;
  shard.vocab_size_ = static_cast<uint32_t>(format.vocab_size);
  ASSIGN_OR_RETURN(shard.file_, MappedFile::Map(path));
  shard.tokens_ = shard.file_.bytes();
  if (IsNumpyArray(shard.tokens_)) {
    RETURN_IF_ERROR(shard.OpenNumpy(path, format));
    return shard;
  }
  const bool is_bin = absl::EndsWith(path, ".bin");
  const bool is_page = absl::EndsWith(path, ".html") || absl::EndsWith(path, ".htm") || absl::EndsWith(path, ".xml");
  if (!is_page) {
    RETURN_IF_ERROR(RefuseKind(path, is_bin ? RecognizeFile(shard.tokens_) : RecognizeText(shard.tokens_),
                               "text, JSON lines or tokens", FileUse::kData));
  }
  RETURN_IF_ERROR(is_bin ? shard.OpenBin(path, format) : shard.OpenText(path, format));
  return shard;
}

}  // namespace causeway::formats
