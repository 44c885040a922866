// An upload or a download from the first attempt to its end: what was asked for, how far it is, and what to do when an
// attempt breaks (start the next one where this one stopped).
//
//   attempt   one stream a stripe, each on a connection of its own; over when all of them are
//   retry     of what is missing, a backoff after the first of them broke: where the others took longer, at once
//
// Launch is called by the link while no attempt is running; everything else is thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "causeway/v1/coordinator.pb.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "transport/bulk_streams.h"
#include "transport/coordinator_link.h"
#include "transport/link_meter.h"

namespace causeway::transport {

// What an attempt goes over. All outlive it.
struct Lanes {
  Wire* wire = nullptr;
  int channels = 1;        // of the wire; a transfer of few chunks takes as few of them
  Pacer* pacer = nullptr;  // of the transfer's direction
  LinkMeter* meter = nullptr;
};

class Transfer {
 public:
  virtual ~Transfer() = default;

  // Starts an attempt; `generation`, if known: of the model that the site was welcomed to. `written`, for uploads: all
  // is with gRPC, the next one may begin; called once at most. `ended(finished)` is called once when the attempt is
  // over; if it is not finished, Launch it again later.
  virtual void Launch(const Lanes& lanes, const v1::Context& context, std::optional<uint64_t> generation,
                      std::function<void()> written, std::function<void(bool finished)> ended) = 0;
  virtual void Finish(const absl::Status& status) = 0;  // tells the owner, when no attempt is running
  void Cancel();                                        // ends the running attempt

  virtual bool is_upload() const = 0;
  // Whether it moves what the earlier one was to move: a fragment's initial parameters, or a fragment's anchor. It
  // takes that one's place before it is launched.
  virtual bool Replaces(const Transfer& earlier) const = 0;
  virtual void TakePlaceOfEarlier() {}

  // Of an attempt that is over and did not finish.
  int attempts() const { return attempts_; }
  core::Clock::TimePoint broke_at() const { return broke_at_.value(); }

 protected:
  void BeginAttempt(int streams, LinkMeter* meter, std::function<void(bool finished)> ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Add(const std::shared_ptr<BulkStream>& stream);
  void StreamEnded(const grpc::Status& status);

  // When the attempt's last stream is over: what it says about the link, and whether the transfer has finished.
  virtual void Measure() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;
  virtual bool TakeOutcome() = 0;

  core::Mutex mutex_;
  LinkMeter* meter_ ABSL_GUARDED_BY(mutex_) = nullptr;
  int attempts_ = 0;  // in a row that brought nothing new; under the lock while streams run
  // Why the attempt broke; of several reasons one that asking again does not mend. Read when no stream is running.
  grpc::Status status_;

 private:
  // Of the attempt's first stream that broke; what breaks without an error does when all are over.
  void Break();

  int running_ ABSL_GUARDED_BY(mutex_) = 0;                                 // streams
  std::vector<std::weak_ptr<BulkStream>> streams_ ABSL_GUARDED_BY(mutex_);  // some may be over
  std::function<void(bool)> ended_ ABSL_GUARDED_BY(mutex_);
  std::optional<core::Clock::TimePoint> broke_at_;
};

std::shared_ptr<Transfer> MakeUpload(UploadRequest request);
std::shared_ptr<Transfer> MakeDownload(DownloadRequest request);

}  // namespace causeway::transport
