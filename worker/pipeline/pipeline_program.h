// A pipeline schedule as each of its devices runs it: computes, takes and gives messages.
//
//   schedule ─► operations of a device in order, each with the message that it takes and the one that it gives
//
// The messages of an ordered pair of devices are numbered as the sender gives them, and arrive in that order; so a
// transport needs no tags. A receiver has `slots` buffers for each sender: message k is on its way once k < slots + the
// messages that it has used up. A sender never waits. Pure.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plan/pipeline_schedule.h"

namespace causeway::worker {

// Message `number` to or from `device`; of the own device: it stays there.
struct PipelineMessage {
  int device = 0;
  int number = 0;

  friend bool operator==(const PipelineMessage&, const PipelineMessage&) = default;
};

struct PipelineStep {
  plan::Operation operation;
  std::optional<PipelineMessage> input, output;  // activations of F, gradients of B and I
};

struct PipelineProgram {
  std::vector<PipelineStep> steps;     // pairs one after the other
  std::map<int, int> received, given;  // how many messages from, and to, each other device
};

struct PipelinePrograms {
  std::vector<PipelineProgram> devices;
  int slots = 1;
};

// Every device's program, with the fewest slots that it runs with. INVALID_ARGUMENT: as plan::CheckPipeline.
absl::StatusOr<PipelinePrograms> CompilePipeline(const plan::PipelineSchedule& schedule);

// How a transport's Send behaves: it returns at once, or when the receiver has come to the message (rendezvous), as a
// transport that only blocks does.
enum class SendKind { kAsynchronous, kRendezvous };

// Runs the programs without time. INVALID_ARGUMENT where they stop: "schedule: device 0 waits at 0F1 for a slot from
// device 1, …".
absl::Status Rehearse(const PipelinePrograms& programs, int slots, SendKind sends);

}  // namespace causeway::worker
