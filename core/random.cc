#include "core/random.h"

#include <random>

namespace causeway::core {

uint64_t DeviceRandom() {
  static thread_local std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

}  // namespace causeway::core
