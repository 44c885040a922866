#include <algorithm>
#include <atomic>

#include "absl/strings/str_cat.h"
#include "core/limits.h"
#include "server/calls/download_messages.h"
#include "server/calls/gated_call.h"
#include "server/calls/reactors.h"
#include "transport/messages.h"
#include "transport/read_message.h"

namespace causeway::server {
namespace {

// Reads the request, then writes its messages. Advance takes the next step whenever one may be possible: at the start,
// after a write, and when a source wakes it (which may be after the call's end: hence the shared ownership).
class DownloadReactor final : public CallReactor, public GatedCall {
 public:
  DownloadReactor(RunExchange* exchange, Gate* gate, Peer peer)
      : GatedCall(gate, std::move(peer)), exchange_(exchange), messages_(exchange, &request_) {}

  void Begin(const std::shared_ptr<DownloadReactor>& self) {
    self_ = self;
    weak_ = self;
    if (Arrive(self_)) StartRead(&incoming_);
  }

  void End(const absl::Status& status) override { FinishOnce(ToGrpc(status)); }

  void Beat() override {
    core::MutexLock lock(mutex_);
    if (meters_ == nullptr || !request_.wants_beats() || writing_ || finished_) return;
    v1::DownloadMessage message;
    message.mutable_beat();
    writing_ = true;
    outgoing_ = transport::ToBytes(message);
    StartWrite(&outgoing_);
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return End(absl::InvalidArgumentError("expected a DownloadRequest, got none"));
    Spoke();
    if (const absl::Status status = TakeRequest(); !status.ok()) return End(status);
    {
      core::MutexLock lock(mutex_);
      meters_ = exchange_->transfers().Meters(request_.context().site());
    }
    Advance();
  }

  absl::Status TakeRequest() {
    RETURN_IF_ERROR(transport::ReadMessage(incoming_, &request_, core::kMaxQuestionBytes));
    if (const int stripes = std::max(1, request_.num_stripes()); request_.stripe() >= stripes) {
      return absl::InvalidArgumentError(
          absl::StrCat("expected a stripe below ", stripes, ", got stripe ", request_.stripe()));
    }
    ASSIGN_OR_RETURN(counted_, gate_->BulkStream(peer_, request_.context().site()));
    return absl::OkStatus();
  }

  void OnWriteDone(bool ok) override {
    {
      core::MutexLock lock(mutex_);
      writing_ = false;
    }
    if (ok) {
      Advance();
    } else {
      FinishOnce(grpc::Status::CANCELLED);
    }
  }

  void OnCancel() override {
    cancelled_ = true;
    FinishOnce(grpc::Status::CANCELLED);
  }

  void OnDone() override {
    const std::shared_ptr<DownloadReactor> self = std::move(self_);
    if (messages_.complete() && !cancelled_) exchange_->transfers().Taken(request_, messages_.begun_ms());
  }

  Waiter AskAgain() {
    return {weak_, [weak = weak_](const absl::Status& status) {
              const auto self = weak.lock();
              if (self != nullptr) status.ok() ? self->Advance() : self->FinishOnce(ToGrpc(status));
            }};
  }

  void Advance() {
    core::MutexLock lock(mutex_);
    if (writing_ || finished_) return;
    absl::StatusOr<std::optional<grpc::ByteBuffer>> next = messages_.Next([this] { return AskAgain(); });
    if (!next.ok()) return FinishLocked(ToGrpc(next.status()));
    if (!next->has_value()) return;  // will be woken
    if (!messages_.complete()) return Write(std::move(**next));
    finished_ = true;
    outgoing_ = std::move(**next);
    StartWriteAndFinish(&outgoing_, grpc::WriteOptions(), grpc::Status::OK);
  }

  void Write(grpc::ByteBuffer message) {
    writing_ = true;
    outgoing_ = std::move(message);
    meters_->down.Add(static_cast<int64_t>(outgoing_.Length()));
    StartWrite(&outgoing_);
  }

  void FinishOnce(const grpc::Status& status) {
    core::MutexLock lock(mutex_);
    FinishLocked(status);
  }

  void FinishLocked(const grpc::Status& status) {
    if (finished_) return;
    finished_ = true;
    Finish(status);
  }

  RunExchange* const exchange_;
  grpc::ByteBuffer incoming_;
  v1::DownloadRequest request_;
  SiteLimits::Stream counted_;
  core::Mutex mutex_;                   // guards all below
  std::shared_ptr<SiteMeters> meters_;  // nullptr: nothing was requested yet
  DownloadMessages messages_;
  bool writing_ = false;
  bool finished_ = false;
  grpc::ByteBuffer outgoing_;
  std::shared_ptr<DownloadReactor> self_;
  std::weak_ptr<DownloadReactor> weak_;
  std::atomic<bool> cancelled_ = false;  // not under the mutex
};

}  // namespace

CallReactor* NewDownloadReactor(RunExchange* exchange, Gate* gate, Peer peer) {
  auto reactor = std::make_shared<DownloadReactor>(exchange, gate, std::move(peer));
  reactor->Begin(reactor);
  return reactor.get();
}

}  // namespace causeway::server
