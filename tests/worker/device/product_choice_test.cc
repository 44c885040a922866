#include "worker/device/product_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <set>

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

}  // namespace
}  // namespace causeway::worker
