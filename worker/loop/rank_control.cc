#include "worker/loop/rank_control.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/check.h"

namespace causeway::worker {
namespace {

constexpr std::chrono::nanoseconds kMostSilence = std::chrono::seconds(5);

}  // namespace

struct RankControl::Head {
  RankCommand::Kind kind = RankCommand::Kind::kAlive;
  int64_t count = 0;
  uint64_t payload_bytes = 0;
};

RankControl::RankControl(std::unique_ptr<Collectives> group, double timeout_s)
    : group_(std::move(group)), timeout_(TimeoutOf(timeout_s)) {}

RankControl::~RankControl() {
  {
    core::MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.Join();
}

absl::Status RankControl::Await(Collectives::Ticket ticket) {
  const absl::Status status = group_->Await(ticket, timeout_);
  return status.ok() ? status : absl::InternalError(status.message());
}

absl::Status RankControl::Say(const RankCommand& command) {
  said_ = true;
  Head head{command.kind, command.count, command.payload.size()};
  RETURN_IF_ERROR(Await(group_->Broadcast(BytesOf(std::span(&head, 1)), 0)));
  if (command.payload.empty()) return absl::OkStatus();
  std::string payload = command.payload;
  return Await(group_->Broadcast(BytesOf(std::span(payload.data(), payload.size())), 0));
}

absl::Status RankControl::Tell(const RankCommand& command) {
  if (alone()) return absl::OkStatus();
  core::MutexLock lock(mutex_);
  return Say(command);
}

void RankControl::BeginTogether() {
  core::MutexLock lock(mutex_);
  together_ = true;
}

void RankControl::EndTogether() {
  core::MutexLock lock(mutex_);
  together_ = false;
  said_ = true;
}

void RankControl::StayAlive(std::function<void(const absl::Status&)> failed) {
  if (alone()) return;
  failed_ = std::move(failed);
  thread_ = core::Thread([this] { KeepAlive(); });
}

void RankControl::KeepAlive() {
  const std::chrono::nanoseconds silence = std::min(kMostSilence, timeout_ / 4);
  core::MutexLock lock(mutex_);
  while (!lock.WaitFor(changed_, silence, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; })) {
    if (std::exchange(said_, false) || together_) continue;
    if (const absl::Status status = Say({}); !status.ok()) {
      failed_(status);
      return;
    }
  }
}

absl::StatusOr<RankCommand> RankControl::Next() {
  while (true) {
    Head head;
    RETURN_IF_ERROR(Await(group_->Broadcast(BytesOf(std::span(&head, 1)), 0)));
    RankCommand command{head.kind, head.count, std::string(head.payload_bytes, '\0')};
    if (!command.payload.empty()) {
      RETURN_IF_ERROR(Await(group_->Broadcast(BytesOf(std::span(command.payload.data(), command.payload.size())), 0)));
    }
    if (command.kind != RankCommand::Kind::kAlive) return command;
  }
}

absl::Status RankControl::Broadcast(std::span<std::byte> bytes) { return Await(group_->Broadcast(bytes, 0)); }

absl::StatusOr<std::vector<uint64_t>> RankControl::GatherDigests(uint64_t mine) {
  std::vector<uint64_t> digests(group_->world());
  RETURN_IF_ERROR(Await(group_->AllGather(BytesOf(std::span<const uint64_t>(&mine, 1)), BytesOf(std::span(digests)))));
  return digests;
}

}  // namespace causeway::worker
