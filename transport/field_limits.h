// Limits of each field of a message that comes to a coordinator: one table, a row for each field of every request.
// A test holds it against the schema, so that no field is forgotten (tests/transport/field_limits_test.cc).
//
// These are the limits of any run: they keep a message small once protobuf has made something of it, and numbers where
// sums of them do not overflow. Which values fit this run, the reader of the message says.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

#include "core/limits.h"

namespace causeway::transport {

enum class Holds {
  kAnything,  // of its type: digests, random numbers, messages, whose own fields have rows
  kInteger,   // least to most
  kNumber,    // least to most, and no NaN
  kText,      // `most` bytes at most
};

struct FieldLimit {
  std::string_view field;  // "Join.codecs", as in causeway.v1
  Holds holds = Holds::kAnything;
  int64_t least = 0;
  int64_t most = 0;
  int64_t items = 1;  // more than one: of a repeated field
};

std::span<const FieldLimit> FieldLimits();

}  // namespace causeway::transport
