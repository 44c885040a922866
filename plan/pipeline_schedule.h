// A pipeline schedule: which operation of which micro-batch each device of a pipeline runs next.
//
//   F  forward                 B  backward, whole (I, then W)        (x;y)  two operations that overlap
//   I  input gradient          W  weight gradient
//   G  gathers a stage's parameters    R  releases them, with a reduce-scatter of gradients behind a backward
//   A  all-reduces a stage's gradients between the copies of its weights
//
// A model is cut into stages; each lies on a device, and where there are copies of the weights, each copy's stages do.
// Every copy has its own micro-batches, counted from 0, an even share of all. Plain data. Sources: arXiv 2104.04473
// (interleaved), 2410.19367 (BitPipe), 2402.03791 (ZeroPP), 2401.10241 (I and W apart).
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace causeway::plan {

enum class OperationKind : uint8_t { kForward, kBackward, kInput, kWeight, kGather, kRelease, kReduce };
inline constexpr char kOperationLetters[] = "FBIWGRA";

constexpr bool IsCompute(OperationKind kind) { return kind <= OperationKind::kWeight; }

struct Operation {
  OperationKind kind = OperationKind::kForward;
  int copy = 0;
  int stage = 0;
  int micro_batch = 0;  // unused for G, R and A

  friend auto operator<=>(const Operation&, const Operation&) = default;
};

std::string OperationText(const Operation& operation);  // "7F0"; in the second copy of the weights "r1.7F0"

// One or, as a pair, two operations that run at once.
struct ScheduleStep {
  Operation first;
  std::optional<Operation> second;

  friend bool operator==(const ScheduleStep&, const ScheduleStep&) = default;
};

std::string StepText(const ScheduleStep& step);  // "(0F5;7B1)"

struct PipelineSchedule {
  int devices = 0;
  int micro_batches = 0;  // total over all copies
  int stages = 0;
  int copies = 1;                                // copies of the weights
  std::vector<std::vector<int>> place;           // [copy][stage]: its device
  std::vector<std::vector<ScheduleStep>> lists;  // by device

  int micro_batches_of_copy() const { return micro_batches / copies; }

  friend bool operator==(const PipelineSchedule&, const PipelineSchedule&) = default;
};

}  // namespace causeway::plan
