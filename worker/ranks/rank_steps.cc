#include "worker/ranks/rank_steps.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/check.h"

namespace causeway::worker {

void GradientBuckets::Begin(std::span<float> gradients) {
  gradients_ = gradients;
  reduced_from_ = std::ssize(gradients);
  last_ = 0;
  narrow_sent_ = 0;
  if (gradients.empty()) narrow_ = {};
}

void GradientBuckets::FinalFrom(int64_t first) {
  if (group_ == nullptr || group_->world() == 1) return;
  while (reduced_from_ - first >= bucket_values_ || (first == 0 && reduced_from_ > 0)) {
    const int64_t begin = std::max<int64_t>(0, reduced_from_ - bucket_values_);
    const std::span<float> bucket = gradients_.subspan(begin, reduced_from_ - begin);
    if (crossing_ == core::DType::kFloat32) {
      last_ = group_->AllReduce(bucket);
    } else {
      SendNarrow(bucket);
    }
    reduced_from_ = begin;
  }
}

absl::Status GradientBuckets::Finish() {
  FinalFrom(0);
  const std::span<Narrow> narrow(narrow_.data(), narrow_sent_);
  for (Narrow& bucket : narrow) RETURN_IF_ERROR(SumNarrow(bucket));
  for (Narrow& bucket : narrow) {
    RETURN_IF_ERROR(group_->Await(bucket.ticket, timeout_));
    core::Load(crossing_, bucket.all.data(), bucket.gradients);
  }
  return last_ == 0 ? absl::OkStatus() : group_->Await(last_, timeout_);
}

void GradientBuckets::SendNarrow(std::span<float> gradients) {
  if (narrow_sent_ == narrow_.size()) narrow_.emplace_back();
  Narrow& bucket = narrow_[narrow_sent_++];
  const auto world = static_cast<size_t>(group_->world());
  bucket.gradients = gradients;
  bucket.range = (gradients.size() + world - 1) / world;
  for (std::vector<uint16_t>* all : {&bucket.parts, &bucket.received, &bucket.all}) all->resize(bucket.range * world);
  bucket.sum.resize(bucket.range);
  core::Store(crossing_, gradients, bucket.parts.data());
  bucket.ticket =
      group_->AllToAll(BytesOf(std::span<const uint16_t>(bucket.parts)), BytesOf(std::span(bucket.received)));
}

absl::Status GradientBuckets::SumNarrow(Narrow& bucket) {
  RETURN_IF_ERROR(group_->Await(bucket.ticket, timeout_));
  std::vector<float> sum(bucket.range), values(bucket.range);
  for (size_t at = 0; at < bucket.received.size(); at += bucket.range) {
    core::Load(crossing_, bucket.received.data() + at, at == 0 ? sum : values);
    for (size_t i = 0; at > 0 && i < sum.size(); ++i) sum[i] += values[i];
  }
  core::Store(crossing_, sum, bucket.sum.data());
  bucket.ticket = group_->AllGather(BytesOf(std::span<const uint16_t>(bucket.sum)), BytesOf(std::span(bucket.all)));
  return absl::OkStatus();
}

absl::Status RankFailure(const absl::Status& status) {
  return status.ok() ? status : absl::InternalError(status.message());
}

absl::StatusOr<std::vector<RankStep>> RankSteps::Share(RankStep mine, std::span<const double> sums,
                                                       std::span<double> all) {
  mine.stop_requested = ranks_.stop_requested != nullptr && ranks_.stop_requested();
  if (world() == 1) {
    std::ranges::copy(sums, all.begin());
    return std::vector<RankStep>{mine};
  }
  const size_t bytes = sizeof(RankStep) + sums.size_bytes();
  std::vector<std::byte> own(bytes), every(bytes * static_cast<size_t>(world()));
  std::memcpy(own.data(), &mine, sizeof(RankStep));
  if (!sums.empty()) std::memcpy(own.data() + sizeof(RankStep), sums.data(), sums.size_bytes());
  const Collectives::Ticket ticket =
      ranks_.values->AllGather(BytesOf(std::span<const std::byte>(own)), BytesOf(std::span(every)));
  RETURN_IF_ERROR(RankFailure(ranks_.values->Await(ticket, ranks_.timeout())));
  std::vector<RankStep> steps(static_cast<size_t>(world()));
  for (size_t rank = 0; rank < steps.size(); ++rank) {
    const std::byte* const theirs = every.data() + rank * bytes;
    std::memcpy(&steps[rank], theirs, sizeof(RankStep));
    if (!sums.empty()) std::memcpy(&all[rank * sums.size()], theirs + sizeof(RankStep), sums.size_bytes());
  }
  Note(steps);
  return steps;
}

void RankSteps::Note(const std::vector<RankStep>& steps) {
  late_step_s_.resize(steps.size());
  for (size_t rank = 0; rank < steps.size(); ++rank) {
    AddToLateMean(steps[rank].compute_s, late_step_s_[rank]);
    stop_requested_ = stop_requested_ || steps[rank].stop_requested;
  }
  int64_t sent = ranks_.values->sent_bytes();
  if (ranks_.device_values != nullptr) sent += ranks_.device_values->sent_bytes();
  const auto slowest = std::ranges::max_element(late_step_s_);
  progress_ = {.ranks = world(),
               .hosts = ranks_.hosts,
               .slowest = ranks_.values->NameOf(static_cast<int>(slowest - late_step_s_.begin())),
               .slowest_step_s = *slowest,
               .standing_still = {},
               .step_bytes = static_cast<double>(sent - std::exchange(sent_bytes_, sent)),
               .onebit_adam = {},
               .levels = {}};
}

}  // namespace causeway::worker
