#include "offload/host_array.h"

#include <numa.h>
#include <sys/mman.h>

#include <new>

#include "core/check.h"

namespace causeway::offload {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

// To be called before the pages are touched. Does nothing on a single node, or where the kernel does not allow it.
void InterleaveOverNodes(void* memory, size_t bytes) {
  if (numa_available() < 0) return;
  bitmask* nodes = numa_get_mems_allowed();
  if (numa_bitmask_weight(nodes) > 1) numa_interleave_memory(memory, bytes, nodes);
  numa_bitmask_free(nodes);
}

}  // namespace

HostArray::HostArray(size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  const bool huge = bytes >= kHugePage;
  mapped_bytes_ = huge ? bytes + kHugePage : bytes;
  mapping_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping_ == MAP_FAILED) throw std::bad_alloc();
  data_ = mapping_;
  if (!huge) return;
  const auto address = reinterpret_cast<uintptr_t>(mapping_);
  data_ = static_cast<char*>(mapping_) + (kHugePage - address % kHugePage) % kHugePage;
  madvise(data_, bytes, MADV_HUGEPAGE);  // a wish: ordinary pages do as well
  InterleaveOverNodes(data_, bytes);
}

HostArray& HostArray::operator=(HostArray&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(mapping_, other.mapping_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  return *this;
}

HostArray::~HostArray() {
  if (mapping_ != nullptr) munmap(mapping_, mapped_bytes_);
}

PinnedPool::~PinnedPool() {
  for (const auto& [bytes, memory] : idle_) device_->Unpin(memory.data());
}

absl::StatusOr<PinnedPool::Array> PinnedPool::Take(size_t bytes) {
  Array array;
  if (bytes == 0) return array;
  if (const auto large_enough = idle_.lower_bound(bytes); large_enough != idle_.end()) {
    array.memory_ = std::move(large_enough->second);
    idle_.erase(large_enough);
  } else {
    array.memory_ = HostArray(bytes);
    RETURN_IF_ERROR(device_->Pin(array.memory_.data(), bytes));
  }
  array.bytes_ = bytes;
  array.pool_ = this;
  return array;
}

int64_t PinnedPool::idle_bytes() const {
  int64_t total = 0;
  for (const auto& [bytes, memory] : idle_) total += static_cast<int64_t>(bytes);
  return total;
}

}  // namespace causeway::offload
