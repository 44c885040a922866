#include "transport/control_session.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/random.h"
#include "transport/backoff.h"
#include "transport/messages.h"

namespace causeway::transport {
namespace {

constexpr auto kDescribeTimeout = std::chrono::seconds(5);

struct Answer {
  core::Mutex mutex;
  core::Condition changed;
  std::optional<grpc::Status> status;
};

// Several links of one process are one: a script that makes its site anew takes its own place.
std::string ThisProcess() {
  static const uint64_t random = core::DeviceRandom();
  return absl::StrFormat("%016x-%d", random, ::getpid());  // a fork is another
}

constexpr int64_t kMostRetryAfterMs = 3'600'000;  // a larger number is an error of the coordinator

}  // namespace

bool IsRefusal(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNAUTHENTICATED ||
         status.error_code() == grpc::StatusCode::PERMISSION_DENIED;
}

bool UnreachableTooLong(int64_t connect_timeout_s, int64_t since_ms, int64_t now_ms) {
  return connect_timeout_s > 0 && now_ms - since_ms >= connect_timeout_s * 1000;
}

ControlSession::ControlSession(core::SiteId site, core::Shard shard, int64_t connect_timeout_s, core::SessionId id)
    : site_(std::move(site)), shard_(shard), connect_timeout_s_(connect_timeout_s), id_(std::move(id)) {}

void ControlSession::Resume(const core::SessionId& id, const Remembered& of_coordinator) {
  id_ = id;
  known_.lineage = of_coordinator.lineage;
  known_.proofs.Restore(of_coordinator.proofs);
}

v1::Context ControlSession::Context() const {
  v1::Context context;
  context.set_protocol(kProtocol);
  context.set_run_id(known_.run_id);
  context.set_site(site_);
  context.set_session(id_);
  context.set_epoch(known_.proofs.epoch().epoch);
  context.set_lineage(known_.lineage);
  context.set_life(known_.proofs.epoch().life);
  context.set_stay(known_.welcomed_stay);
  context.set_shard(shard_.index);
  context.set_num_shards(shard_.count);
  context.set_world(1);
  return context;
}

void ControlSession::Join(bool joining, v1::Join* join) {
  joining_ = joining;
  join->set_stay(known_.told_stay);
  join->set_process(ThisProcess());
  *join->mutable_context() = Context();
  known_.proofs.AddTo(join);
  state_ = State::kJoining;
}

Welcome ControlSession::Take(const v1::Welcome& welcome, core::FragmentMap map) {
  const bool same_lineage = !welcome.forgotten() && (known_.lineage.empty() || known_.lineage == welcome.lineage() ||
                                                     known_.lineage == welcome.continues());
  bool same_model = true;
  if (known_.lineage != welcome.lineage() || welcome.epoch() >= known_.proofs.epoch().epoch) {
    known_.proofs.HasEpoch({welcome.epoch(), welcome.life()}, welcome.proof());
  }
  known_.lineage = welcome.lineage();
  for (int p = 0; p < welcome.last_admitted_size() && p < welcome.admission_proofs_size(); ++p) {
    known_.proofs.HasAdmitted(p, welcome.last_admitted(p), welcome.admission_proofs(p));
  }
  known_.welcomed_stay = welcome.stay();
  if (welcome.has_generation()) {
    same_model = known_.generation.value_or(welcome.generation()) == welcome.generation();
    known_.generation = welcome.generation();
  }
  return {.resumed = welcome.resumed(),
          .kept_transfers = same_model && (welcome.resumed() || (joining_ && same_lineage)),
          .same_lineage = same_lineage,
          .lineage = known_.lineage,
          .stay = welcome.stay(),
          .generation = welcome.has_generation() ? std::optional(welcome.generation()) : std::nullopt,
          .map = std::move(map),
          .last_admitted = {welcome.last_admitted().begin(), welcome.last_admitted().end()},
          .settings = {welcome.settings_before(), FromProto(welcome.revisions())}};
}

std::optional<v1::SiteMessage> ControlSession::Enter() {
  state_ = State::kWelcomed;
  attempts_ = 0;
  return leave_;
}

void ControlSession::Refused(const v1::Refused& refused, int64_t now_ms) {
  retry_after_ms_ = std::min(refused.retry_after_ms(), kMostRetryAfterMs);
  unreached_since_ms_ = now_ms;  // it was reached, and named the time to come back
  last_error_ = refused.reason();
}

void ControlSession::Ended(const grpc::Status& status, int64_t now_ms) {
  unconnected_ = !welcomed() && status.error_code() == grpc::StatusCode::UNAVAILABLE;
  if (welcomed() || unreached_since_ms_ == 0) unreached_since_ms_ = now_ms;
  attempts_ = welcomed() ? 1 : attempts_ + 1;
  if (leave_ && welcomed() && status.ok()) left_ = stopping_ = true;  // it ends the stream when that is durable
  state_ = State::kApart;
  if (!status.error_message().empty()) {
    last_error_ = status.error_message();
  } else if (retry_after_ms_ == 0) {
    last_error_ = "the coordinator ended it";
  }
}

ControlSession::Wait ControlSession::TakeWait(uint64_t random) {
  const int64_t refused_ms = std::exchange(retry_after_ms_, 0);
  return {.ms = std::max(refused_ms, BackoffMs(attempts_ - 1, random)),
          .error = last_error_,
          .unconnected = unconnected_,
          .refused = refused_ms > 0};
}

std::optional<std::string> ControlSession::GivesUp(int64_t now_ms) const {
  const bool gives_up = !over() && UnreachableTooLong(connect_timeout_s_, unreached_since_ms_, now_ms);
  return gives_up ? std::optional(last_error_) : std::nullopt;
}

bool ControlSession::Report(int64_t now_ms, v1::Progress* report) const {
  if (welcomed()) report->set_unheard_ms(now_ms - heard_ms_);
  return welcomed();
}

bool ControlSession::HasLeft(bool finished) const { return left_ || failed_ || hurried_ || (!finished && !running()); }

bool ControlSession::Fail() { return !std::exchange(failed_, true); }

std::shared_ptr<ControlStream> ControlStream::Start(Wire& wire, v1::Join join, OnMessage on_message, OnEnded on_ended) {
  std::shared_ptr<ControlStream> stream(new ControlStream(wire));
  stream->self_ = stream;
  stream->on_message_ = std::move(on_message);
  stream->on_ended_ = std::move(on_ended);
  wire.Prepare(stream->context_, *stream);
  v1::SiteMessage first;
  *first.mutable_join() = std::move(join);
  stream->AddHold();  // Send comes from other threads; released when reading ends
  stream->Send(std::move(first));
  stream->StartRead(&stream->incoming_);
  stream->StartCall();
  return stream;
}

void ControlStream::Send(v1::SiteMessage message) {
  core::MutexLock lock(mutex_);
  if (ended_) return;
  outgoing_.push_back(std::move(message));
  if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
}

void ControlStream::OnReadDone(bool ok) {
  if (ok) {
    if (core::Guarded([this] { on_message_(incoming_); })) return StartRead(&incoming_);
    Cancel();
  }
  {
    core::MutexLock lock(mutex_);
    ended_ = true;
  }
  RemoveHold();
}

void ControlStream::OnWriteDone(bool ok) {
  core::MutexLock lock(mutex_);
  outgoing_.pop_front();
  if (!ok) ended_ = true;
  if (!ended_ && !outgoing_.empty()) StartWrite(&outgoing_.front());
}

void ControlStream::OnDone(const grpc::Status& status) {
  const std::shared_ptr<ControlStream> self = std::move(self_);
  core::Guarded([&] { on_ended_(status); });
}

grpc::Status AskForDescription(v1::Coordinator::Stub& stub, const core::SiteId& site,
                               absl::FunctionRef<bool()> cancelled, v1::RunDescription& description) {
  grpc::ClientContext context;
  context.set_deadline(core::SystemClock().Calendar() + kDescribeTimeout);
  v1::DescribeRequest request;
  request.mutable_context()->set_protocol(kProtocol);
  request.mutable_context()->set_site(site);
  Answer answer;
  stub.async()->Describe(&context, &request, &description, [&](const grpc::Status& status) {
    core::MutexLock lock(answer.mutex);
    answer.status = status;
    answer.changed.NotifyAll();
  });
  core::MutexLock lock(answer.mutex);
  const auto answered = [&] { return answer.status.has_value(); };
  while (!lock.WaitFor(answer.changed, std::chrono::milliseconds(kStopPollMs), answered)) {
    if (cancelled()) context.TryCancel();
  }
  return *answer.status;
}

absl::Status MeaningOf(const grpc::Status& status, const v1::RunDescription& description, const core::Shard& expected,
                       const Address& coordinator) {
  if (status.ok()) {
    const core::Shard there{description.shard(), std::max(1, description.num_shards())};
    if (there == expected) return absl::OkStatus();
    return absl::PermissionDeniedError(absl::StrCat("expected ", expected.Text(), " at ", coordinator.Text(),
                                                    ", this is ", there.Text(),
                                                    ": --coordinator names all shards of the run, in their order"));
  }
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED ||
      status.error_code() == grpc::StatusCode::FAILED_PRECONDITION) {
    return absl::PermissionDeniedError(
        absl::StrCat(coordinator.Text(), " is not a coordinator of this version: ", status.error_message()));
  }
  if (IsRefusal(status)) return absl::PermissionDeniedError(status.error_message());
  return absl::UnavailableError(status.error_message());
}

}  // namespace causeway::transport
