// SHA-256, of bytes at once or as they come. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>

struct evp_md_ctx_st;

namespace causeway::formats {

using Sha256Hash = std::array<std::byte, 32>;

Sha256Hash Sha256(std::span<const std::byte> bytes);

// Takes bytes that come one after the other. Move-only.
class RunningSha256 {
 public:
  RunningSha256();

  void Add(std::span<const std::byte> bytes);
  Sha256Hash value();  // of all; once

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

}  // namespace causeway::formats
