// Causal self-attention with grouped key and value heads, for one batch.
//
//   q [rows, heads·size] ─┐                                      out [rows, heads·size]
//   k [rows, kv_heads·size] ─► softmax(q·kᵀ/√size, causal) · v ─►
//   v [rows, kv_heads·size] ─┘   kept: probabilities [batch, heads, sequence, sequence]
//
// Query head h uses key and value head h / (heads / kv_heads). Each (batch row, head) is a few small matrix products.
// There are no weights here, so the backward pass computes only an input gradient. Pure functions. Sources: arXiv
// 1706.03762 section 3.2, 2305.13245 (grouped queries).
#pragma once

#include <cstdint>

namespace causeway::worker {

struct AttentionShape {
  int64_t batch = 0;
  int64_t sequence = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;  // divides heads
  int64_t head_size = 0;

  int64_t probabilities() const { return batch * heads * sequence * sequence; }
};

void Attention(const AttentionShape& shape, const float* q, const float* k, const float* v, float* probabilities,
               float* out);

// `scratch` holds sequence² values.
void AttentionBackwardInput(const AttentionShape& shape, const float* dout, const float* q, const float* k,
                            const float* v, const float* probabilities, float* scratch, float* dq, float* dk,
                            float* dv);

}  // namespace causeway::worker
