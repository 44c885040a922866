// Hugging Face's safetensors files: https://github.com/huggingface/safetensors
//
//   | 8 bytes: N, little-endian | N bytes of JSON: name → dtype, shape, data_offsets | the values, back to back |
//
// The writer streams float32 values from where they lie, without a second copy in memory, and puts the file in place
// atomically. The reader trusts nothing: a header that is too long, is not JSON, or whose tensors overlap, leave gaps,
// reach beyond the file or differ in size from their shape is INVALID_ARGUMENT, naming the file and the tensor.
// Values are little-endian and row-major, as on every machine that this builds for.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "formats/file_digest.h"
#include "formats/posix_file.h"

namespace causeway::formats {

struct TensorData {
  std::string name;
  std::vector<int64_t> shape;
  std::span<const float> values;  // as many as the shape says
};

// The form of values in a file: float32 with all bits, or bfloat16, rounded to nearest, ties to even.
enum class ValueType { kFloat32, kBfloat16 };

// Writes all tensors as values of this type, in the given order.
// REQUIRES: names are unique, and the folder exists. RETURNS: the digest of the file.
absl::StatusOr<FileDigest> WriteSafetensors(const std::string& path, std::span<const TensorData> tensors,
                                            const std::map<std::string, std::string>& metadata,
                                            ValueType type = ValueType::kFloat32);

// A file opened to read; values are read on demand. Reads are thread-safe. Move-only.
class SafetensorsFile {
 public:
  struct Entry {
    std::string name;
    std::string dtype;  // "F32", "BF16", …
    std::vector<int64_t> shape;
    int64_t offset = 0;  // offset of the first byte in the file
    int64_t bytes = 0;
  };

  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);

  const std::string& path() const { return path_; }
  const std::vector<Entry>& tensors() const { return tensors_; }  // tensors in the order of their values
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const Entry* Find(const std::string& name) const;  // nullptr if there is none

  // Reads a whole F32, F16 or BF16 tensor as float32. `out` has as many values as the tensor, else INVALID_ARGUMENT.
  absl::Status Read(const std::string& name, std::span<float> out) const;

  // Reads values from the `first`-th on of an F32 tensor, of any shape. INVALID_ARGUMENT if it has fewer.
  absl::Status ReadPart(const std::string& name, int64_t first, std::span<float> out) const;

 private:
  SafetensorsFile() = default;
  absl::Status ReadHeader();
  absl::Status ParseHeader(const std::string& header, int64_t data_begin, int64_t data_bytes);
  absl::Status ReadHalves(const Entry& entry, std::span<float> out) const;
  absl::Status Wrong(const std::string& what) const;

  std::string path_;
  FileDescriptor file_;
  std::vector<Entry> tensors_;
  std::map<std::string, size_t> index_;  // index of each name in tensors_
  std::map<std::string, std::string> metadata_;
};

}  // namespace causeway::formats
