#include "transport/bulk_message.h"

#include <google/protobuf/io/coded_stream.h>

#include <array>
#include <vector>

namespace causeway::transport {
namespace {

using google::protobuf::io::CodedOutputStream;

constexpr uint8_t kChunkTag = (v1::UploadMessage::kChunkFieldNumber << 3) | 2;  // a length-delimited field
static_assert(static_cast<int>(v1::UploadMessage::kChunkFieldNumber) ==
              static_cast<int>(v1::DownloadMessage::kChunkFieldNumber));
constexpr size_t kMaxLengthBytes = 10;  // of a varint

}  // namespace

grpc::ByteBuffer ChunkMessage(core::Bytes chunk) {
  std::array<uint8_t, 1 + kMaxLengthBytes> head;
  head[0] = kChunkTag;
  const uint8_t* end = CodedOutputStream::WriteVarint64ToArray(chunk.size(), head.data() + 1);
  void* bytes = const_cast<char*>(chunk.data());  // gRPC's slices are not const-correct; it only reads
  const size_t size = chunk.size();
  const std::array<grpc::Slice, 2> slices = {
      grpc::Slice(head.data(), end - head.data()),
      grpc::Slice(
          bytes, size, [](void* owner) { delete static_cast<core::Bytes*>(owner); },
          new core::Bytes(std::move(chunk)))};
  return grpc::ByteBuffer(slices.data(), slices.size());
}

std::optional<std::string> TakeChunk(const grpc::ByteBuffer& message) {
  std::vector<grpc::Slice> slices;
  if (!message.Valid() || !message.Dump(&slices).ok()) return std::nullopt;
  // The head may be spread over slices, as may any byte.
  size_t slice = 0, at = 0;
  const auto next = [&]() -> std::optional<uint8_t> {
    while (slice < slices.size() && at == slices[slice].size()) {
      ++slice;
      at = 0;
    }
    if (slice == slices.size()) return std::nullopt;
    return slices[slice].begin()[at++];
  };
  if (next() != kChunkTag) return std::nullopt;
  uint64_t length = 0;
  size_t head = 1;
  for (int shift = 0;; shift += 7, ++head) {
    const std::optional<uint8_t> byte = next();
    if (!byte || head > kMaxLengthBytes) return std::nullopt;
    length |= static_cast<uint64_t>(*byte & 0x7f) << shift;
    if ((*byte & 0x80) == 0) break;
  }
  if (head + 1 + length != message.Length()) return std::nullopt;  // more fields: left to protobuf
  std::string chunk;
  chunk.reserve(length);
  for (; slice < slices.size(); ++slice, at = 0) {
    chunk.append(reinterpret_cast<const char*>(slices[slice].begin()) + at, slices[slice].size() - at);
  }
  return chunk;
}

}  // namespace causeway::transport
