#include "core/random.h"

#include <random>

#include "core/simulation.h"

namespace causeway::core {

uint64_t DeviceRandom() {
  if (Simulation* const simulation = TheSimulation()) return simulation->Random();
  static thread_local std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

}  // namespace causeway::core
