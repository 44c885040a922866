// One attempt at a stripe of an upload or a download, as gRPC callback reactors over raw bytes. They know how a call
// goes, not what to do when it breaks: that is Transfer's.
//
//   upload     header ─► (missing?) ─► chunks of the stripe, one write under way ─► half-close ─► verdict, or end
//   download   request ─► header ─► chunks, one read under way ─► end
//
// HTTP/2's flow control is the credit: a stream holds one message and what its window allows, which gRPC fits to the
// link's bandwidth-delay product, so neither side buffers without bound. Each is started by its static Start, lives
// until the call is over, and calls `ended` exactly once, last. Callbacks run on gRPC's threads. Cancel is thread-safe.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "causeway/v1/coordinator.pb.h"
#include "core/mutex.h"
#include "transport/coordinator_link.h"
#include "transport/pacer.h"
#include "transport/wire.h"

namespace causeway::transport {

// Common to both: a call over raw bytes, and waiting for its turn where the site's rate is held.
class BulkStream : public BulkCall {
 public:
  void Cancel();

 protected:
  BulkStream(Wire& wire, Pacer& pacer) : wire_(wire), pacer_(pacer) {}

  // Runs `next` when so many bytes may go: at once, or from a timer that keeps the call open meanwhile. A stream that
  // is cancelled has nothing to wait for.
  void Pace(int64_t bytes, std::function<void()> next);

  Wire& wire_;  // outlives the call
  grpc::ClientContext context_;

 private:
  Pacer& pacer_;
  core::Mutex mutex_;
  std::unique_ptr<Wire::Timer> timer_ ABSL_GUARDED_BY(mutex_);  // a new one for each wait: one that fires is in use
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

class UploadStream final : public BulkStream {
 public:
  struct Events {
    std::function<void(const v1::ChunkList&)> missing;  // of its stripe, at the begin; not where all is sent
    std::function<void()> written;  // all chunks are with gRPC: the next upload may begin. Not called if it breaks
    std::function<void(const grpc::Status&, const std::optional<v1::Verdict>&)> ended;
  };

  static std::shared_ptr<UploadStream> Start(Wire& wire, int channel, const v1::UploadHeader& header, Chunks chunks,
                                             Pacer& pacer, Events events);

 private:
  UploadStream(Wire& wire, const v1::UploadHeader& header, Chunks chunks, Pacer& pacer, Events events);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;
  bool TakeReply();  // false: of no use
  void OnReadyToWrite();
  void WriteNext();

  const Chunks chunks_;
  const bool sends_all_;
  const Events events_;
  grpc::ByteBuffer outgoing_, incoming_;
  std::deque<int> missing_;          // chunks still to send
  bool header_written_ = false;      // of the writing callbacks
  bool header_answered_ = false;     // of the reading callbacks
  std::atomic<int> ready_to_write_;  // of two: the header is written, and it is known what to send
  std::optional<v1::Verdict> verdict_;
  std::shared_ptr<UploadStream> self_;
};

class DownloadStream final : public BulkStream {
 public:
  struct Events {
    std::function<void(std::string chunk)> chunk;
    std::function<void(const v1::DownloadMessage&)> message;  // all else
    std::function<void(const grpc::Status&)> ended;
  };

  static std::shared_ptr<DownloadStream> Start(Wire& wire, int channel, const v1::DownloadRequest& request,
                                               Pacer& pacer, Events events);

 private:
  DownloadStream(Wire& wire, const v1::DownloadRequest& request, Pacer& pacer, Events events);

  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;
  bool TakeMessage();  // false: of no use

  const Events events_;
  grpc::ByteBuffer outgoing_, incoming_;
  std::shared_ptr<DownloadStream> self_;
};

}  // namespace causeway::transport
