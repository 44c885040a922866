#include "worker/device/product_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <set>

#include "core/bfloat16.h"
#include "tests/worker/device/fake_backend.h"
#include "tests/worker/model/test_values.h"
#include "worker/device/attention.h"
#include "worker/device/chunk_memory.h"
#include "worker/device/staged_copies.h"

namespace causeway::worker {
namespace {

using ::testing::IsEmpty;

alignas(256) std::array<float, 1024> memory;

GemmJob Job() {
  return {.m = 4,
          .n = 8,
          .k = 16,
          .a = {.data = memory.data(), .stride = 64},
          .b = {.data = memory.data(), .stride = 64, .transposed = true},
          .c = {.data = memory.data(), .stride = 64}};
}

TEST(ProductChoiceTest, TheFastestIsTwoPercentFasterThanThoseBeforeIt) {
  const auto fastest = [](const std::vector<std::vector<float>>& times) { return Fastest(times); };
  EXPECT_EQ(fastest({{3, 2}, {1.99f, 4}, {1.5f}}), 2u);
  EXPECT_EQ(fastest({{2.0f}, {1.97f}}), 0u);
  EXPECT_EQ(fastest({{2.0f}, {1.95f}}), 1u);
  EXPECT_EQ(fastest({{}, {5}, {6}}), 1u);
  EXPECT_EQ(fastest({{}, {}}), 0u);
}

TEST(ProductChoiceTest, AnAlignmentIsThatOfAddressRowsAndMatrices) {
  EXPECT_EQ(AlignmentOf(memory.data(), 512, 0), 256);
  EXPECT_EQ(AlignmentOf(memory.data(), 48, 0), 16);
  EXPECT_EQ(AlignmentOf(memory.data(), 512, 8), 8);
  EXPECT_EQ(AlignmentOf(memory.data() + 1, 512, 512), 4);
}

TEST(ProductChoiceTest, JobsThatMayTakeOtherAlgorithmsHaveOtherTexts) {
  std::vector<GemmJob> jobs(12, Job());
  jobs[1].m = 5;
  jobs[2].a.transposed = true;
  jobs[3].b.stride = 128;
  jobs[4].c.type = ValueType::kBfloat16;
  jobs[5].beta = 1;
  jobs[6].beta = 1;
  jobs[6].addend = memory.data() + 64;
  jobs[7].batch = 2;
  jobs[8].a.data = memory.data() + 4;
  jobs[9].c_step = 64;
  jobs[10].addend = memory.data() + 1;
  jobs[11].a.type = ValueType::kBfloat16;
  std::set<std::string> texts;
  std::set<ProductShape> shapes;
  for (const GemmJob& job : jobs) {
    texts.insert(ProductShape::Of(job).Text());
    shapes.insert(ProductShape::Of(job));
  }
  EXPECT_EQ(texts.size(), jobs.size());
  EXPECT_EQ(shapes.size(), jobs.size());
  GemmJob elsewhere = Job();
  elsewhere.a.data = memory.data() + 64;
  EXPECT_EQ(ProductShape::Of(elsewhere), ProductShape::Of(Job()));
}

TEST(ProductChoiceTest, ChoicesComeBackOnTheSameDeviceAndLibraryAlone) {
  const ProductShape shape = ProductShape::Of(Job());
  const std::string algorithm("\0\xff\x10 abc", 7);
  ProductChoices made("H100, cuBLASLt 130000");
  EXPECT_THAT(made.Export(), IsEmpty());
  made.Set(shape, algorithm);
  std::map<std::string, std::string> exported = made.Export();
  exported["inner_steps"] = "12";  // other metadata of the file

  ProductChoices same("H100, cuBLASLt 130000"), newer("H100, cuBLASLt 130100");
  same.Set(shape, "measured before");
  same.Import(exported);
  newer.Import(exported);
  EXPECT_EQ(same.Find(shape), algorithm);
  EXPECT_EQ(newer.Find(shape), std::nullopt);
  EXPECT_EQ(same.Export(), made.Export());
}

TEST(ProductChoiceTest, AnAlgorithmThatIsNotHexadecimalIsLeftOut) {
  const ProductShape shape = ProductShape::Of(Job());
  ProductChoices made("a"), same("a");
  made.Set(shape, "abc");
  std::map<std::string, std::string> exported = made.Export();
  for (auto& [key, value] : exported) {
    if (key != "products.of") value = "xyz";
  }
  same.Import(exported);
  EXPECT_EQ(same.Find(shape), std::nullopt);
}

TEST(ProductChoiceTest, BackendsOfOneDeviceAndLibraryShareThem) {
  ProductChoices::Shared("a")->Set(ProductShape::Of(Job()), "abc");
  EXPECT_EQ(ProductChoices::Shared("a")->Find(ProductShape::Of(Job())), "abc");
  EXPECT_EQ(ProductChoices::Shared("b")->Find(ProductShape::Of(Job())), std::nullopt);
}

TEST(ChunkMemoryTest, IsUsedAgainOnceItsLastHolderLetsGo) {
  FakeBackend backend;
  ChunkMemory memory(&backend.device());
  std::shared_ptr<char> first = memory.Take(10'000);
  const char* const at = first.get();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(at) % 4096, 0u);
  std::shared_ptr<char> other = first;
  first.reset();
  const std::shared_ptr<char> second = memory.Take(10'000);
  EXPECT_NE(second.get(), at);
  other.reset();
  EXPECT_EQ(memory.Take(9'000).get(), at);
  EXPECT_EQ(memory.pinned_bytes(), 2 * 12'288u);
  EXPECT_NE(memory.Take(100).get(), at) << "a small chunk does not take a large one's memory";
}

TEST(ChunkMemoryTest, AChunkThatIsSentOutlivesTheDevice) {
  auto backend = std::make_unique<FakeBackend>();
  auto memory = std::make_unique<ChunkMemory>(&backend->device());
  const std::shared_ptr<char> sent = memory->Take(5000);
  std::memset(sent.get(), 'x', 5000);
  memory.reset();
  EXPECT_EQ(backend->device().pinned(), 0u);
  backend.reset();
  EXPECT_EQ(sent.get()[4999], 'x');
}

// Several rounds of the ring, with a rest.
constexpr int64_t kValues = 7 * StagedCopies::kPieceValues / 2 + 3;

TEST(StagedCopies, BringAllValuesThereAndBackInAnyOrderOfTheQueue) {
  for (const uint64_t seed : {1, 2, 3, 4}) {
    FakeBackend backend(seed);
    offload::FakeDevice& device = backend.device();
    offload::PinnedPool pool(&device);
    StagedCopies copies(&device, &pool, kValues);
    std::vector<float> values(kValues), got(kValues);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1000003) * 0.37f;
    void* const there = *device.Allocate(values.size() * sizeof(float));
    const std::vector<float> expected = values;
    ASSERT_TRUE(copies.ToDevice(values, there, ValueType::kFloat32).ok());
    std::ranges::fill(values, -1.0f);  // ToDevice has returned
    ASSERT_TRUE(copies.ToHost(static_cast<const float*>(there), got).ok());
    EXPECT_EQ(got, expected);
    ASSERT_TRUE(copies.ToDevice(expected, there, ValueType::kBfloat16).ok());
    ASSERT_TRUE(copies.ToHost(static_cast<const float*>(there), std::span(got).first(kValues / 2)).ok());
    const auto* const rounded = reinterpret_cast<const uint16_t*>(got.data());
    for (size_t i = 0; i < expected.size() - 1; ++i) ASSERT_EQ(rounded[i], core::ToBfloat16(expected[i])) << i;
    device.Free(there);
  }
}

TEST(StagedCopies, OfAFewValuesTakeFewBytesOfPinnedMemory) {
  FakeBackend backend;
  offload::PinnedPool pool(&backend.device());
  {
    StagedCopies copies(&backend.device(), &pool, 10);
    void* const there = *backend.device().Allocate(40);
    ASSERT_TRUE(copies.ToDevice(std::vector<float>(10), there, ValueType::kFloat32).ok());
  }
  EXPECT_EQ(pool.idle_bytes(), 120);
}

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
