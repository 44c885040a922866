#include "offload/cpu_subgroups.h"

#include <algorithm>

#include "core/check.h"

namespace causeway::offload {
namespace {

int64_t OnCpu(const SubgroupPlan& plan) {
  int64_t values = 0;
  for (int64_t i = 0; i < plan.num_subgroups(); ++i) values += plan.OnDevice(i) ? 0 : plan.Size(i);
  return values;
}

int64_t CopyValues(const SubgroupPlan& plan) { return std::min(plan.subgroup, plan.parameters); }

}  // namespace

int64_t CpuSubgroups::HostBytes(const SubgroupPlan& plan, GradientType gradients) {
  const int64_t values = OnCpu(plan);
  const auto copies = static_cast<int64_t>(kCopies * sizeof(uint16_t));
  return values == 0 ? 0 : values * BytesOf(gradients) + copies * CopyValues(plan);
}

CpuSubgroups::CpuSubgroups(const SubgroupPlan& plan, GradientType gradients, Device* device, UpdateTraffic* traffic)
    : plan_(plan), type_(gradients), device_(device), traffic_(traffic) {}

absl::Status CpuSubgroups::Prepare(PinnedPool& pool) {
  int64_t place = 0;
  for (int64_t i = 0; i < plan_.num_subgroups(); ++i) {
    subgroups_.push_back({.place = place, .missing = plan_.Size(i), .gradients_here = device_->MakeEvent()});
    if (!plan_.OnDevice(i)) place += plan_.Size(i);
  }
  if (place == 0) return absl::OkStatus();
  for (Device::Event& event : copy_left_) event = device_->MakeEvent();
  ASSIGN_OR_RETURN(gradients_, pool.Take(static_cast<size_t>(place * BytesOf(type_))));
  ASSIGN_OR_RETURN(copies_, pool.Take(static_cast<size_t>(kCopies * CopyValues(plan_)) * sizeof(uint16_t)));
  return absl::OkStatus();
}

int64_t CpuSubgroups::Send(const void* gradients, int64_t first, int64_t count) {
  const int64_t bytes = BytesOf(type_), end = first + count;
  int64_t sent = 0;
  // From the end to the front, as backward goes.
  for (int64_t i = (end - 1) / plan_.subgroup; count > 0 && i >= first / plan_.subgroup; --i) {
    if (plan_.OnDevice(i)) continue;
    Subgroup& subgroup = subgroups_[static_cast<size_t>(i)];
    const int64_t from = std::max(first, plan_.First(i)), to = std::min(end, plan_.First(i) + plan_.Size(i));
    traffic_->ToHost(Queue::kGradients,
                     static_cast<char*>(gradients_.data()) + (subgroup.place + from - plan_.First(i)) * bytes,
                     static_cast<const char*>(gradients) + from * bytes, static_cast<size_t>((to - from) * bytes));
    device_->Record(subgroup.gradients_here, Queue::kGradients);
    sent += (to - from) * bytes;
    subgroup.missing -= to - from;
    if (subgroup.missing == 0) order_.push_back(i);
  }
  return sent;
}

void CpuSubgroups::SendHeld(const void* gradients) {
  for (const auto& [first, count] : std::exchange(held_, {})) Send(gradients, first, count);
}

AdamWArrays CpuSubgroups::Await(int64_t i) {
  const Subgroup& subgroup = subgroups_[static_cast<size_t>(i)];
  const int64_t slot = copies_made_ % kCopies;
  device_->AwaitOnHost(copy_left_[slot]);
  device_->AwaitOnHost(subgroup.gradients_here);
  return {.gradient = static_cast<char*>(gradients_.data()) + subgroup.place * BytesOf(type_),
          .gradient_type = type_,
          .bfloat16_copy = copies_.Values<uint16_t>().data() + slot * CopyValues(plan_),
          .count = plan_.Size(i)};
}

void CpuSubgroups::SendCopy(int64_t i, uint16_t* to) {
  const int64_t slot = copies_made_++ % kCopies;
  traffic_->ToDevice(Queue::kParameters, to, copies_.Values<uint16_t>().data() + slot * CopyValues(plan_),
                     static_cast<size_t>(plan_.Size(i)) * sizeof(uint16_t));
  device_->Record(copy_left_[slot], Queue::kParameters);
}

void CpuSubgroups::EndUpdate() {
  for (int64_t i : order_) subgroups_[static_cast<size_t>(i)].missing = plan_.Size(i);
  order_.clear();
}

}  // namespace causeway::offload
