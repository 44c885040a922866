// A site's control stream, as a gRPC callback reactor. It conducts the call; GrpcLink decides what to do when it
// breaks.
//
// Started by its static Start, it lives until the call is over, and calls `ended` exactly once, last. Callbacks run on
// gRPC's threads. Send and Cancel are thread-safe.
#pragma once

#include <deque>
#include <functional>
#include <memory>

#include "core/mutex.h"
#include "transport/wire.h"

namespace causeway::transport {

class ControlStream final : public ControlCall {
 public:
  using OnMessage = std::function<void(const v1::CoordinatorMessage&)>;
  using OnEnded = std::function<void(const grpc::Status&)>;

  static std::shared_ptr<ControlStream> Start(Wire& wire, v1::Join join, OnMessage on_message, OnEnded on_ended);
  void Send(v1::SiteMessage message);
  void Cancel() { wire_.Cancel(context_); }

 private:
  explicit ControlStream(Wire& wire) : wire_(wire) {}

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  Wire& wire_;  // outlives the call
  grpc::ClientContext context_;
  OnMessage on_message_;
  OnEnded on_ended_;
  v1::CoordinatorMessage incoming_;
  core::Mutex mutex_;
  std::deque<v1::SiteMessage> outgoing_ ABSL_GUARDED_BY(mutex_);  // front is being written
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<ControlStream> self_;  // until OnDone
};

}  // namespace causeway::transport
