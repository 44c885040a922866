#include "server/run/membership_follower.h"

#include <spdlog/spdlog.h>

#include "absl/strings/str_cat.h"
#include "core/clock.h"
#include "core/random.h"
#include "transport/backoff.h"
#include "transport/messages.h"

namespace causeway::server {
namespace {

constexpr auto kReportInterval = std::chrono::milliseconds(50);  // how long shard 0 may know less
constexpr auto kSilence = std::chrono::seconds(1);  // at most, even without news: shard 0 shows which shards are away

// Shard 0 rejects the caller, or its request.
bool IsRefusal(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::FAILED_PRECONDITION:
    case grpc::StatusCode::PERMISSION_DENIED:
    case grpc::StatusCode::UNAUTHENTICATED:
    case grpc::StatusCode::UNIMPLEMENTED: return true;
    default: return false;
  }
}

}  // namespace

MembershipFollower::MembershipFollower(MembershipFollowerOptions options, std::unique_ptr<transport::Wire> lead,
                                       RunExchange* exchange)
    : options_(std::move(options)), exchange_(exchange), lead_(std::move(lead)), thread_([this] { Run(); }) {}

MembershipFollower::~MembershipFollower() {
  {
    core::MutexLock lock(mutex_);
    stopping_ = true;
    if (context_ != nullptr) lead_->Cancel(*context_);
    changed_.NotifyAll();
  }
  thread_.Join();
}

bool MembershipFollower::WaitToAskAgain(int64_t wait_ms) {
  core::MutexLock lock(mutex_);
  lock.WaitFor(changed_, std::chrono::milliseconds(wait_ms),
               [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; });
  return !stopping_;
}

void MembershipFollower::Run() {
  for (int attempt = 0;; ++attempt) {
    const bool had_followed = std::exchange(has_followed_, false);
    const grpc::Status status = FollowOnce();
    if (has_followed_) attempt = 0;
    has_followed_ |= had_followed;
    const int64_t wait_ms = transport::BackoffMs(attempt, core::DeviceRandom());
    {
      core::MutexLock lock(mutex_);
      if (stopping_) return;
    }
    if (!has_followed_ && IsRefusal(status)) {
      exchange_->Fail(absl::FailedPreconditionError(
          absl::StrCat("shard 0 at ", options_.lead.Text(), ": ", status.error_message())));
      return;
    }
    spdlog::warn("shard 0 at {}: {}; goes on with the membership that it knows, asks again in {} ms",
                 options_.lead.Text(), status.ok() ? "it ended the stream" : status.error_message(), wait_ms);
    if (!WaitToAskAgain(wait_ms)) return;
  }
}

grpc::Status MembershipFollower::FollowOnce() {
  grpc::ClientContext context;
  {
    core::MutexLock lock(mutex_);
    if (stopping_) return grpc::Status::CANCELLED;
    context_ = &context;
    stream_ended_ = false;
  }
  const auto stream = lead_->Follow(context);
  v1::FollowMessage first;
  first.mutable_context()->set_protocol(transport::kProtocol);
  first.mutable_context()->set_run_id(options_.run_id);
  first.mutable_context()->set_shard(options_.shard.index);
  first.mutable_context()->set_num_shards(options_.shard.count);
  *first.mutable_report() = exchange_->Report();
  core::Thread reporter;
  if (stream->Write(first)) {
    reporter = core::Thread([&, reported = first.report().SerializeAsString()] { SendReports(*stream, reported); });
  }
  v1::MembershipUpdate update;
  while (stream->Read(&update)) {
    if (!has_followed_) spdlog::info("follows shard 0 at {}", options_.lead.Text());
    has_followed_ = true;
    const absl::Status followed = exchange_->Handle(input::Membership{update}).status;
    if (!followed.ok()) exchange_->Fail(followed);
  }
  {
    core::MutexLock lock(mutex_);
    stream_ended_ = true;
    changed_.NotifyAll();
  }
  if (reporter.joinable()) reporter.Join();
  const grpc::Status status = stream->Finish();
  core::MutexLock lock(mutex_);
  context_ = nullptr;
  return status;
}

void MembershipFollower::SendReports(transport::FollowCall& stream, const std::string& reported) {
  std::string last = reported;
  core::Clock::TimePoint said_at = core::SystemClock().Now();
  while (true) {
    {
      core::MutexLock lock(mutex_);
      lock.WaitFor(changed_, kReportInterval,
                   [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stream_ended_ || stopping_; });
      if (stream_ended_ || stopping_) return;
    }
    v1::FollowMessage message;
    *message.mutable_report() = exchange_->Report();
    std::string next = message.report().SerializeAsString();
    const core::Clock::TimePoint now = core::SystemClock().Now();
    if (next == last && now - said_at < kSilence) continue;
    last = std::move(next);
    said_at = now;
    if (!stream.Write(message)) return;  // the reader notices
  }
}

}  // namespace causeway::server
