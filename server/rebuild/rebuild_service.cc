#include "server/rebuild/rebuild_service.h"

#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "causeway/v1/coordinator.grpc.pb.h"
#include "server/service/gated_call.h"
#include "server/service/reactors.h"
#include "transport/bulk_message.h"

namespace causeway::server {
namespace {

constexpr int64_t kAskAgainMs = 1'000;
constexpr const char* kRebuilds = "the coordinator rebuilds its state from the sites'";

using Streams = v1::Coordinator::WithCallbackMethod_Control<
    v1::Coordinator::WithCallbackMethod_Follow<v1::Coordinator::WithRawCallbackMethod_Show<v1::Coordinator::Service>>>;
using RebuildBase = v1::Coordinator::WithGenericMethod_Describe<
    v1::Coordinator::WithGenericMethod_GetStatus<v1::Coordinator::WithGenericMethod_DrainSite<
        v1::Coordinator::WithGenericMethod_ChangeRun<v1::Coordinator::WithGenericMethod_GetHistory<
            v1::Coordinator::WithGenericMethod_Download<v1::Coordinator::WithGenericMethod_Upload<Streams>>>>>>>;

// To a shard that would follow: later.
class FollowCall final : public grpc::ServerBidiReactor<v1::FollowMessage, v1::MembershipUpdate> {
 public:
  FollowCall() { Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, kRebuilds)); }

 private:
  void OnDone() override { delete this; }
};

// Answers the Join, and ends.
class ControlCall final : public grpc::ServerBidiReactor<v1::SiteMessage, v1::CoordinatorMessage>, public GatedCall {
 public:
  ControlCall(Gate* gate, Peer peer) : GatedCall(gate, std::move(peer)) {}

  void Begin(std::shared_ptr<ControlCall> self) {
    self_ = std::move(self);
    if (Arrive(self_)) StartRead(&incoming_);
  }

  void End(const absl::Status& status) override {
    core::MutexLock lock(mutex_);
    if (!std::exchange(finished_, true)) Finish(ToGrpc(status));
  }

 private:
  void OnReadDone(bool ok) override {
    Spoke();
    absl::Status status = ok && incoming_.has_join() ? absl::OkStatus() : absl::InvalidArgumentError("expected Join");
    if (status.ok())
      status = gate_->ControlMessage(peer_, incoming_.join().context().site(),
                                     static_cast<int64_t>(incoming_.ByteSizeLong()), /*has_manifest=*/true);
    if (!status.ok()) return End(status);
    v1::Refused& refused = *answer_.mutable_refused();
    refused.set_reason(kRebuilds);
    refused.set_retry_after_ms(kAskAgainMs);
    refused.set_wants_state(!incoming_.join().context().lineage().empty());
    core::MutexLock lock(mutex_);
    if (!std::exchange(finished_, true)) StartWriteAndFinish(&answer_, grpc::WriteOptions(), grpc::Status::OK);
  }
  void OnDone() override { const std::shared_ptr<ControlCall> self = std::move(self_); }

  v1::SiteMessage incoming_;
  v1::CoordinatorMessage answer_;
  core::Mutex mutex_;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<ControlCall> self_;
};

class ShowCall final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                       public ShowPeer,
                       public GatedCall {
 public:
  ShowCall(Rebuild* rebuild, Gate* gate, Peer peer) : GatedCall(gate, std::move(peer)), rebuild_(rebuild) {}

  void Begin(std::shared_ptr<ShowCall> self) {
    self_ = std::move(self);
    if (Arrive(self_)) StartRead(&incoming_);
  }

  void Ask(core::FragmentId fragment) override {
    v1::ShowReply reply;
    reply.set_fragment(fragment);
    core::MutexLock lock(mutex_);
    asked_.push_back(transport::ToBytes(reply));
    if (asked_.size() == 1 && !finished_) StartWrite(&asked_.front());
  }

  void End(const absl::Status& status) override {
    core::MutexLock lock(mutex_);
    if (!std::exchange(finished_, true)) Finish(ToGrpc(status));
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return End(absl::AbortedError("the site ended it"));
    const absl::Status status = Take();
    if (!status.ok()) return End(status);
    core::MutexLock lock(mutex_);
    if (!finished_) StartRead(&incoming_);
  }

  absl::Status Take() {
    if (begun_) {
      const std::optional<std::string> piece = transport::TakeChunk(incoming_);
      incoming_.Clear();
      return piece ? rebuild_->TakePiece(this, *piece) : absl::InvalidArgumentError("expected a piece of a fragment");
    }
    Spoke();
    v1::ShowMessage message;
    if (!transport::FromBytes(incoming_, &message) || !message.has_holdings()) {
      return absl::InvalidArgumentError("expected Holdings first");
    }
    begun_ = true;
    const absl::Status allowed =
        gate_->ControlMessage(peer_, message.holdings().context().site(), static_cast<int64_t>(message.ByteSizeLong()),
                              /*has_manifest=*/true);
    return allowed.ok() ? rebuild_->BeginShow(self_, message.holdings()) : allowed;
  }

  void OnWriteDone(bool ok) override {
    core::MutexLock lock(mutex_);
    asked_.pop_front();
    if (ok && !finished_ && !asked_.empty()) StartWrite(&asked_.front());
  }

  void OnCancel() override { End(absl::CancelledError("the site ended it")); }

  void OnDone() override {
    const std::shared_ptr<ShowCall> self = std::move(self_);
    rebuild_->EndShow(this);
  }

  Rebuild* const rebuild_;
  bool begun_ = false;
  grpc::ByteBuffer incoming_;
  core::Mutex mutex_;
  std::deque<grpc::ByteBuffer> asked_ ABSL_GUARDED_BY(mutex_);  // front is being written
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<ShowCall> self_;
};

class RebuildService final : public RebuildBase {
 public:
  RebuildService(Rebuild* rebuild, Gate* gate) : rebuild_(rebuild), gate_(gate) {}

 private:
  grpc::ServerBidiReactor<v1::SiteMessage, v1::CoordinatorMessage>* Control(
      grpc::CallbackServerContext* context) override {
    auto call = std::make_shared<ControlCall>(gate_, PeerOf(*context, "Control"));
    call->Begin(call);
    return call.get();
  }

  grpc::ServerBidiReactor<v1::FollowMessage, v1::MembershipUpdate>* Follow(grpc::CallbackServerContext*) override {
    return new FollowCall();
  }

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Show(grpc::CallbackServerContext* context) override {
    auto call = std::make_shared<ShowCall>(rebuild_, gate_, PeerOf(*context, "Show"));
    call->Begin(call);
    return call.get();
  }

  Rebuild* const rebuild_;
  Gate* const gate_;
};

}  // namespace

Services NewRebuildServices(Rebuild* rebuild, Gate* gate) {
  Services services{std::make_unique<RebuildService>(rebuild, gate), std::make_unique<UnaryService>(gate)};
  services.unary->Add<v1::DescribeRequest, v1::RunDescription>(
      "Describe", [=](const Peer& peer, const v1::DescribeRequest& request, v1::RunDescription&) {
        RETURN_IF_ERROR(gate->Question(peer, request.context().site()));
        return absl::Status(absl::UnavailableError(absl::StrCat(kRebuilds, ": ", rebuild->Progress())));
      });
  return services;
}

}  // namespace causeway::server
