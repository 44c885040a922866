#include "worker/device/chunk_memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "tests/worker/device/fake_backend.h"

namespace causeway::worker {
namespace {

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

}  // namespace
}  // namespace causeway::worker
