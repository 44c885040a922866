// Text to train on, as tokens, mapped from disk: nothing is copied, and all sites of one machine share its pages.
//
//   corpus.txt           every byte is a token (vocab_size 256 or more)
//   train.bin            nanoGPT: uint16 tokens; or llm.c: 256 × int32 header (magic 20240520, version 1, tokens), then
//   those shards/              a folder: its *.bin files in bytewise order of their names, back to back
//
// llm.c's other files begin alike, its shards of uint32 tokens (magic 20240801, version 7) among them: they are refused
// by name. As uint16 they would be twice as many tokens, every other one of them 0 or 1.
//
// Open reads every token of a .bin once, so that a file of another tokenizer fails at the start, with the position, and
// not in the middle of a run. Immutable after that; thread-safe. Move-only. A file that is cut short while it is open
// ends the process (SIGBUS): replace token files, do not rewrite them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace causeway::formats {

class TokenFile {
 public:
  static absl::StatusOr<TokenFile> Open(const std::string& path, int64_t vocab_size);

  int64_t size() const { return size_; }        // tokens, at least 1
  uint32_t operator[](int64_t position) const;  // 0 ≤ position < size()

 private:
  // A whole file in memory, read-only.
  class Mapping {
   public:
    static absl::StatusOr<Mapping> Map(const std::string& path);
    Mapping(Mapping&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
    Mapping& operator=(Mapping&&) = delete;
    ~Mapping();

    std::span<const std::byte> bytes() const { return bytes_; }

   private:
    explicit Mapping(std::span<const std::byte> bytes) : bytes_(bytes) {}
    std::span<const std::byte> bytes_;
  };

  // Tokens `first` and on, of `width` bytes each, little-endian.
  struct Shard {
    Mapping mapping;
    std::span<const std::byte> tokens;
    int64_t width;
    int64_t first;

    int64_t size() const { return static_cast<int64_t>(tokens.size()) / width; }
    uint32_t At(int64_t index) const;
  };

  TokenFile() = default;
  absl::Status AddText(const std::string& path, int64_t vocab_size);
  absl::Status AddBin(const std::string& path, int64_t vocab_size);
  void Add(Mapping mapping, std::span<const std::byte> tokens, int64_t width);

  std::vector<Shard> shards_;
  int64_t size_ = 0;
};

}  // namespace causeway::formats
