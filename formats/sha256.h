// SHA-256, of bytes at once or as they come. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <set>
#include <span>
#include <string>

#include "absl/status/status.h"

struct evp_md_ctx_st;

namespace causeway::formats {

using Sha256Hash = std::array<std::byte, 32>;

Sha256Hash Sha256(std::span<const std::byte> bytes);

// Takes bytes that come one after the other. Move-only.
class RunningSha256 {
 public:
  RunningSha256();

  void Add(std::span<const std::byte> bytes);
  Sha256Hash value();  // the hash of all bytes; to be called once

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

}  // namespace causeway::formats

// SHA256SUMS of a folder, as sha256sum writes and checks it: what was handed around is what was written.
//
//   9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08  model.safetensors

namespace causeway::formats {

// Reads these files of `dir`, and writes its SHA256SUMS.
absl::Status WriteSha256Sums(const std::string& dir, const std::set<std::string>& names);
absl::Status RemoveSha256Sums(const std::string& dir);  // to be called before the files that it lists are replaced

// OK where `dir` has no SHA256SUMS, or it says nothing of `name`. DATA_LOSS names the file and both digests.
absl::Status CheckSha256Sum(const std::string& dir, const std::string& name);

}  // namespace causeway::formats
