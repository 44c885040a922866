// Host memory for the arrays that the update phase streams through: master parameters, moments, gradients.
//
//   |p p p p … p|m m … m|v v … v|        one mapping each, zero, on huge pages where it has any, pinned for a device
//
// An update reads and writes all of it once a step, far beyond any cache: 2 MiB pages spare it page walks, and on a
// machine with several memory nodes pages take turns between them, so that all cores have the bandwidth of all of them.
// Where the system gives neither, it is ordinary memory. Moments must start at zero and do. Throws std::bad_alloc, as a
// vector would. The address stays for the object's life.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>

#include "absl/status/statusor.h"
#include "offload/device.h"

namespace causeway::offload {

class HostArray {
 public:
  HostArray() = default;
  explicit HostArray(size_t bytes);
  HostArray(HostArray&& other) noexcept { *this = std::move(other); }
  HostArray& operator=(HostArray&& other) noexcept;
  ~HostArray();

  template <typename T>
  std::span<T> Values() const {
    return {static_cast<T*>(data_), bytes_ / sizeof(T)};
  }
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
  void* mapping_ = nullptr;
  size_t mapped_bytes_ = 0;
};

// Host memory that a device copies directly, lent and taken back: pinning tens of gigabytes takes seconds, so an array
// that has come back is lent again, for requests that it is large enough for.
//
//   PinnedPool ──Take(bytes)──► Array ──its end──► idle, still pinned ──Take──► …         the pool's end: unpinned
//
// Arrays come back before the pool ends, and the device outlives it. One owner thread.
class PinnedPool {
 public:
  class Array {
   public:
    Array() = default;
    Array(Array&& other) noexcept { *this = std::move(other); }
    Array& operator=(Array&& other) noexcept {
      std::swap(pool_, other.pool_);
      std::swap(memory_, other.memory_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Array() {
      if (pool_ != nullptr) pool_->idle_.emplace(memory_.bytes(), std::move(memory_));
    }

    void* data() const { return memory_.data(); }
    size_t bytes() const { return bytes_; }
    template <typename T>
    std::span<T> Values() const {
      return {static_cast<T*>(memory_.data()), bytes_ / sizeof(T)};
    }

   private:
    friend class PinnedPool;
    PinnedPool* pool_ = nullptr;
    HostArray memory_;
    size_t bytes_ = 0;
  };

  explicit PinnedPool(Device* device) : device_(device) {}
  ~PinnedPool();

  // New memory is zero, and memory that was lent before is as it was left. RESOURCE_EXHAUSTED and the like come from
  // the device. Throws std::bad_alloc.
  absl::StatusOr<Array> Take(size_t bytes);

  int64_t idle_bytes() const;

 private:
  Device* const device_;
  std::multimap<size_t, HostArray> idle_;  // by size
};

}  // namespace causeway::offload
