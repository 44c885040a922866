#include "transport/control_stream.h"

#include <utility>

#include "core/check.h"

namespace causeway::transport {

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

}  // namespace causeway::transport
