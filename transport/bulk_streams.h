// One attempt at one stream of an upload or a download, as gRPC callback reactors over raw bytes. They conduct the
// call; Transfer decides what to do when it breaks.
//
//   upload     header ─► (missing?) ─► chunks of the stream, one write at a time ─► half-close ─► verdict, or end
//   download   request ─► header ─► chunks, one read at a time ─► end
//
// HTTP/2 provides the flow control: a stream holds one message plus its window, which gRPC fits to the link's
// bandwidth-delay product, so neither side buffers without bound. Each is started by its static Start, lives until the
// call is over, and calls `ended` exactly once, last. Callbacks run on gRPC's threads. Cancel is thread-safe.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "causeway/v1/coordinator.pb.h"
#include "core/mutex.h"
#include "transport/connection_watch.h"
#include "transport/coordinator_link.h"
#include "transport/link_meter.h"
#include "transport/wire.h"

namespace causeway::transport {

// The connection that a stream goes over, and who watches it.
struct Lane {
  int connection = 0;
  ConnectionWatch* watch = nullptr;  // outlives the call; nullptr: it is not watched
};

// The base of both: a call over raw bytes, and waiting for its turn where the site's rate is limited.
class BulkStream : public BulkCall {
 public:
  void Cancel();
  int connection() const { return lane_.connection; }

 protected:
  BulkStream(Wire& wire, const Lane& lane, Pacer& pacer);

  static int64_t NowUs();
  void Heard(bool chunk);  // a message has come

  // Runs `next` when `bytes` may be sent: at once, or from a timer that keeps the call open meanwhile. A cancelled
  // stream does not wait.
  void Pace(int64_t bytes, std::function<void()> next);

  Wire& wire_;  // outlives the call
  const Lane lane_;
  grpc::ClientContext context_;
  std::unique_ptr<ConnectionWatch::Stream> watched_;  // nullptr: the stream is not watched

 private:
  Pacer& pacer_;
  core::Mutex mutex_;
  std::unique_ptr<Wire::Timer> timer_ ABSL_GUARDED_BY(mutex_);  // a new one for each wait: a firing timer is in use
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

class UploadStream final : public BulkStream {
 public:
  struct Events {
    std::function<void(const v1::ChunkList&)>
        missing;                    // chunks that this stream has to send; called at the start, unless all are sent
    std::function<void()> written;  // gRPC has all chunks: the next upload may begin. Not called if the stream breaks
    std::function<void(const grpc::Status&, const std::optional<v1::Verdict>&)> ended;
  };

  static std::shared_ptr<UploadStream> Start(Wire& wire, const Lane& lane, const v1::UploadHeader& header,
                                             Chunks chunks, Pacer& pacer, Events events);

 private:
  UploadStream(Wire& wire, const Lane& lane, const v1::UploadHeader& header, Chunks chunks, Pacer& pacer,
               Events events);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;
  bool TakeReply();  // false: the reply is unusable
  void Write();      // writes outgoing_
  void OnReadyToWrite();
  void WriteNext();

  const Chunks chunks_;
  const bool sends_all_;
  const Events events_;
  grpc::ByteBuffer outgoing_, incoming_;
  std::deque<int> missing_;          // chunks still to send
  bool header_written_ = false;      // used by the writing callbacks
  bool header_answered_ = false;     // used by the reading callbacks
  std::atomic<int> ready_to_write_;  // counts to two: the header is written, and the chunks to send are known
  std::optional<v1::Verdict> verdict_;
  std::shared_ptr<UploadStream> self_;
};

class DownloadStream final : public BulkStream {
 public:
  struct Events {
    std::function<void(std::string chunk)> chunk;
    std::function<void(const v1::DownloadMessage&)> message;  // everything else
    std::function<void(const grpc::Status&)> ended;
  };

  static std::shared_ptr<DownloadStream> Start(Wire& wire, const Lane& lane, const v1::DownloadRequest& request,
                                               Pacer& pacer, Events events);

 private:
  DownloadStream(Wire& wire, const Lane& lane, const v1::DownloadRequest& request, Pacer& pacer, Events events);

  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;
  bool TakeMessage();  // false: the message is unusable

  const Events events_;
  grpc::ByteBuffer outgoing_, incoming_;
  std::shared_ptr<DownloadStream> self_;
};

}  // namespace causeway::transport
