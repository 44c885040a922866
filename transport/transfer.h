// An upload or a download from the first attempt to its end: what was asked for, how far it is, and what to do when an
// attempt breaks (start the next one where this one stopped).
//
// Launch is called by the link while no attempt is running; everything else is thread-safe.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "causeway/v1/coordinator.grpc.pb.h"
#include "transport/coordinator_link.h"

namespace causeway::transport {

class Transfer {
 public:
  virtual ~Transfer() = default;

  // Starts an attempt. `ended(finished)` is called once when it is over; if it is not finished, Launch it again later.
  virtual void Launch(v1::Coordinator::Stub& stub, const v1::Context& context,
                      std::function<void(bool finished)> ended) = 0;
  virtual void Cancel() = 0;                            // ends the running attempt
  virtual void Finish(const absl::Status& status) = 0;  // tells the owner, when no attempt is running

  int attempts() const { return attempts_; }

 protected:
  int attempts_ = 0;  // in a row that brought nothing new
};

std::shared_ptr<Transfer> MakeUpload(UploadRequest request);
std::shared_ptr<Transfer> MakeDownload(DownloadRequest request);

}  // namespace causeway::transport
