#include "worker/parallel/traced_stages.h"

#include "absl/strings/str_cat.h"

namespace causeway::worker {
namespace {

// The number of products for which a blocked matrix product uses a value fetched from L2 into registers, and from L3
// into L2.
constexpr double kUsesOfL2 = 16, kUsesOfL3 = 256;

}  // namespace

void TracedStages::Note(const char* what, int stage, double passes, core::Clock::TimePoint begin) {
  const auto weights = static_cast<double>(weights_[static_cast<size_t>(stage)]);
  const double products = passes * static_cast<double>(rows_) * weights, value = sizeof(float);
  trace_->Add(absl::StrCat(what, stage), begin,
              {{"cpu", 2 * products},
               {"l2", value * products / kUsesOfL2},
               {"l3", value * products / kUsesOfL3},
               {"dram", value * passes * weights}});
}

void TracedStages::Forward(const plan::Operation& operation, std::span<const float> input, std::span<float> output) {
  const core::Clock::TimePoint begin = core::SystemClock().Now();
  stages_->Forward(operation, input, output);
  Note("forward ", operation.stage, 1, begin);
}

void TracedStages::Backward(const plan::Operation& operation, std::span<const float> doutput, std::span<float> dinput) {
  const core::Clock::TimePoint begin = core::SystemClock().Now();
  stages_->Backward(operation, doutput, dinput);
  Note("backward ", operation.stage, 2, begin);
}

}  // namespace causeway::worker
