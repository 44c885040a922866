// The limits on each field of a message to a coordinator: one table, with a row for each field of every request; those
// of a report follow from the list of its figures (core/progress.h). A test compares it with the schema, so that no
// field is forgotten (tests/transport/field_limits_test.cc).
//
// These limits hold for any run: they keep a message small after protobuf has parsed it, and numbers small enough that
// their sums do not overflow. The reader of a message checks which values fit this run.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "core/limits.h"

namespace causeway::transport {

enum class Holds {
  kAnything,  // any value of its type: digests, random numbers, and messages, whose own fields have rows
  kInteger,   // least to most
  kNumber,    // least to most, and no NaN
  kText,      // `most` bytes at most
};

struct FieldLimit {
  std::string_view field;  // "Join.codecs", as in causeway.v1
  Holds holds = Holds::kAnything;
  int64_t least = 0;
  int64_t most = 0;
  int64_t items = 1;  // more than one: a repeated field
};

std::span<const FieldLimit> FieldLimits();

}  // namespace causeway::transport
