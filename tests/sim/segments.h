// Messages as the bytes that a simulated call carries, and the segments that carry them.
#pragma once

#include <string>
#include <utility>

#include "core/check.h"
#include "tests/sim/network.h"
#include "tests/transport/byte_buffer.h"

namespace causeway::sim {

inline std::string Text(const grpc::ByteBuffer& buffer) { return TextOf(buffer); }
template <typename Message>
std::string Text(const Message& message) {
  return message.SerializeAsString();
}
inline void Parse(const std::string& text, grpc::ByteBuffer* buffer) { *buffer = BufferOf(text); }
template <typename Message>
void Parse(const std::string& text, Message* message) {
  CHECK(message->ParseFromString(text));
}

inline Segment MessageOf(std::string text) {
  return {.kind = Segment::Kind::kMessage, .message = std::move(text), .status = {}};
}
inline Segment StatusOf(const grpc::Status& status) {
  return {.kind = Segment::Kind::kStatus, .message = {}, .status = status};
}
inline Segment HalfClose() { return {.kind = Segment::Kind::kHalfClose, .message = {}, .status = {}}; }

}  // namespace causeway::sim
