#include "transport/client_streams.h"

#include <utility>

namespace causeway::transport {

// ---- Control ----

std::shared_ptr<ControlStream> ControlStream::Start(v1::Coordinator::Stub& stub, v1::Join join, OnMessage on_message,
                                                    OnEnded on_ended) {
  auto stream = std::make_shared<ControlStream>();
  stream->self_ = stream;
  stream->on_message_ = std::move(on_message);
  stream->on_ended_ = std::move(on_ended);
  stub.async()->Control(&stream->context_, stream.get());
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
    on_message_(incoming_);
    StartRead(&incoming_);
    return;
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
  on_ended_(status);
}

// ---- Upload ----

std::shared_ptr<UploadStream> UploadStream::Start(v1::Coordinator::Stub& stub, v1::UploadHeader header,
                                                  std::shared_ptr<const std::vector<std::string>> chunks,
                                                  OnEnded on_ended) {
  auto stream = std::make_shared<UploadStream>();
  stream->self_ = stream;
  stream->chunks_ = std::move(chunks);
  stream->on_ended_ = std::move(on_ended);
  *stream->outgoing_.mutable_header() = std::move(header);
  stub.async()->Upload(&stream->context_, stream.get());
  // Chunks are written from OnReadDone and OnWriteDone alone; the hold keeps the call open between them.
  stream->AddHold();
  stream->StartWrite(&stream->outgoing_);
  stream->StartRead(&stream->incoming_);
  stream->StartCall();
  return stream;
}

void UploadStream::WriteNext() {
  if (missing_.empty()) {
    StartWritesDone();
    return;
  }
  outgoing_.set_chunk((*chunks_)[missing_.front()]);
  missing_.pop_front();
  StartWrite(&outgoing_);
}

// The answer to the header may be here before we are told that the header is written; chunks go out after both.
void UploadStream::OnReadyToWrite() {
  if (++ready_to_write_ == 2) WriteNext();
}

void UploadStream::OnReadDone(bool ok) {
  if (!ok) {
    RemoveHold();
    return;
  }
  if (incoming_.has_verdict()) verdict_ = incoming_.verdict();
  const bool answers_header = incoming_.has_missing() && missing_.empty();
  if (answers_header) {
    for (int index : incoming_.missing().chunks()) {
      if (index >= 0 && static_cast<size_t>(index) < chunks_->size()) missing_.push_back(index);
    }
  }
  StartRead(&incoming_);
  if (answers_header) OnReadyToWrite();
}

void UploadStream::OnWriteDone(bool ok) {
  if (!ok) return;
  if (outgoing_.has_header()) {
    OnReadyToWrite();
  } else {
    WriteNext();
  }
}

void UploadStream::OnDone(const grpc::Status& status) {
  const std::shared_ptr<UploadStream> self = std::move(self_);
  on_ended_(status, verdict_);
}

// ---- Download ----

std::shared_ptr<DownloadStream> DownloadStream::Start(v1::Coordinator::Stub& stub, v1::DownloadRequest request,
                                                      OnMessage on_message, OnEnded on_ended) {
  auto stream = std::make_shared<DownloadStream>();
  stream->self_ = stream;
  stream->request_ = std::move(request);
  stream->on_message_ = std::move(on_message);
  stream->on_ended_ = std::move(on_ended);
  stub.async()->Download(&stream->context_, &stream->request_, stream.get());
  stream->StartRead(&stream->incoming_);
  stream->StartCall();
  return stream;
}

void DownloadStream::OnReadDone(bool ok) {
  if (!ok) return;
  on_message_(incoming_);
  StartRead(&incoming_);
}

void DownloadStream::OnDone(const grpc::Status& status) {
  const std::shared_ptr<DownloadStream> self = std::move(self_);
  on_ended_(status);
}

}  // namespace causeway::transport
