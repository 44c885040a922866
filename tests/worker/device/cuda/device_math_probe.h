// The functions of worker/device/kernels/device_math.h as a GPU computes them.
#pragma once

#include <cstdint>
#include <vector>

namespace causeway::worker {

struct DeviceMath {
  std::vector<float> exponentials, reciprocals;
  std::vector<uint32_t> pairs;  // of x[i], −x[i]
};

// Empty where there is no device.
DeviceMath ProbeDeviceMath(const std::vector<float>& x);

}  // namespace causeway::worker
