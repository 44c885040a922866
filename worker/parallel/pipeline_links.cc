#include "worker/parallel/pipeline_links.h"

#include <algorithm>
#include <set>
#include <utility>

#include "core/check.h"

namespace causeway::worker {

absl::StatusOr<std::unique_ptr<PipelineLinks>> PipelineLinks::Open(const TrainerRanks& ranks,
                                                                   const PipelinePrograms& programs, int width,
                                                                   int64_t message_values) {
  const int device = ranks.rank() / width;
  std::unique_ptr<PipelineLinks> links(new PipelineLinks(device, message_values, ranks.timeout()));
  std::set<std::pair<int, int>> pairs;
  for (size_t d = 0; d < programs.devices.size(); ++d) {
    for (const auto& [to, count] : programs.devices[d].given) pairs.emplace(static_cast<int>(d), to);
  }
  for (const auto& [from, to] : pairs) {  // all ranks request the groups in this order
    const bool mine = device == from || device == to;
    const int color = mine ? ranks.rank() % width : width + ranks.rank();
    ASSIGN_OR_RETURN(std::unique_ptr<Collectives> group, ranks.values->Split(color, ranks.timeout()));
    if (!mine) continue;
    const PipelineProgram& sender = programs.devices[static_cast<size_t>(from)];
    Pair pair{.group = std::move(group), .other = 0, .messages = sender.given.at(to)};
    pair.other = 1 - pair.group->rank();
    if (device == to) {
      pair.slots.assign(static_cast<size_t>(std::min(programs.slots + 1, pair.messages)),
                        {std::vector<float>(links->message_values_)});
    }
    (device == from ? links->to_ : links->from_).emplace(device == from ? to : from, std::move(pair));
  }
  return links;
}

void PipelineLinks::Post(Pair& pair, Slot& slot) {
  slot.number = pair.next < pair.messages ? pair.next++ : -1;
  if (slot.number >= 0) slot.ticket = pair.group->Receive(BytesOf(std::span(slot.values)), pair.other);
}

PipelineLinks::Slot& PipelineLinks::SlotOf(std::vector<Slot>& slots, int number) {
  const auto found = std::ranges::find(slots, number, &Slot::number);
  CHECK(found != slots.end());
  return *found;
}

void PipelineLinks::Begin() {
  for (auto& [device, pair] : from_) {
    pair.next = 0;
    for (Slot& slot : pair.slots) Post(pair, slot);
  }
}

absl::StatusOr<std::span<const float>> PipelineLinks::Receive(const PipelineMessage& message) {
  if (message.device == device_) return std::span<const float>(SlotOf(own_, message.number).values);
  Pair& pair = from_.at(message.device);
  Slot& slot = SlotOf(pair.slots, message.number);
  RETURN_IF_ERROR(pair.group->Await(slot.ticket, timeout_));
  return std::span<const float>(slot.values);
}

void PipelineLinks::Release(const PipelineMessage& message) {
  if (message.device == device_) {
    SlotOf(own_, message.number).number = -1;
    return;
  }
  Pair& pair = from_.at(message.device);
  Post(pair, SlotOf(pair.slots, message.number));
}

std::span<float> PipelineLinks::Buffer(const PipelineMessage& message) {
  const bool own = message.device == device_;
  std::vector<Slot>& slots = own ? own_ : to_.at(message.device).slots;
  auto free = std::ranges::find_if(slots, [&](const Slot& slot) {
    return slot.number < 0 || (!own && to_.at(message.device).group->IsDone(slot.ticket));
  });
  if (free == slots.end()) free = slots.insert(free, {std::vector<float>(message_values_)});
  free->number = message.number;
  return free->values;
}

void PipelineLinks::Send(const PipelineMessage& message) {
  if (message.device == device_) return;
  Pair& pair = to_.at(message.device);
  Slot& slot = SlotOf(pair.slots, message.number);
  slot.ticket = pair.group->Send(BytesOf(std::span<const float>(slot.values)), pair.other);
  ++sent_messages_;
}

absl::Status PipelineLinks::Finish() {
  for (auto& [device, pair] : to_) {
    for (Slot& slot : pair.slots) {
      RETURN_IF_ERROR(pair.group->Await(slot.ticket, timeout_));
      slot.number = -1;
    }
  }
  return absl::OkStatus();
}

}  // namespace causeway::worker
