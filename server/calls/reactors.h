// One reactor for each open call, each kind in the file of its name: it turns messages into calls of RunExchange, and
// the answers into writes. A reactor lives from the start of its call to its OnDone, and runs on gRPC's threads.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <memory>
#include <utility>

#include "server/calls/gate.h"
#include "server/run/run_exchange.h"

namespace causeway::server {

// absl and gRPC use the same code numbers.
inline grpc::Status ToGrpc(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

using CallReactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

// The base of every reactor: the gate admits it by the call's headers before it reads. It owns itself until OnDone;
// a holder beyond that finds it finished.
class GatedCall : public CallReactor, public Call {
 public:
  // Arrives, and reads the first message. RETURNS: the reactor.
  static CallReactor* Begin(const std::shared_ptr<GatedCall>& call) {
    call->self_ = call;
    absl::Status status = call->Exists();
    if (status.ok()) status = call->gate_->Arrive(call->peer_, call);
    status.ok() ? call->OnArrived() : call->End(status);
    return call.get();
  }

  void End(const absl::Status& status) override {
    core::MutexLock lock(mutex_);
    FinishOnce(ToGrpc(status));
  }

 protected:
  GatedCall(Gate* gate, Peer peer) : Call(std::move(peer)), gate_(gate) {}

  virtual absl::Status Exists() const { return absl::OkStatus(); }  // else it ends before the gate looks at it
  virtual void OnArrived() { StartRead(&incoming_); }
  virtual void OnEnded() {}  // gRPC knows it no more
  void OnCancel() override { End(absl::CancelledError("cancelled")); }
  void OnDone() final {
    const std::shared_ptr<GatedCall> self = std::move(self_);
    OnEnded();
  }

  void ReadOn() {
    core::MutexLock lock(mutex_);
    if (!finished_) StartRead(&incoming_);
  }
  void FinishOnce(const grpc::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!std::exchange(finished_, true)) Finish(status);
  }
  // The last message.
  void FinishWith(const grpc::ByteBuffer& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!std::exchange(finished_, true)) StartWriteAndFinish(&message, grpc::WriteOptions(), grpc::Status::OK);
  }
  const std::shared_ptr<GatedCall>& self() const { return self_; }

  Gate* const gate_;
  grpc::ByteBuffer incoming_;
  core::Mutex mutex_;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;

 private:
  std::shared_ptr<GatedCall> self_;  // until OnDone
};

CallReactor* NewControlReactor(RunExchange* exchange, Gate* gate, Peer peer);
CallReactor* NewFollowReactor(RunExchange* exchange, Gate* gate, Peer peer);
CallReactor* NewReplicateReactor(RunExchange* exchange, Gate* gate, Peer peer);
CallReactor* NewUploadReactor(RunExchange* exchange, Gate* gate, Peer peer);
CallReactor* NewDownloadReactor(RunExchange* exchange, Gate* gate, Peer peer);

}  // namespace causeway::server
