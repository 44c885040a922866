// Memory that a kernel reaches, for tests and benchmarks: on the device, or pinned on the host and mapped.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <span>
#include <string>
#include <vector>

namespace causeway::codecs::cuda {

// The reason why nothing can run on a GPU here, or nothing.
inline std::string WhyNoGpu() {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess) return std::string("no CUDA device: ") + cudaGetErrorString(error);
  return devices == 0 ? "no CUDA device" : "";
}

inline void Must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::cerr << what << ": " << cudaGetErrorString(error) << "\n";
  std::abort();
}

enum class Place { kDevice, kMappedHost };

template <typename T>
class DeviceArray {
 public:
  DeviceArray(int64_t count, Place place) : count_(count), place_(place) {
    const size_t bytes = std::max<size_t>(count * sizeof(T), 1);
    if (place == Place::kDevice) {
      Must(cudaMalloc(reinterpret_cast<void**>(&data_), bytes), "cudaMalloc");
    } else {
      Must(cudaHostAlloc(reinterpret_cast<void**>(&host_), bytes, cudaHostAllocMapped), "cudaHostAlloc");
      Must(cudaHostGetDevicePointer(reinterpret_cast<void**>(&data_), host_, 0), "cudaHostGetDevicePointer");
    }
  }
  DeviceArray(std::span<const T> values, Place place) : DeviceArray(std::ssize(values), place) {
    Must(cudaMemcpy(data_, values.data(), values.size_bytes(), cudaMemcpyDefault), "copy in");
  }
  ~DeviceArray() { place_ == Place::kDevice ? cudaFree(data_) : cudaFreeHost(host_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() { return data_; }  // for the device
  T* host() { return host_; }  // for the host; null: the memory is the device's
  std::vector<T> Values() const {
    std::vector<T> values(count_);
    Must(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDefault), "copy out");
    return values;
  }

 private:
  const int64_t count_;
  const Place place_;
  T* host_ = nullptr;
  T* data_ = nullptr;
};

}  // namespace causeway::codecs::cuda
