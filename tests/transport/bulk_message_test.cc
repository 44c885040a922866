#include "transport/bulk_message.h"

#include <gtest/gtest.h>

#include "tests/transport/byte_buffer.h"

namespace causeway::transport {
namespace {

// The message's bytes cut into slices of that size, as a network may.
grpc::ByteBuffer Cut(const std::string& bytes, size_t size) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size(); at += size) slices.emplace_back(bytes.substr(at, size));
  return grpc::ByteBuffer(slices.data(), slices.size());
}

std::string ChunkOf(size_t size) {
  std::string chunk(size, '\0');
  for (size_t i = 0; i < size; ++i) chunk[i] = static_cast<char>(i * 7);
  return chunk;
}

TEST(BulkMessage, AChunksBytesAreThoseThatProtobufMakes) {
  for (size_t size : {0, 1, 127, 128, 300, 1 << 20}) {
    const std::string chunk = ChunkOf(size);
    v1::UploadMessage upload;
    upload.set_chunk(chunk);
    v1::DownloadMessage download;
    download.set_chunk(chunk);
    const std::string bytes = TextOf(ChunkMessage(std::make_shared<const std::string>(chunk)));
    EXPECT_EQ(bytes, upload.SerializeAsString());
    EXPECT_EQ(bytes, download.SerializeAsString());
  }
}

TEST(BulkMessage, AChunkIsReadFromSlicesOfAnySize) {
  const std::string chunk = ChunkOf(1000);
  v1::UploadMessage message;
  message.set_chunk(chunk);
  for (size_t size : {1, 2, 3, 5, 64, 2000}) {
    EXPECT_EQ(TakeChunk(Cut(message.SerializeAsString(), size)), chunk) << "slices of " << size;
  }
}

TEST(BulkMessage, WhatIsNoChunkAloneIsLeftToProtobuf) {
  v1::UploadMessage header;
  header.mutable_header()->set_fragment(3);
  grpc::ByteBuffer bytes = ToBytes(header);
  EXPECT_EQ(TakeChunk(bytes), std::nullopt);
  v1::UploadMessage back;
  ASSERT_TRUE(FromBytes(bytes, &back));
  EXPECT_EQ(back.header().fragment(), 3);

  v1::UploadMessage chunk;
  chunk.set_chunk("abc");
  const std::string text = chunk.SerializeAsString();
  EXPECT_EQ(TakeChunk(Cut(text.substr(0, text.size() - 1), 8)), std::nullopt);  // cut short
  EXPECT_EQ(TakeChunk(Cut(text + text, 8)), std::nullopt);                      // two fields
  EXPECT_EQ(TakeChunk(Cut("\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 8)), std::nullopt);
  EXPECT_EQ(TakeChunk(grpc::ByteBuffer()), std::nullopt);
}

TEST(BulkMessage, AChunkLivesUntilItsMessageIsGone) {
  auto chunk = std::make_shared<const std::string>(ChunkOf(5000));
  const std::weak_ptr<const std::string> weak = chunk;
  {
    const grpc::ByteBuffer message = ChunkMessage(std::move(chunk));
    EXPECT_FALSE(weak.expired());
  }
  EXPECT_TRUE(weak.expired());
}

}  // namespace
}  // namespace causeway::transport
