// One allocation of device memory for everything known before the run: parts are requested, then placed.
//
//   Add("logits", bytes) ─► place 0 … ─► Allocate ─► At(place): its address, on a line of 256 bytes
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "offload/device.h"

namespace causeway::worker {

class Arena {
 public:
  using Place = size_t;  // returned by Add

  ~Arena();

  Place Add(std::string name, int64_t bytes);
  // RESOURCE_EXHAUSTED lists the sizes of the parts.
  absl::Status Allocate(offload::Device& device);

  template <typename T>
  T* At(Place place) const {
    return reinterpret_cast<T*>(memory_ + parts_[place].offset);
  }
  int64_t bytes() const { return bytes_; }
  int64_t offset(Place place) const { return parts_[place].offset; }
  char* begin() const { return memory_; }
  std::string Description() const;  // "activations 12.3 MB, logits 4.0 MB"

 private:
  struct Part {
    std::string name;
    int64_t offset = 0, bytes = 0;
  };

  std::vector<Part> parts_;
  int64_t bytes_ = 0;
  offload::Device* device_ = nullptr;
  char* memory_ = nullptr;
};

}  // namespace causeway::worker
