// The messages of Upload and Download as raw bytes: the payload is never copied into or out of a protobuf message.
//
//   chunk ─► |tag, length|  chunk's own bytes, by reference  | ─► gRPC ─► slices as received ─► one string
//
// The bytes on the wire are protobuf's encoding of the messages in proto/causeway/v1 (`chunk` is field 2 of both). A
// message without a chunk is small, and goes through protobuf. Thread-safe.
#pragma once

#include <optional>
#include <string>

#include "causeway/v1/coordinator.pb.h"
#include "core/buffer_pool.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "grpcpp/support/byte_buffer.h"

namespace causeway::transport {

// The chunk is sent without a copy.
grpc::ByteBuffer ChunkMessage(core::Bytes chunk);

// The chunk's bytes, or nothing if the message carries anything other than a single chunk.
std::optional<std::string> TakeChunk(const grpc::ByteBuffer& message);

template <typename Message>
grpc::ByteBuffer ToBytes(const Message& message) {
  grpc::ByteBuffer bytes;
  bool own_buffer = false;
  grpc::SerializationTraits<Message>::Serialize(message, &bytes, &own_buffer);
  return bytes;
}

// False if the bytes are no such message. Consumes them.
template <typename Message>
bool FromBytes(grpc::ByteBuffer& bytes, Message* message) {
  return grpc::SerializationTraits<Message>::Deserialize(&bytes, message).ok();
}

}  // namespace causeway::transport
