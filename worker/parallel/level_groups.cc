#include "worker/parallel/level_groups.h"

#include "core/check.h"

namespace causeway::worker {

LevelGroups::LevelGroups(int rank, std::vector<int64_t> of, Collectives::Timeout timeout)
    : rank_(rank), of_(std::move(of)), timeout_(timeout) {
  for (const int64_t size : of_) {
    digits_.push_back(rank % size);
    rank = static_cast<int>(rank / size);
  }
}

absl::StatusOr<std::unique_ptr<LevelGroups>> LevelGroups::Open(Collectives& ranks, std::vector<int64_t> of,
                                                               Collectives::Timeout timeout) {
  std::unique_ptr<LevelGroups> levels(new LevelGroups(ranks.rank(), std::move(of), timeout));
  int64_t within = 1;
  for (size_t l = 0; l < levels->of_.size(); ++l) {
    const int64_t size = levels->of_[l];
    levels->groups_.emplace_back();
    if (size > 1) {
      // Ranks that differ only in this digit.
      const int64_t color = ranks.rank() - levels->digits_[l] * within;
      ASSIGN_OR_RETURN(levels->groups_.back(), ranks.Split(static_cast<int>(color), timeout));
    }
    within *= size;
  }
  return levels;
}

std::span<float> LevelGroups::Part(std::span<float> array, int of_level, int level) const {
  size_t index = 0, parts = 1;
  for (int l = of_level + 1; l <= level; ++l) {
    const auto at = static_cast<size_t>(l);
    index = index * static_cast<size_t>(of_[at]) + static_cast<size_t>(digits_[at]);
    parts *= static_cast<size_t>(of_[at]);
  }
  CHECK(array.size() % parts == 0);
  const size_t size = array.size() / parts;
  return array.subspan(index * size, size);
}

absl::Status LevelGroups::Finish(const char* what, size_t level, Collectives::Ticket ticket,
                                 std::span<const float> part) {
  const core::Clock::TimePoint begin = core::SystemClock().Now();
  RETURN_IF_ERROR(groups_[level]->Await(ticket, timeout_));
  if (trace_ == nullptr) return absl::OkStatus();
  const double received = static_cast<double>(part.size_bytes()) * static_cast<double>(of_[level] - 1);
  trace_->Add(what + names_[level], begin, {{"link " + names_[level], received}});
  return absl::OkStatus();
}

absl::Status LevelGroups::Gather(std::span<float> array, int from, int to) {
  for (int l = from; l > to; --l) {
    Collectives* const group = groups_[static_cast<size_t>(l)].get();
    if (group == nullptr) continue;
    const std::span<const float> part = Part(array, to, l);
    const Collectives::Ticket ticket = group->AllGather(BytesOf(part), BytesOf(Part(array, to, l - 1)));
    RETURN_IF_ERROR(Finish("gather ", static_cast<size_t>(l), ticket, part));
  }
  return absl::OkStatus();
}

absl::Status LevelGroups::Scatter(std::span<float> array, int from, int to) {
  for (int l = from + 1; l <= to; ++l) {
    Collectives* const group = groups_[static_cast<size_t>(l)].get();
    if (group == nullptr) continue;
    const std::span<float> part = Part(array, from, l);
    RETURN_IF_ERROR(
        Finish("scatter ", static_cast<size_t>(l), group->ReduceScatter(Part(array, from, l - 1), part), part));
  }
  return absl::OkStatus();
}

int64_t LevelGroups::sent_bytes(int level) const {
  const Collectives* const group = groups_[static_cast<size_t>(level)].get();
  return group == nullptr ? 0 : group->sent_bytes();
}

}  // namespace causeway::worker
