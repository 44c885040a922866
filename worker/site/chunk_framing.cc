#include "worker/site/chunk_framing.h"

#include "absl/strings/str_cat.h"
#include "core/check.h"

namespace causeway::worker {

absl::Status WriteChunks(const std::vector<core::Bytes>& chunks,
                         absl::FunctionRef<absl::Status(std::span<const std::byte>)> append) {
  for (const core::Bytes& chunk : chunks) {
    const uint64_t size = chunk.size();
    RETURN_IF_ERROR(append(std::as_bytes(std::span(&size, 1))));
    RETURN_IF_ERROR(append(std::as_bytes(std::span(chunk))));
  }
  return absl::OkStatus();
}

absl::StatusOr<Chunks> ReadChunks(const std::string& name, int64_t size,
                                  absl::FunctionRef<absl::Status(int64_t at, std::span<std::byte> bytes)> read) {
  std::vector<core::Bytes> chunks;
  for (int64_t at = 0; at < size;) {
    uint64_t bytes = 0;
    if (size - at < int64_t{sizeof bytes}) return absl::DataLossError(absl::StrCat(name, " is cut off"));
    RETURN_IF_ERROR(read(at, std::as_writable_bytes(std::span(&bytes, 1))));
    at += sizeof bytes;
    if (bytes > static_cast<uint64_t>(size - at)) {
      return absl::DataLossError(absl::StrCat(name, ": expected a chunk of ", bytes, " bytes, got ", size - at));
    }
    std::string chunk(bytes, '\0');
    RETURN_IF_ERROR(read(at, std::as_writable_bytes(std::span(chunk))));
    at += static_cast<int64_t>(bytes);
    chunks.emplace_back(std::move(chunk));
  }
  return std::make_shared<const std::vector<core::Bytes>>(std::move(chunks));
}

}  // namespace causeway::worker
