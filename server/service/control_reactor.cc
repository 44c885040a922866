#include <deque>
#include <optional>

#include "absl/strings/str_cat.h"
#include "core/limits.h"
#include "server/service/gated_call.h"
#include "server/service/reactors.h"

namespace causeway::server {
namespace {

// A site's control stream. The coordinator holds it as SitePeer beyond the call's end; the call holds it until OnDone.
class ControlReactor final : public grpc::ServerBidiReactor<v1::SiteMessage, v1::CoordinatorMessage>,
                             public SitePeer,
                             public GatedCall {
 public:
  ControlReactor(Coordinator* coordinator, Gate* gate, Peer peer)
      : GatedCall(gate, std::move(peer)), coordinator_(coordinator) {}

  void Begin(std::shared_ptr<ControlReactor> self) {
    self_ = std::move(self);
    if (Arrive(self_)) StartRead(&incoming_);
  }

  void End(const absl::Status& status) override {
    core::MutexLock lock(mutex_);
    closing_ = true;
    FinishOnce(ToGrpc(status));
  }

  // ---- SitePeer ----

  void Send(const v1::CoordinatorMessage& message) override {
    core::MutexLock lock(mutex_);
    if (closing_) return;
    outgoing_.push_back(message);
    if (outgoing_.size() > core::kMaxQueuedControlMessages) {
      closing_ = true;  // it does not read; it will be back on a new stream
      FinishOnce(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "the site does not read its control stream"));
    } else if (outgoing_.size() == 1) {
      StartWrite(&outgoing_.front());
    }
  }

  void Close() override {
    core::MutexLock lock(mutex_);
    closing_ = true;
    if (outgoing_.empty()) FinishOnce(grpc::Status::OK);
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) {
      Close();
      return;
    }
    if (!site_) Spoke();
    if (const absl::Status allowed = Check(); !allowed.ok()) return End(allowed);
    switch (incoming_.kind_case()) {
      case v1::SiteMessage::kJoin: coordinator_->Join(self_, incoming_.join()); break;
      case v1::SiteMessage::kReady: coordinator_->Ready(this); break;
      case v1::SiteMessage::kProgress: coordinator_->Progress(this, incoming_.progress()); break;
      case v1::SiteMessage::kLeave: coordinator_->Leave(this, incoming_.leave()); break;
      case v1::SiteMessage::kPing: Answer(incoming_.ping()); break;
      case v1::SiteMessage::KIND_NOT_SET: break;  // from a newer site
    }
    core::MutexLock lock(mutex_);
    if (!finished_) StartRead(&incoming_);
  }

  void Answer(const v1::Ping& ping) {
    v1::CoordinatorMessage message;
    message.mutable_pong()->set_sent_us(ping.sent_us());
    Send(message);
  }

  // Asks for every message: a token that is taken back, or a site that floods, ends the stream.
  absl::Status Check() {
    if (incoming_.has_join()) {
      const core::SiteId& site = incoming_.join().context().site();
      if (site_ && *site_ != site) {
        return absl::PermissionDeniedError(absl::StrCat("this stream is of site ", *site_, ", and Join names ", site));
      }
      site_ = site;
    }
    if (!site_) return absl::InvalidArgumentError("expected Join as the first message of a control stream");
    return gate_->ControlMessage(peer_, *site_, static_cast<int64_t>(incoming_.ByteSizeLong()), incoming_.has_join());
  }

  void OnWriteDone(bool ok) override {
    core::MutexLock lock(mutex_);
    outgoing_.pop_front();
    if (!ok) closing_ = true;
    if (ok && !finished_ && !outgoing_.empty()) {
      StartWrite(&outgoing_.front());
    } else if (closing_) {
      FinishOnce(grpc::Status::OK);
    }
  }

  void OnCancel() override { Close(); }

  void OnDone() override {
    const std::shared_ptr<ControlReactor> self = std::move(self_);
    coordinator_->Disconnected(this);
  }

  void FinishOnce(const grpc::Status& status) {
    if (finished_) return;
    finished_ = true;
    Finish(status);
  }

  Coordinator* const coordinator_;
  std::optional<core::SiteId> site_;  // of the first message; read and written by OnReadDone alone
  v1::SiteMessage incoming_;
  core::Mutex mutex_;
  std::deque<v1::CoordinatorMessage> outgoing_ ABSL_GUARDED_BY(mutex_);  // front is being written
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ = false;  // with mutex_ held
  std::shared_ptr<ControlReactor> self_;
};

}  // namespace

grpc::ServerBidiReactor<v1::SiteMessage, v1::CoordinatorMessage>* NewControlReactor(Coordinator* coordinator,
                                                                                    Gate* gate, Peer peer) {
  auto reactor = std::make_shared<ControlReactor>(coordinator, gate, std::move(peer));
  reactor->Begin(reactor);
  return reactor.get();
}

}  // namespace causeway::server
