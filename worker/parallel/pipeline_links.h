// The messages of a pipeline's device to and from the others, over a group of two ranks for each ordered pair.
//
//   Begin ─► Receive(message) ─► its values ─► Release ─► the next one is received into the same slot
//            Buffer(device) ─► filled ─► Send(message)       beside what the device computes
//
// Slots are received into in the sender's order, so that no message needs a tag; there is one more than the programs
// need, for a message in transit while the previous one waits. A message that stays on the device is kept here. Send
// never waits: there are as many buffers as messages in transit. One owner thread.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/parallel/pipeline_program.h"
#include "worker/ranks/collectives.h"
#include "worker/ranks/rank_steps.h"

namespace causeway::worker {

class PipelineLinks {
 public:
  // Rank `device · width + j` of `ranks` runs that device's program, for each j < width. Every rank calls it; `ranks`
  // and `programs` outlive the object.
  static absl::StatusOr<std::unique_ptr<PipelineLinks>> Open(const TrainerRanks& ranks,
                                                             const PipelinePrograms& programs, int width,
                                                             int64_t message_values);

  void Begin();  // begins a step
  absl::StatusOr<std::span<const float>> Receive(const PipelineMessage& message);
  void Release(const PipelineMessage& message);
  std::span<float> Buffer(const PipelineMessage& message);
  void Send(const PipelineMessage& message);  // sends the contents of its Buffer
  absl::Status Finish();                      // ends the step: all messages have arrived

  int64_t sent_messages() const { return sent_messages_; }
  int64_t sent_bytes() const { return sent_messages_ * static_cast<int64_t>(message_values_ * sizeof(float)); }

 private:
  struct Slot {
    std::vector<float> values;
    int number = -1;  // the message in it, or in transit
    Collectives::Ticket ticket = 0;
  };
  struct Pair {
    std::unique_ptr<Collectives> group;
    int other = 0;            // the other device's rank in it
    int messages = 0;         // number of messages in a step
    int next = 0;             // the first message for which no slot waits
    std::vector<Slot> slots;  // for messages received, or buffers for messages sent
  };

  PipelineLinks(int device, int64_t message_values, Collectives::Timeout timeout)
      : device_(device), message_values_(static_cast<size_t>(message_values)), timeout_(timeout) {}

  void Post(Pair& pair, Slot& slot);
  static Slot& SlotOf(std::vector<Slot>& slots, int number);

  const int device_;
  const size_t message_values_;
  const Collectives::Timeout timeout_;
  std::map<int, Pair> from_, to_;  // keyed by the other device
  std::vector<Slot> own_;          // messages that stay on this device
  int64_t sent_messages_ = 0;
};

}  // namespace causeway::worker
