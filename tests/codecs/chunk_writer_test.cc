#include "codecs/chunk_writer.h"

#include <gtest/gtest.h>

#include <limits>

#include "core/limits.h"
#include "tests/codecs/test_values.h"

namespace causeway::codecs {
namespace {

TEST(ChunkWriter, PiecesGiveTheBytesOfTheWhole) {
  const std::vector<float> values = UniformValues(4 * 4096 + 100, 1);
  for (core::CodecId codec : core::kAllCodecs) {
    const ChunkSpan span = {codec, 9, static_cast<int64_t>(values.size())};
    ChunkWriter writer(span, 1.0f);
    std::vector<float> decoded(values.size()), expected(values.size());
    size_t at = 0;
    for (size_t piece : {4096, 2 * 4096, 4096 + 100}) {
      writer.Append(std::span(values).subspan(at, piece), std::span(decoded).subspan(at, piece));
      at += piece;
    }
    const std::string bytes = writer.Finish();
    EXPECT_EQ(bytes, *EncodeChunk(span, values, {}));
    ChunkView::Parse(bytes)->Decode(9, expected);
    EXPECT_EQ(Bits(decoded), Bits(expected));
  }
}

TEST(ChunkWriter, UnfinishedOrOverfullChunkIsTheCallersBug) {
  const std::vector<float> values(4097);
  std::vector<float> decoded(4097);
  ChunkWriter writer({core::CodecId::kInt4, 0, 4096}, 1.0f);
  EXPECT_DEATH(writer.Finish(), "CHECK failed");
  EXPECT_DEATH(writer.Append(values, decoded), "CHECK failed");
}

TEST(FirstOutOfRange, FindsTheFirstOfSeveral) {
  std::vector<float> values = UniformValues(1000, 1);
  EXPECT_EQ(FirstOutOfRange(values), std::nullopt);
  values[999] = core::kMaxMagnitude;
  EXPECT_EQ(FirstOutOfRange(values), 999u);
  values[500] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(FirstOutOfRange(values), 500u);
}

}  // namespace
}  // namespace causeway::codecs
