// Every field of a message, by the way to it, and the values that a peer might put there to harm.
#pragma once

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <functional>
#include <string>
#include <vector>

#include "transport/field_limits.h"

namespace causeway::transport {

const google::protobuf::ServiceDescriptor& Service();

// The requests of all its calls, each once.
std::vector<const google::protobuf::Descriptor*> Requests();

// From a message to one of its fields, or those of the messages in it.
struct FieldPath {
  std::vector<const google::protobuf::FieldDescriptor*> fields;

  const google::protobuf::FieldDescriptor& field() const { return *fields.back(); }
  const FieldLimit& limit() const;  // of a field that no request has: one to try values around
  std::string Text() const;         // "join.context.site"
};
std::vector<FieldPath> PathsIn(const google::protobuf::Descriptor& message);

struct HostileValue {
  std::string name;                                     // "most + 1"
  bool within = false;                                  // the field's limit
  std::function<void(google::protobuf::Message&)> put;  // into the message that the path begins at
};
// Its limits, those and one more, −1, NaN, 8 MiB, a million items.
std::vector<HostileValue> HostileValues(const FieldPath& path);

}  // namespace causeway::transport
