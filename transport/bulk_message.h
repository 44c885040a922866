// The messages of Upload and Download as raw bytes: payload is neither copied into a protobuf message nor out of one.
//
//   chunk ─► |tag, length|  chunk's own bytes, by reference  | ─► gRPC ─► slices as they came ─► one string
//
// The bytes on the wire are those that protobuf makes of the messages in proto/causeway/v1 (`chunk` is field 2 of
// both). A message without a chunk is small, and goes through protobuf. Thread-safe.
#pragma once

#include <optional>
#include <string>

#include "causeway/v1/coordinator.pb.h"
#include "core/bytes.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "grpcpp/support/byte_buffer.h"

namespace causeway::transport {

// The chunk is sent from where it lies.
grpc::ByteBuffer ChunkMessage(core::Bytes chunk);

// The chunk's bytes, or nothing if the message is none that carries a chunk alone.
std::optional<std::string> TakeChunk(const grpc::ByteBuffer& message);

template <typename Message>
grpc::ByteBuffer ToBytes(const Message& message) {
  grpc::ByteBuffer bytes;
  bool own_buffer = false;
  grpc::SerializationTraits<Message>::Serialize(message, &bytes, &own_buffer);
  return bytes;
}

// False if the bytes are no such message; they are used up.
template <typename Message>
bool FromBytes(grpc::ByteBuffer& bytes, Message* message) {
  return grpc::SerializationTraits<Message>::Deserialize(&bytes, message).ok();
}

}  // namespace causeway::transport
