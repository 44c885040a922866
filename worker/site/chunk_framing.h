// Chunks of a contribution in one run of bytes, each after its length in 8 bytes, little-endian: the file of a
// checkpoint and the part of a state.
//
//   | 3 | one | 5 | three | …
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "worker/site/site_checkpoint.h"

namespace causeway::worker {

// Passes the bytes to `append` in order; returns its first failure.
absl::Status WriteChunks(const std::vector<core::Bytes>& chunks,
                         absl::FunctionRef<absl::Status(std::span<const std::byte>)> append);

// `read` copies bytes from an offset; there are `size` in all. DATA_LOSS if they end inside a chunk; errors call them
// `name`.
absl::StatusOr<Chunks> ReadChunks(const std::string& name, int64_t size,
                                  absl::FunctionRef<absl::Status(int64_t at, std::span<std::byte> bytes)> read);

}  // namespace causeway::worker
