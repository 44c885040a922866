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
#include <span>
#include <utility>

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

}  // namespace causeway::offload
