#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "worker/site/site_transfers.h"

namespace causeway::worker {
namespace {

using ::testing::HasSubstr;

std::string Written(const std::vector<std::string>& texts) {
  const std::vector<core::Bytes> chunks(texts.begin(), texts.end());
  std::string bytes;
  const absl::Status status = WriteChunks(chunks, [&](std::span<const std::byte> more) {
    bytes.append(reinterpret_cast<const char*>(more.data()), more.size());
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  return bytes;
}

absl::StatusOr<Chunks> Read(const std::string& bytes) {
  return ReadChunks("there", std::ssize(bytes), [&](int64_t at, std::span<std::byte> out) {
    std::ranges::copy(std::as_bytes(std::span(bytes)).subspan(at, out.size()), out.begin());
    return absl::OkStatus();
  });
}

TEST(ChunkFraming, ChunksComeBackAsTheyWere) {
  for (const std::vector<std::string>& chunks :
       {std::vector<std::string>{}, {""}, {"one", std::string(3, 0), "", std::string(300, 'x')}}) {
    const auto read = Read(Written(chunks));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_TRUE(std::ranges::equal(**read, chunks));
  }
}

TEST(ChunkFraming, LengthIsEightBytesLittleEndian) {
  EXPECT_EQ(Written({"one"}), std::string("\x03\0\0\0\0\0\0\0one", 11));
}

TEST(ChunkFraming, BytesThatEndInAChunkAreDataLoss) {
  const std::string whole = Written({"one", "three"});
  for (const size_t size : {1, 7, 10, 12, 23}) {
    const auto read = Read(whole.substr(0, size));
    EXPECT_EQ(read.status().code(), absl::StatusCode::kDataLoss) << size;
    EXPECT_THAT(std::string(read.status().message()), HasSubstr("there")) << size;
  }
  EXPECT_EQ(Read(whole.substr(0, 23)).status().message(), "there: expected a chunk of 5 bytes, got 4");
  EXPECT_EQ(Read(std::string(8, '\xff')).status().code(), absl::StatusCode::kDataLoss);
}

TEST(ChunkFraming, FailureToWriteOrReadIsReturned) {
  const absl::Status full = absl::ResourceExhaustedError("full");
  EXPECT_EQ(WriteChunks({std::string("one")}, [&](std::span<const std::byte>) { return full; }), full);
  EXPECT_EQ(ReadChunks("there", 9, [&](int64_t, std::span<std::byte>) { return full; }).status(), full);
}

}  // namespace
}  // namespace causeway::worker
