#include "worker/device/attention.h"

#include "tests/worker/model/test_values.h"

namespace causeway::worker {
namespace {

struct Values {
  explicit Values(const AttentionShape& shape)
      : shape(shape),
        q(RandomValues(1, shape.batch * shape.sequence * shape.heads * shape.head_size)),
        k(RandomValues(2, shape.batch * shape.sequence * shape.kv_heads * shape.head_size)),
        v(RandomValues(3, k.size())),
        dout(RandomValues(4, q.size())),
        out(q.size()),
        probabilities(shape.probabilities()) {}

  double Forward() {
    Attention(shape, q.data(), k.data(), v.data(), probabilities.data(), out.data());
    return Dot(out, dout);
  }

  AttentionShape shape;
  std::vector<float> q, k, v, dout, out, probabilities;
};

void ExpectGradients(const AttentionShape& shape) {
  Values x(shape);
  x.Forward();
  std::vector<float> dq(x.q.size()), dk(x.k.size(), 9.0f), dv(x.v.size(), 9.0f);  // stored, not added
  std::vector<float> scratch(shape.sequence * shape.sequence);
  AttentionBackwardInput(shape, x.dout.data(), x.q.data(), x.k.data(), x.v.data(), x.probabilities.data(),
                         scratch.data(), dq.data(), dk.data(), dv.data());
  ExpectGradient("dq", dq, x.q, [&] { return x.Forward(); });
  ExpectGradient("dk", dk, x.k, [&] { return x.Forward(); });
  ExpectGradient("dv", dv, x.v, [&] { return x.Forward(); });
}

TEST(Attention, GradientsMatchDifferences) {
  ExpectGradients({.batch = 2, .sequence = 5, .heads = 3, .kv_heads = 3, .head_size = 4});
}

TEST(Attention, GradientsMatchDifferencesWithGroupedKeyAndValueHeads) {
  ExpectGradients({.batch = 2, .sequence = 6, .heads = 4, .kv_heads = 2, .head_size = 4});
  ExpectGradients({.batch = 1, .sequence = 6, .heads = 4, .kv_heads = 1, .head_size = 2});
}

TEST(Attention, APositionSeesNothingOfTheFuture) {
  Values x({.batch = 1, .sequence = 6, .heads = 2, .kv_heads = 1, .head_size = 4});
  x.Forward();
  const std::vector<float> before = x.out;
  for (size_t i = 4 * 4; i < x.k.size(); ++i) x.k[i] = x.v[i] = 100;  // positions 4 and 5
  x.Forward();
  for (size_t i = 0; i < 4 * 2 * 4; ++i) EXPECT_EQ(x.out[i], before[i]) << i;
  EXPECT_NE(x.out[4 * 2 * 4], before[4 * 2 * 4]);
}

TEST(Attention, QueryHeadsOfAGroupShareTheirKeyHead) {
  Values x({.batch = 1, .sequence = 3, .heads = 4, .kv_heads = 2, .head_size = 2});
  for (size_t i = 0; i < x.q.size(); ++i) x.q[i] = 0.1f * static_cast<float>(i % 2);  // all heads ask the same
  x.Forward();
  EXPECT_EQ(x.out[0], x.out[2]);  // heads 0 and 1
  EXPECT_EQ(x.out[4], x.out[6]);  // heads 2 and 3
  EXPECT_NE(x.out[0], x.out[4]);
}

}  // namespace
}  // namespace causeway::worker
