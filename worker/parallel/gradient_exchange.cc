#include "worker/parallel/gradient_exchange.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace causeway::worker {
namespace {

// Reduces all values in one operation per contiguous range. Returns the last one's ticket; 0: none.
Collectives::Ticket AllReduce(const MutableTensors& gradients, Collectives& group) {
  Collectives::Ticket ticket = 0;
  std::span<float> together;
  for (const std::span<float> values : gradients) {
    if (!together.empty() && together.data() + together.size() == values.data()) {
      together = {together.data(), together.size() + values.size()};
      continue;
    }
    if (!together.empty()) ticket = group.AllReduce(together);
    together = values;
  }
  return together.empty() ? ticket : group.AllReduce(together);
}

}  // namespace

absl::StatusOr<std::unique_ptr<GradientExchange>> GradientExchange::Open(const TrainerRanks& ranks,
                                                                         const plan::PipelineFile& file,
                                                                         const PipelinePlaces& places,
                                                                         MutableTensors gradients,
                                                                         std::span<float> together, AddHead add_head) {
  std::unique_ptr<GradientExchange> exchange(
      new GradientExchange(places, std::move(gradients), together, std::move(add_head), ranks.timeout()));
  const int device = ranks.rank() / file.width, j = ranks.rank() % file.width;
  // A group of these devices' j-th ranks, for each j; ranks of other devices are alone in their groups.
  const auto group_of = [&](const std::vector<int>& devices) -> absl::StatusOr<std::unique_ptr<Collectives>> {
    const bool mine = std::ranges::find(devices, device) != devices.end();
    ASSIGN_OR_RETURN(std::unique_ptr<Collectives> group,
                     ranks.values->Split(mine ? j : file.width + ranks.rank(), ranks.timeout()));
    return mine ? std::move(group) : nullptr;
  };
  const plan::PipelineSchedule& schedule = file.schedule;
  for (size_t s = 0; schedule.copies > 1 && s < places.stages.size(); ++s) {
    std::vector<int> holders;
    for (const std::vector<int>& copy : schedule.place) holders.push_back(copy[s]);
    ASSIGN_OR_RETURN(std::unique_ptr<Collectives> group, group_of(holders));
    if (group != nullptr) exchange->copies_[static_cast<int>(s)] = std::move(group);
  }
  if (places.tied()) {
    const auto has = [&](const std::vector<int>& devices) {
      return std::ranges::find(devices, device) != devices.end();
    };
    if (places.embedding_devices != places.head_devices) {
      std::vector<int> both = places.embedding_devices;
      both.insert(both.end(), places.head_devices.begin(), places.head_devices.end());
      ASSIGN_OR_RETURN(exchange->tied_, group_of(both));
      exchange->gives_embedding_ = places.embedding_devices.front() == device;
      exchange->gives_head_ = places.head_devices.front() == device;
    } else {
      exchange->adds_head_ = has(places.head_devices);
    }
  }
  if (file.shards) return exchange;
  const bool is_site = file.schedule.devices == 1;
  if (file.width > 1 && !is_site) {
    ASSIGN_OR_RETURN(exchange->place_, ranks.values->Split(device, ranks.timeout()));
  }
  exchange->ranks_.emplace(is_site ? ranks.gradients() : exchange->place_.get(), ranks.timeout(), ranks.bucket_bytes,
                           ranks.crossing);
  return exchange;
}

void GradientExchange::Begin(bool sums) {
  sums_ = sums;
  head_added_ = false;
  reduced_.clear();
  if (ranks_) ranks_->Begin(sums ? together_ : std::span<float>());
}

void GradientExchange::Final(int tensor) {
  if (tensor == 0) AddHeadHere();
  if (sums_ && ranks_) ranks_->FinalFrom(gradients_[static_cast<size_t>(tensor)].data() - together_.data());
}

void GradientExchange::Reduce(int stage) {
  const auto group = copies_.find(stage);
  if (group == copies_.end()) return;
  MutableTensors gradients;
  for (const int gradient : places_.stages[static_cast<size_t>(stage)]) {
    gradients.push_back(gradients_[static_cast<size_t>(gradient)]);
  }
  reduced_.push_back({group->second.get(), AllReduce(gradients, *group->second)});
}

void GradientExchange::AddHeadHere() {
  if (adds_head_ && !std::exchange(head_added_, true)) add_head_(gradients_.back(), gradients_.front());
}

absl::Status GradientExchange::FinishTiedHead() {
  AddHeadHere();
  const std::span<float> embedding = gradients_.front(), head = gradients_.back();
  if (tied_ == nullptr) return absl::OkStatus();
  if (!gives_embedding_) std::ranges::fill(embedding, 0.0f);
  if (gives_head_) add_head_(head, embedding);
  return tied_->Await(tied_->AllReduce(embedding), timeout_);
}

absl::Status GradientExchange::Finish() {
  for (const Reduced& reduced : reduced_) RETURN_IF_ERROR(reduced.group->Await(reduced.ticket, timeout_));
  RETURN_IF_ERROR(FinishTiedHead());
  return sums_ && ranks_ ? ranks_->Finish() : absl::OkStatus();
}

int64_t GradientExchange::sent_bytes() const {
  int64_t all = (tied_ == nullptr ? 0 : tied_->sent_bytes()) + (place_ == nullptr ? 0 : place_->sent_bytes());
  for (const auto& [stage, group] : copies_) all += group->sent_bytes();
  return all;
}

}  // namespace causeway::worker
