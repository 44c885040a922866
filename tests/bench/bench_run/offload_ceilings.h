// The simplest work on the memory that an update moves: what it is measured against.
//
//   add      12 B/value   b ← a + b in place                      the machine's bandwidth, as the codecs have it
//   streams  28 B/value   m, v, p ← one operation with g each     AdamW's own four streams in and three out
//
// Each on a run of values. Thread-safe on disjoint arrays.
#pragma once

#include <cstdint>

#include "offload/adamw.h"

namespace causeway::bench {

void AddInPlace(const float* a, float* b, int64_t count);
void MoveStreams(const offload::AdamWArrays& arrays);

}  // namespace causeway::bench
