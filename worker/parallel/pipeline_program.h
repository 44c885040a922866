// The programs of a pipeline schedule's devices: each computes, receives and sends messages.
//
//   schedule ─► operations of a device in order, each with the message that it receives and the one that it sends
//
// The messages of an ordered pair of devices are numbered in the order of sending, and arrive in that order; so a
// transport needs no tags. A receiver has `slots` buffers for each sender: message k is in transit once k < slots + the
// number of messages that it has consumed. A sender never waits. Pure.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plan/pipeline_schedule.h"

namespace causeway::worker {

// Message `number` to or from `device`; for the own device: it stays there.
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
  std::vector<PipelineStep> steps;     // a schedule's pair of operations becomes two steps
  std::map<int, int> received, given;  // how many messages from, and to, each other device
};

struct PipelinePrograms {
  std::vector<PipelineProgram> devices;
  int slots = 1;
};

// Every device's program, with the smallest number of slots that suffices. INVALID_ARGUMENT: as plan::CheckPipeline.
absl::StatusOr<PipelinePrograms> CompilePipeline(const plan::PipelineSchedule& schedule);

// The behavior of a transport's Send: it returns at once, or when the receiver has come to the message (rendezvous),
// like a purely blocking transport.
enum class SendKind { kAsynchronous, kRendezvous };

// Runs the programs without time. INVALID_ARGUMENT if they deadlock: "schedule: device 0 waits at 0F1 for a slot from
// device 1, …".
absl::Status Rehearse(const PipelinePrograms& programs, int slots, SendKind sends);

}  // namespace causeway::worker
