// The priorities of a GPU's streams: what others wait for comes first.
//
//   gradients, summed over ranks   greatest: every rank waits for them
//   step                           between
//   sync                           least: contributions are encoded beside the next steps
//
// A device has a range of priorities, where the greatest has the lowest number; with two of them the step shares the
// greatest, since contributions give way to it.
#pragma once

namespace causeway::core {

enum class StreamPurpose { kGradients, kStep, kSync };

constexpr int PriorityOf(StreamPurpose purpose, int least, int greatest) {
  switch (purpose) {
    case StreamPurpose::kGradients: return greatest;
    case StreamPurpose::kStep: return greatest + (least - greatest) / 2;
    case StreamPurpose::kSync: return least;
  }
  return least;
}

}  // namespace causeway::core
