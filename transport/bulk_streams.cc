#include "transport/bulk_streams.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "core/check.h"
#include "core/clock.h"
#include "transport/bulk_message.h"

namespace causeway::transport {
namespace {

constexpr int64_t kFirst = 1;  // message of a stream: its header, or the request
constexpr char kUpload[] = "/causeway.v1.Coordinator/Upload";
constexpr char kDownload[] = "/causeway.v1.Coordinator/Download";

}  // namespace

BulkStream::BulkStream(Wire& wire, const Lane& lane, Pacer& pacer)
    : wire_(wire),
      lane_(lane),
      watched_(lane.watch == nullptr ? nullptr : lane.watch->Open(lane.connection, NowUs())),
      pacer_(pacer) {}

int64_t BulkStream::NowUs() { return core::SystemClock().NowUs(); }

void BulkStream::Cancel() {
  wire_.Cancel(context_);
  core::MutexLock lock(mutex_);
  cancelled_ = true;
  if (timer_ != nullptr) timer_->Cancel();
}

void BulkStream::Heard(bool chunk) {
  if (watched_ == nullptr) return;
  watched_->Heard(chunk, NowUs());
  watched_->Arrived(kFirst, NowUs());
}

void BulkStream::Pace(int64_t bytes, std::function<void()> next) {
  const int64_t now_us = NowUs();
  const int64_t at_us = pacer_.Reserve(bytes, now_us);
  if (at_us <= now_us) return next();
  if (watched_ != nullptr) watched_->Pauses(at_us);
  {
    core::MutexLock lock(mutex_);
    if (!cancelled_) {
      AddHold();
      timer_ = wire_.After(std::chrono::microseconds(at_us - now_us), [this, next = std::move(next)] {
        // Also runs after a cancellation: the operation then fails, as do the stream's others.
        if (!core::Guarded(next)) wire_.Cancel(context_);
        RemoveHold();
      });
      return;
    }
  }
  next();
}

// ---- Upload ----

std::shared_ptr<UploadStream> UploadStream::Start(Wire& wire, const Lane& lane, const v1::UploadHeader& header,
                                                  Chunks chunks, Pacer& pacer, Events events) {
  std::shared_ptr<UploadStream> stream(
      new UploadStream(wire, lane, header, std::move(chunks), pacer, std::move(events)));
  stream->self_ = stream;
  wire.Prepare(lane.connection, kUpload, stream->context_, *stream);
  // Chunks are written only from OnReadDone and OnWriteDone; the hold keeps the call open between them.
  stream->AddHold();
  stream->Write();
  stream->StartRead(&stream->incoming_);
  stream->StartCall();
  return stream;
}

UploadStream::UploadStream(Wire& wire, const Lane& lane, const v1::UploadHeader& header, Chunks chunks, Pacer& pacer,
                           Events events)
    : BulkStream(wire, lane, pacer),
      chunks_(std::move(chunks)),
      sends_all_(header.sends_all()),
      events_(std::move(events)),
      ready_to_write_(sends_all_ ? 1 : 0) {
  v1::UploadMessage first;
  *first.mutable_header() = header;
  outgoing_ = ToBytes(first);
  if (!sends_all_) return;
  const int step = std::max(1, header.num_stripes());
  for (size_t i = header.stripe(); i < chunks_->size(); i += step) missing_.push_back(static_cast<int>(i));
}

void UploadStream::WriteNext() {
  if (missing_.empty()) {
    events_.written();
    StartWritesDone();
    return;
  }
  const core::Bytes& chunk = (*chunks_)[missing_.front()];
  missing_.pop_front();
  outgoing_ = ChunkMessage(chunk);
  Pace(static_cast<int64_t>(chunk.size()), [this] { Write(); });
}

void UploadStream::Write() {
  if (watched_ != nullptr) watched_->Sends(NowUs());
  StartWrite(&outgoing_);
}

// The answer to the header may arrive before the callback for its write; chunks go out after both.
void UploadStream::OnReadyToWrite() {
  if (++ready_to_write_ == 2) WriteNext();
}

void UploadStream::OnReadDone(bool ok) {
  bool goes_on = false;
  if (!core::Guarded([&] { goes_on = ok && TakeReply(); })) Cancel();
  if (!goes_on) RemoveHold();
}

bool UploadStream::TakeReply() {
  v1::UploadReply reply;
  if (!FromBytes(incoming_, &reply)) return false;
  Heard(/*chunk=*/false);
  if (watched_ != nullptr) watched_->Arrived(kFirst + reply.beat().received(), NowUs());
  if (reply.has_verdict()) verdict_ = reply.verdict();
  const bool answers_header = reply.has_missing() && !sends_all_ && !std::exchange(header_answered_, true);
  if (answers_header) {
    events_.missing(reply.missing());
    for (int index : reply.missing().chunks()) {
      if (index >= 0 && static_cast<size_t>(index) < chunks_->size()) missing_.push_back(index);
    }
  }
  if (answers_header) OnReadyToWrite();
  StartRead(&incoming_);
  return true;
}

void UploadStream::OnWriteDone(bool ok) {
  if (!ok) return;
  if (watched_ != nullptr) watched_->Taken(NowUs());
  const bool first = !std::exchange(header_written_, true);
  if (!core::Guarded([&] { first ? OnReadyToWrite() : WriteNext(); })) Cancel();
}

void UploadStream::OnDone(const grpc::Status& status) {
  const std::shared_ptr<UploadStream> self = std::move(self_);
  if (watched_ != nullptr && status.ok()) watched_->Arrived(std::numeric_limits<int64_t>::max(), NowUs());
  watched_.reset();
  core::Guarded([&] { events_.ended(status, verdict_); });
}

// ---- Download ----

std::shared_ptr<DownloadStream> DownloadStream::Start(Wire& wire, const Lane& lane, const v1::DownloadRequest& request,
                                                      Pacer& pacer, Events events) {
  std::shared_ptr<DownloadStream> stream(new DownloadStream(wire, lane, request, pacer, std::move(events)));
  stream->self_ = stream;
  wire.Prepare(lane.connection, kDownload, stream->context_, *stream);
  if (stream->watched_ != nullptr) stream->watched_->Sends(NowUs());
  stream->StartWriteLast(&stream->outgoing_, grpc::WriteOptions());
  stream->StartRead(&stream->incoming_);
  stream->StartCall();
  return stream;
}

DownloadStream::DownloadStream(Wire& wire, const Lane& lane, const v1::DownloadRequest& request, Pacer& pacer,
                               Events events)
    : BulkStream(wire, lane, pacer), events_(std::move(events)), outgoing_(ToBytes(request)) {}

void DownloadStream::OnReadDone(bool ok) {
  if (!ok) return;
  const auto bytes = static_cast<int64_t>(incoming_.Length());
  bool understood = false;
  if (!core::Guarded([&] { understood = TakeMessage(); }) || !understood)
    return Cancel();  // anything that follows is useless
  Pace(bytes, [this] { StartRead(&incoming_); });
}

bool DownloadStream::TakeMessage() {
  if (std::optional<std::string> chunk = TakeChunk(incoming_)) {
    incoming_.Clear();
    Heard(/*chunk=*/true);
    events_.chunk(*std::move(chunk));
    return true;
  }
  v1::DownloadMessage message;
  if (!FromBytes(incoming_, &message)) return false;
  Heard(/*chunk=*/false);
  if (watched_ != nullptr && !message.has_beat()) {
    watched_->ExpectsChunks(message.has_header() && message.header().num_chunks() > 0);
  }
  if (message.has_beat()) return true;
  events_.message(message);
  return true;
}

void DownloadStream::OnDone(const grpc::Status& status) {
  const std::shared_ptr<DownloadStream> self = std::move(self_);
  watched_.reset();
  core::Guarded([&] { events_.ended(status); });
}

}  // namespace causeway::transport
