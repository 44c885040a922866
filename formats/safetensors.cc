#include "formats/safetensors.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/check.h"
#include "core/dtype.h"
#include "core/json_text.h"
#include "core/text.h"
#include "formats/atomic_file.h"
#include "formats/file_kind.h"

namespace causeway::formats {
namespace {

using SortedJson = nlohmann::json;

static_assert(std::endian::native == std::endian::little, "values are written and read as they lie in memory");

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr int64_t kHeadBytes = 512;               // that tell what other kind of file it is
constexpr size_t kHeaderAlignment = 8;            // so that a reader may map the values in place
constexpr char kMetadataKey[] = "__metadata__";

int64_t NumValues(const std::vector<int64_t>& shape) {
  int64_t values = 1;
  for (int64_t extent : shape) values *= extent;
  return values;
}

// Bytes of one value; 0 for a dtype that the format does not know.
int64_t ValueBytes(const std::string& dtype) {
  static constexpr std::pair<const char*, int64_t> kTypes[] = {
      {"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"I64", 8}, {"I32", 4},
      {"I16", 2}, {"I8", 1},  {"U64", 8}, {"U32", 4},  {"U16", 2},     {"U8", 1},      {"BOOL", 1}};
  for (const auto& [name, bytes] : kTypes) {
    if (dtype == name) return bytes;
  }
  return 0;
}

constexpr size_t kValuesAtOnce = 1 << 16;  // while they are widened or rounded

std::string HeaderOf(std::span<const TensorData> tensors, const std::map<std::string, std::string>& metadata,
                     const std::string& dtype) {
  SortedJson header = SortedJson::object();
  if (!metadata.empty()) header[kMetadataKey] = metadata;
  int64_t offset = 0;
  for (const TensorData& tensor : tensors) {
    CHECK(NumValues(tensor.shape) == static_cast<int64_t>(tensor.values.size()));
    CHECK(tensor.name != kMetadataKey && !header.contains(tensor.name));
    const int64_t end = offset + static_cast<int64_t>(tensor.values.size()) * ValueBytes(dtype);
    header[tensor.name] = {{"dtype", dtype}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump(-1, ' ', false, SortedJson::error_handler_t::replace);
  text.resize((text.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');
  return text;
}

absl::Status AppendRounded(std::span<const float> values, AtomicFile& file) {
  std::vector<uint16_t> halves(std::min(kValuesAtOnce, values.size()));
  while (!values.empty()) {
    const std::span<const float> part = values.first(std::min(halves.size(), values.size()));
    core::Store(core::DType::kBfloat16, part, halves.data());
    RETURN_IF_ERROR(file.Append(std::as_bytes(std::span(halves).first(part.size()))));
    values = values.subspan(part.size());
  }
  return absl::OkStatus();
}

// A JSON number that is a whole one in 0 … 2^63 − 1.
std::optional<int64_t> NaturalNumber(const SortedJson& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  const uint64_t number = value.get<uint64_t>();
  if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
  return static_cast<int64_t>(number);
}

std::optional<std::vector<int64_t>> NaturalNumbers(const SortedJson& values) {
  if (!values.is_array()) return std::nullopt;
  std::vector<int64_t> numbers;
  for (const SortedJson& value : values) {
    const std::optional<int64_t> number = NaturalNumber(value);
    if (!number) return std::nullopt;
    numbers.push_back(*number);
  }
  return numbers;
}

// shape × value_bytes, or nothing where that overflows.
std::optional<int64_t> TensorBytes(const std::vector<int64_t>& shape, int64_t value_bytes) {
  int64_t bytes = value_bytes;
  for (int64_t extent : shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  }
  return bytes;
}

// One tensor of the header; its offset is still relative to the values. An error says what was expected and got.
absl::StatusOr<SafetensorsFile::Entry> ParseEntry(const std::string& name, const SortedJson& json, int64_t data_bytes) {
  if (!json.is_object() || !json.contains("dtype") || !json["dtype"].is_string() || !json.contains("shape") ||
      !json.contains("data_offsets")) {
    return absl::InvalidArgumentError("expected dtype, shape and data_offsets");
  }
  SafetensorsFile::Entry entry{.name = name, .dtype = json["dtype"].get<std::string>()};
  const int64_t value_bytes = ValueBytes(entry.dtype);
  if (value_bytes == 0)
    return absl::InvalidArgumentError(absl::StrCat("expected a known dtype, got ", core::ShownJson(json["dtype"])));
  std::optional<std::vector<int64_t>> shape = NaturalNumbers(json["shape"]);
  if (!shape) return absl::InvalidArgumentError("expected a shape of whole numbers");
  const std::optional<std::vector<int64_t>> offsets = NaturalNumbers(json["data_offsets"]);
  if (!offsets || offsets->size() != 2 || (*offsets)[0] > (*offsets)[1] || (*offsets)[1] > data_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("expected data_offsets [begin, end] within the file's ", data_bytes,
                                                   " bytes of values, got ", core::ShownJson(json["data_offsets"])));
  }
  entry.shape = *std::move(shape);
  entry.offset = (*offsets)[0];
  entry.bytes = (*offsets)[1] - entry.offset;
  if (TensorBytes(entry.shape, value_bytes) != entry.bytes) {
    return absl::InvalidArgumentError(absl::StrCat("expected data_offsets as long as ", entry.dtype, " [",
                                                   core::Shown(absl::StrJoin(entry.shape, ",")), "], got ", entry.bytes,
                                                   " bytes"));
  }
  return entry;
}

}  // namespace

absl::StatusOr<FileDigest> WriteSafetensors(const std::string& path, std::span<const TensorData> tensors,
                                            const std::map<std::string, std::string>& metadata, ValueType type) {
  const bool rounded = type == ValueType::kBfloat16;
  const std::string header = HeaderOf(tensors, metadata, rounded ? "BF16" : "F32");
  const uint64_t length = header.size();
  ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  RETURN_IF_ERROR(file.Append(std::as_bytes(std::span<const uint64_t>(&length, 1))));
  RETURN_IF_ERROR(file.Append(header));
  for (const TensorData& tensor : tensors) {
    RETURN_IF_ERROR(rounded ? AppendRounded(tensor.values, file) : file.Append(std::as_bytes(tensor.values)));
  }
  RETURN_IF_ERROR(file.Commit());
  return file.digest();
}

absl::Status SafetensorsFile::Wrong(const std::string& what) const {
  return absl::InvalidArgumentError(absl::StrCat(path_, ": ", what));
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  SafetensorsFile result;
  result.path_ = path;
  ASSIGN_OR_RETURN(result.file_, OpenRegularFile(path));
  RETURN_IF_ERROR(result.ReadHeader());
  return result;
}

absl::Status SafetensorsFile::ReadHeader() {
  ASSIGN_OR_RETURN(const int64_t size, FileSize(file_, path_));
  std::vector<std::byte> head(static_cast<size_t>(std::min(size, kHeadBytes)));
  RETURN_IF_ERROR(ReadAt(file_, path_, 0, head));
  if (const FileKind* kind = RecognizeFile(head); kind != nullptr && !kind->is_safetensors) {
    return RefuseKind(path_, kind, "a safetensors file", FileUse::kModel);
  }
  if (size < kLengthBytes) return Wrong(absl::StrCat("expected a safetensors file, got ", size, " bytes"));
  uint64_t length = 0;
  RETURN_IF_ERROR(ReadAt(file_, path_, 0, std::as_writable_bytes(std::span<uint64_t>(&length, 1))));
  const int64_t longest = std::min(kMaxHeaderBytes, size - kLengthBytes);
  if (length > static_cast<uint64_t>(longest)) {
    return Wrong(absl::StrCat("expected a header of at most ", longest, " bytes, got ", length));
  }
  std::string header(length, '\0');
  RETURN_IF_ERROR(ReadAt(file_, path_, kLengthBytes, std::as_writable_bytes(std::span<char>(header))));
  const int64_t data_begin = kLengthBytes + static_cast<int64_t>(length);
  return ParseHeader(header, data_begin, size - data_begin);
}

absl::Status SafetensorsFile::ParseHeader(const std::string& header, int64_t data_begin, int64_t data_bytes) {
  ASSIGN_OR_RETURN(const SortedJson json, core::ParseJson<SortedJson>(header, absl::StrCat(path_, ": header")));
  if (!json.is_object()) return Wrong("expected a header that is a JSON object");
  for (const auto& [name, value] : json.items()) {
    if (name == kMetadataKey) {
      if (!value.is_object()) return Wrong("__metadata__: expected an object of texts");
      for (const auto& [key, text] : value.items()) {
        if (!text.is_string()) return Wrong(absl::StrCat("__metadata__: ", core::Shown(key), ": expected a text"));
        metadata_[key] = text.get<std::string>();
      }
      continue;
    }
    absl::StatusOr<Entry> entry = ParseEntry(name, value, data_bytes);
    if (!entry.ok()) return Wrong(absl::StrCat("tensor ", core::Shown(name), ": ", entry.status().message()));
    tensors_.push_back(*std::move(entry));
  }
  std::sort(tensors_.begin(), tensors_.end(),
            [](const Entry& a, const Entry& b) { return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes); });
  int64_t end = 0;  // the format allows neither overlaps nor gaps
  for (Entry& entry : tensors_) {
    if (entry.offset != end) {
      return Wrong(
          absl::StrCat("tensor ", core::Shown(entry.name), ": expected its values at ", end, ", got ", entry.offset));
    }
    end += entry.bytes;
    entry.offset += data_begin;
    index_.emplace(entry.name, index_.size());
  }
  if (end != data_bytes) return Wrong(absl::StrCat("expected ", end, " bytes of values, got ", data_bytes));
  return absl::OkStatus();
}

const SafetensorsFile::Entry* SafetensorsFile::Find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

absl::Status SafetensorsFile::Read(const std::string& name, std::span<float> out) const {
  const Entry* entry = Find(name);
  if (entry == nullptr) return Wrong(absl::StrCat("tensor ", name, " is missing"));
  if (entry->dtype != "F32" && entry->dtype != "F16" && entry->dtype != "BF16") {
    return Wrong(absl::StrCat("tensor ", core::Shown(name), ": expected F32, F16 or BF16, got ", entry->dtype));
  }
  const int64_t values = entry->bytes / ValueBytes(entry->dtype);
  if (values != static_cast<int64_t>(out.size())) {
    return Wrong(absl::StrCat("tensor ", name, ": expected ", out.size(), " values, got ", values));
  }
  if (entry->dtype == "F32") return ReadAt(file_, path_, entry->offset, std::as_writable_bytes(out));
  return ReadHalves(*entry, out);
}

absl::Status SafetensorsFile::ReadPart(const std::string& name, int64_t first, std::span<float> out) const {
  const Entry* entry = Find(name);
  if (entry == nullptr) return Wrong(absl::StrCat("tensor ", name, " is missing"));
  if (entry->dtype != "F32") return Wrong(absl::StrCat("tensor ", name, ": expected F32, got ", entry->dtype));
  const int64_t values = entry->bytes / static_cast<int64_t>(sizeof(float));
  if (first < 0 || first > values - std::ssize(out)) {
    return Wrong(absl::StrCat("tensor ", name, ": expected values ", first, " to ", first + std::ssize(out),
                              " in it, got ", values));
  }
  const int64_t offset = entry->offset + first * static_cast<int64_t>(sizeof(float));
  return ReadAt(file_, path_, offset, std::as_writable_bytes(out));
}

absl::Status SafetensorsFile::ReadHalves(const Entry& entry, std::span<float> out) const {
  std::vector<uint16_t> halves(std::min(kValuesAtOnce, out.size()));
  const core::DType dtype = entry.dtype == "BF16" ? core::DType::kBfloat16 : core::DType::kFloat16;
  int64_t offset = entry.offset;
  while (!out.empty()) {
    const std::span<uint16_t> part(halves.data(), std::min(halves.size(), out.size()));
    RETURN_IF_ERROR(ReadAt(file_, path_, offset, std::as_writable_bytes(part)));
    core::Load(dtype, part.data(), out.first(part.size()));
    out = out.subspan(part.size());
    offset += static_cast<int64_t>(part.size_bytes());
  }
  return absl::OkStatus();
}

}  // namespace causeway::formats
