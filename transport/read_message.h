// Reads a peer's message from its bytes. They are checked field by field before protobuf parses them: 8 MiB can become
// a gigabyte of empty strings.
//
//   bytes ──► CheckFields, by field_limits.h ──► protobuf ──► MakePrintable ──► message
//
// Thread-safe.
#pragma once

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/zero_copy_stream.h>
#include <google/protobuf/message.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/limits.h"
#include "transport/bulk_message.h"

namespace causeway::transport {

// INVALID_ARGUMENT with the path, the expected and the actual value of the first field beyond its limit:
// "progress.eval_versions: expected at most 1024, got more". A field that is not repeated may come only once, and only
// one field of a oneof. Unknown fields are skipped. CHECKs that `message` is in the table.
absl::Status CheckFields(const google::protobuf::Descriptor& message, google::protobuf::io::ZeroCopyInputStream* bytes);

// Makes each text of a message printable and one line (core/text.h), so that code which keeps or shows it need not know
// that it came from a peer. Fields of type bytes are not texts.
void MakePrintable(google::protobuf::Message& message);

// INVALID_ARGUMENT if a limit is exceeded, or the bytes are no such message; RESOURCE_EXHAUSTED if they are more than
// `most_bytes`. Consumes the bytes.
template <typename Message>
absl::Status ReadMessage(grpc::ByteBuffer& bytes, Message* message,
                         int64_t most_bytes = core::kMaxControlMessageBytes) {
  if (const auto length = static_cast<int64_t>(bytes.Length()); length > most_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("expected a message of at most ", most_bytes, " bytes, got ", length));
  }
  {
    grpc::ProtoBufferReader reader(&bytes);
    const absl::Status within = reader.status().ok() ? CheckFields(*Message::descriptor(), &reader) : absl::OkStatus();
    if (!within.ok()) return within;
  }
  if (FromBytes(bytes, message)) {
    MakePrintable(*message);
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("expected a message ", Message::descriptor()->name(), ", got bytes that are none"));
}

}  // namespace causeway::transport
