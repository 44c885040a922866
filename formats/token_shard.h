// The tokens of one file, as they lie there: mapped, nothing is copied, but for JSON lines, which have to be decoded.
//
//   *.bin     tokens of 2 or 4 bytes, little-endian: nanoGPT's, without a header; or after llm.c's header of 256 int32
//               magic 20240520, version 1, number of tokens      uint16 (GPT-2)
//               magic 20240801, version 7, number of tokens      uint32 (Llama 3)
//   a NumPy array, whatever its name
//   *.jsonl   the bytes of the texts (json_lines.h)
//   others    the bytes of the file, which are UTF-8
//
// A file of a known kind that is neither (file_kind.h), as a gzip file, is refused, and so are raw tokens beyond the
// vocabulary as they are read. Those that fit, and look like another type (token_looks.h), have a note. Opening reads
// every token of a .bin once, so that a file of another tokenizer fails at the start, with the position, and not in the
// middle of a run. Immutable, thread-safe, move-only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "formats/mapped_file.h"

namespace causeway::formats {

struct TokenFormat {
  int64_t vocab_size = 256;
  int64_t token_bytes = 2;  // bytes of a token in a .bin without a header: 2 or 4
};

class TokenShard {
 public:
  // Takes the kind from the file's bytes where they show it, else from the ending of its name. INVALID_ARGUMENT names
  // what was expected, and where.
  static absl::StatusOr<TokenShard> Open(const std::string& path, const TokenFormat& format);

  int64_t size() const { return static_cast<int64_t>(tokens_.size()) / width_; }
  const std::string& note() const { return note_; }  // says how the file may have been meant otherwise; or empty
  uint32_t operator[](int64_t index) const {
    if (width_ == 1) return std::to_integer<uint32_t>(tokens_[index]);
    uint32_t token = 0;
    std::memcpy(&token, tokens_.data() + index * width_, width_ == 2 ? 2 : 4);
    if (token >= vocab_size_) file_.EndAsChanged();  // opening has read all of them
    return token;
  }

 private:
  // Each takes tokens_, the whole file, as its kind.
  absl::Status OpenBin(const std::string& path, const TokenFormat& format);
  absl::Status OpenNumpy(const std::string& path, const TokenFormat& format);
  absl::Status OpenText(const std::string& path, const TokenFormat& format);
  // `is_raw`: nothing but the run's config says how wide the tokens are.
  absl::Status CheckTokens(const std::string& path, const TokenFormat& format, bool is_raw) const;
  int64_t Value(int64_t index) const;  // the value from all its bytes, before it is known to be a token

  MappedFile file_;
  std::vector<std::byte> decoded_;  // the decoded texts of JSON lines
  std::span<const std::byte> tokens_;
  int64_t width_ = 1;  // bytes of a token: 1, 2, 4, or 8 (NumPy)
  bool is_signed_ = false;
  uint32_t vocab_size_ = 0;
  std::string note_;
};

}  // namespace causeway::formats
