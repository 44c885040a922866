#include "server/merge/contribution.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include "codecs/compression.h"

namespace causeway::server {
namespace {

using codecs::ChunkSpan;
using core::CodecId;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::vector<ChunkSpan> kPlan = {{CodecId::kInt4, 0, 8192}, {CodecId::kInt4, 2, 10}, {CodecId::kInt4, 3, 300}};

std::string Chunk(const ChunkSpan& span, float value = 1.0f) {
  return *codecs::EncodeChunk(span, std::vector<float>(span.values, value), {});
}

TEST(Contribution, IsCompleteWhenAllChunksCameInWhateverOrder) {
  Contribution contribution(kPlan);
  EXPECT_THAT(contribution.Missing(), ElementsAre(0, 1, 2));
  EXPECT_TRUE(contribution.Add(Chunk(kPlan[2])).ok());
  EXPECT_TRUE(contribution.Add(Chunk(kPlan[0])).ok());
  EXPECT_THAT(contribution.Missing(), ElementsAre(1));
  EXPECT_FALSE(contribution.complete());
  EXPECT_TRUE(contribution.Add(Chunk(kPlan[1])).ok());
  EXPECT_THAT(contribution.Missing(), IsEmpty());
  EXPECT_TRUE(contribution.complete());
  const std::vector<codecs::ChunkView> views = contribution.Views();
  ASSERT_EQ(views.size(), 3u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(views[i].span(), kPlan[i]);
}

TEST(Contribution, RepeatedChunkIsIgnored) {
  Contribution contribution({kPlan[1]});
  EXPECT_TRUE(contribution.Add(Chunk(kPlan[1], 1.0f)).ok());
  EXPECT_TRUE(contribution.Add(Chunk(kPlan[1], 2.0f)).ok());
  EXPECT_EQ(contribution.chunks()[0], Chunk(kPlan[1], 1.0f));
}

TEST(Contribution, CompressedChunkIsTheSameAsThePlainOne) {
  Contribution contribution(kPlan);
  for (const ChunkSpan& span : kPlan) {
    const std::string compressed = codecs::CompressChunk(Chunk(span));
    EXPECT_LT(compressed.size(), Chunk(span).size());
    EXPECT_TRUE(contribution.Add(compressed).ok());
  }
  ASSERT_TRUE(contribution.complete());
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(contribution.chunks()[i] == Chunk(kPlan[i])) << i;
}

TEST(Contribution, DamagedCompressedChunkIsRefusedAndNothingChanges) {
  Contribution contribution(kPlan);
  const std::string compressed = codecs::CompressChunk(Chunk(kPlan[0]));
  std::string flipped = compressed;
  flipped.back() ^= 1;
  EXPECT_THAT(std::string(contribution.Add(flipped).message()), HasSubstr("hash"));
  EXPECT_FALSE(contribution.Add(compressed.substr(0, compressed.size() - 1)).ok());
  EXPECT_FALSE(contribution.Add(codecs::CompressChunk(Chunk({CodecId::kInt4, 1, 4096}))).ok());  // not planned
  EXPECT_THAT(contribution.Missing(), ElementsAre(0, 1, 2));
}

TEST(Contribution, ChunkWithTheRotationOfAnotherFragmentIsRefused) {
  Contribution contribution({{CodecId::kRotatedLm4, 0, 300, /*rotation_seed=*/1}});
  EXPECT_FALSE(contribution.Add(Chunk({CodecId::kRotatedLm4, 0, 300, 2})).ok());
  EXPECT_TRUE(contribution.Add(Chunk({CodecId::kRotatedLm4, 0, 300, 1})).ok());
}

TEST(Contribution, ChunkThatWasNotPlannedIsRefusedAndNothingChanges) {
  Contribution contribution(kPlan);
  const auto refusal = [&](const ChunkSpan& span) { return std::string(contribution.Add(Chunk(span)).message()); };
  EXPECT_THAT(refusal({CodecId::kInt4, 1, 4096}), HasSubstr("got int4, 4096 values from unit 1"));
  EXPECT_THAT(refusal({CodecId::kInt4, 0, 4096}), HasSubstr("expected int4, 8192 values from unit 0"));
  EXPECT_THAT(refusal({CodecId::kInt8, 0, 8192}), HasSubstr("got int8, 8192 values"));
  EXPECT_THAT(refusal({CodecId::kInt4, 99, 1}), HasSubstr("unexpected chunk: int4, 1 values from unit 99"));
  std::string flipped = Chunk(kPlan[0]);
  flipped[200] ^= 1;
  EXPECT_THAT(std::string(contribution.Add(flipped).message()), HasSubstr("hash"));
  EXPECT_THAT(contribution.Missing(), ElementsAre(0, 1, 2));
}

}  // namespace
}  // namespace causeway::server
