// An upload or a download from the first attempt to its end: what was asked for, how far it is, and what to do when an
// attempt breaks (start the next one where this one stopped).
//
//   attempt   one stream a stripe, each on a connection of its own; over when all of them are
//   retry     of what is missing, a backoff after the first of them broke: where the others took longer, at once
//
// Launch is called by the link while no attempt is running; everything else is thread-safe.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "causeway/v1/coordinator.pb.h"
#include "transport/bulk_streams.h"
#include "transport/coordinator_link.h"
#include "transport/link_meter.h"

namespace causeway::transport {

// What an attempt goes over. All outlive it.
struct Lanes {
  std::vector<grpc::GenericStub*> stubs;  // one for each connection; a transfer of few chunks takes as few of them
  Pacer* pacer = nullptr;                 // of the transfer's direction
  LinkMeter* meter = nullptr;
};

class Transfer {
 public:
  virtual ~Transfer() = default;

  // Starts an attempt. `written`, for uploads: all is with gRPC, the next one may begin; called once at most.
  // `ended(finished)` is called once when the attempt is over; if it is not finished, Launch it again later.
  virtual void Launch(const Lanes& lanes, const v1::Context& context, std::function<void()> written,
                      std::function<void(bool finished)> ended) = 0;
  virtual void Cancel() = 0;                            // ends the running attempt
  virtual void Finish(const absl::Status& status) = 0;  // tells the owner, when no attempt is running

  virtual bool is_upload() const = 0;

  // Of an attempt that is over and did not finish.
  int attempts() const { return attempts_; }
  std::chrono::steady_clock::time_point broke_at() const { return broke_at_.value(); }

 protected:
  // Of the attempt's first stream that broke; what breaks without an error does when all are over.
  void Break() {
    if (!broke_at_) broke_at_ = std::chrono::steady_clock::now();
  }

  int attempts_ = 0;  // in a row that brought nothing new
  std::optional<std::chrono::steady_clock::time_point> broke_at_;
};

std::shared_ptr<Transfer> MakeUpload(UploadRequest request);
std::shared_ptr<Transfer> MakeDownload(DownloadRequest request);

}  // namespace causeway::transport
