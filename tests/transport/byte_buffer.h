// A message of gRPC's as text, and back.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <string>
#include <vector>

#include "core/check.h"

namespace causeway {

inline grpc::ByteBuffer BufferOf(const std::string& text) {
  const grpc::Slice slice(text);
  return {&slice, 1};
}

inline std::string TextOf(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  CHECK(buffer.Dump(&slices).ok());
  std::string text;
  for (const grpc::Slice& slice : slices) text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return text;
}

}  // namespace causeway
