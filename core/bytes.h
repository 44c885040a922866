// Immutable bytes anywhere in memory: a view, together with the owner of its memory.
//
//   string ──┐
//   memory that a device writes ──┴─► Bytes ─► copies of it ─► the last one is gone: the memory is released
//
// Copies are cheap. Thread-safe.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace causeway::core {

class Bytes {
 public:
  Bytes() = default;
  Bytes(std::string text) : Bytes(std::make_shared<const std::string>(std::move(text))) {}    // NOLINT: as a string
  Bytes(std::shared_ptr<const std::string> text) : bytes_(*text), owner_(std::move(text)) {}  // NOLINT: as a string
  Bytes(absl::string_view bytes, std::shared_ptr<const void> owner) : bytes_(bytes), owner_(std::move(owner)) {}

  operator absl::string_view() const { return bytes_; }  // NOLINT(google-explicit-constructor)
  const char* data() const { return bytes_.data(); }
  size_t size() const { return bytes_.size(); }
  const char* begin() const { return data(); }
  const char* end() const { return data() + size(); }

  friend bool operator==(const Bytes& a, const Bytes& b) { return a.bytes_ == b.bytes_; }
  friend bool operator==(const Bytes& a, const std::string& b) { return a.bytes_ == b; }

 private:
  absl::string_view bytes_;
  std::shared_ptr<const void> owner_;
};

// A payload: each chunk lies where its encoder wrote it.
using Chunks = std::shared_ptr<const std::vector<Bytes>>;

}  // namespace causeway::core
