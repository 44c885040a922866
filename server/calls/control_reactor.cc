#include <deque>
#include <optional>

#include "absl/strings/str_cat.h"
#include "core/limits.h"
#include "server/calls/reactors.h"
#include "transport/read_message.h"

namespace causeway::server {
namespace {

// A site's control stream. The coordinator holds it as SitePeer beyond the call's end; the call holds it until OnDone.
class ControlReactor final : public GatedCall, public SitePeer {
 public:
  ControlReactor(RunExchange* exchange, Gate* gate, Peer peer)
      : GatedCall(gate, std::move(peer)), exchange_(exchange) {}

  void End(const absl::Status& status) override {
    core::MutexLock lock(mutex_);
    closing_ = true;
    FinishOnce(ToGrpc(status));
  }

  // ---- SitePeer ----

  void Send(const v1::CoordinatorMessage& message) override {
    core::MutexLock lock(mutex_);
    if (closing_) return;
    outgoing_.push_back(transport::ToBytes(message));
    if (outgoing_.size() > core::kMaxQueuedControlMessages) {
      closing_ = true;  // it does not read; it will come back on a new stream
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
  void OnArrived() override {
    if (const absl::Status allowed = gate_->ControlStream(peer_); !allowed.ok()) return EndFlood(allowed);
    GatedCall::OnArrived();
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      Close();
      return;
    }
    if (!site_) Spoke();
    const auto bytes = static_cast<int64_t>(incoming_.Length());
    if (const absl::Status allowed = gate_->ControlBytes(peer_, bytes); !allowed.ok()) return EndFlood(allowed);
    v1::SiteMessage message;
    if (const absl::Status read = transport::ReadMessage(incoming_, &message); !read.ok()) return Refuse(read);
    if (const absl::Status allowed = Check(message, bytes); !allowed.ok()) return EndFlood(allowed);
    switch (message.kind_case()) {
      case v1::SiteMessage::kJoin: exchange_->Join(Self(), message.join()); break;
      case v1::SiteMessage::kReady: exchange_->Handle(input::SiteReady{this}); break;
      case v1::SiteMessage::kProgress: exchange_->Handle(input::Progress{this, message.progress()}); break;
      case v1::SiteMessage::kLeave: exchange_->Handle(input::Leave{this, message.leave()}); break;
      case v1::SiteMessage::kPing: Answer(message.ping()); break;
      case v1::SiteMessage::KIND_NOT_SET: break;  // from a newer site
    }
    if (!exchange_->journal().full()) return ReadOn();
    exchange_->journal().Commit({.durable = [self = Self()] { self->ReadOn(); }});
  }

  void Answer(const v1::Ping& ping) {
    v1::CoordinatorMessage message;
    message.mutable_pong()->set_sent_us(ping.sent_us());
    Send(message);
  }

  // A site beyond the limits of any run would come back with the same Join: it receives a final refusal, and gives up.
  void Refuse(const absl::Status& status) {
    if (site_) return End(status);
    v1::CoordinatorMessage message;
    message.mutable_refused()->set_reason(std::string(status.message()));
    Send(message);
    Close();
  }

  // Checked for every message: a withdrawn token, or a flooding site, ends the stream.
  absl::Status Check(const v1::SiteMessage& message, int64_t bytes) {
    if (message.has_join()) {
      const core::SiteId& site = message.join().context().site();
      if (site_ && *site_ != site) {
        return absl::PermissionDeniedError(absl::StrCat("this stream is of site ", *site_, ", and Join names ", site));
      }
      site_ = site;
    }
    if (!site_) return absl::InvalidArgumentError("expected Join as the first message of a control stream");
    return gate_->ControlMessage(peer_, *site_, bytes, message.has_join());
  }

  // Recorded under the name known by now.
  void EndFlood(const absl::Status& status) {
    if (absl::IsResourceExhausted(status)) {
      const std::optional<Identity> who = gate_->Who(peer_);
      if (site_ || who) exchange_->Handle(input::Flooded{site_ ? *site_ : who->name, std::string(status.message())});
    }
    End(status);
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

  void OnEnded() override { exchange_->Handle(input::Disconnected{this}); }

  std::shared_ptr<ControlReactor> Self() { return {self(), this}; }

  RunExchange* const exchange_;
  std::optional<core::SiteId> site_;  // from the first message; read and written only by OnReadDone
  std::deque<grpc::ByteBuffer> outgoing_ ABSL_GUARDED_BY(mutex_);  // front is being written
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

CallReactor* NewControlReactor(RunExchange* exchange, Gate* gate, Peer peer) {
  return GatedCall::Begin(std::make_shared<ControlReactor>(exchange, gate, std::move(peer)));
}

}  // namespace causeway::server
