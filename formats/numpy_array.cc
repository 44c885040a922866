#include "formats/numpy_array.h"

#include <bit>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/check.h"
#include "core/text.h"

namespace causeway::formats {
namespace {

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
std::string TypeOf(const std::string& header) {
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

}  // namespace

absl::StatusOr<NumpyArray> ReadNumpyArray(const std::string& path, std::span<const std::byte> file) {
  NumpyArray array{.values = file};
  const std::optional<std::string> header = TakeHeader(array.values);
  const auto shape = header ? ShapeOf(*header) : std::nullopt;
  if (!shape) return Wrong(path, "expected an array of numpy.save, got a header that is damaged or cut short");
  const std::string type = TypeOf(*header);
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

}  // namespace causeway::formats
