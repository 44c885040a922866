// An upload or a download from the first attempt to its end: the request, its progress, and what to do when an attempt
// breaks (start the next one where this one stopped).
//
//   attempt   several streams, each on its own connection; over when all of them are
//   retry     sends the rest, a backoff after the first stream broke; at once if the others took longer
//
// Launch is called by the link while no attempt is running; everything else is thread-safe.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "causeway/v1/coordinator.pb.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "transport/bulk_streams.h"
#include "transport/connection_watch.h"
#include "transport/coordinator_link.h"
#include "transport/link_meter.h"
#include "transport/shown_proofs.h"

namespace causeway::transport {

// The resources of an attempt. All outlive it.
struct Lanes {
  Wire* wire = nullptr;
  int channels = 1;        // channels of the wire; a transfer takes at most one per chunk
  Pacer* pacer = nullptr;  // the pacer of the transfer's direction
  LinkMeter* meter = nullptr;
  ConnectionWatch* watch = nullptr;
  ShownProofs* proofs = nullptr;
};

class Transfer {
 public:
  virtual ~Transfer() = default;

  // Starts an attempt; `generation`, if known, is that of the model in the site's welcome. `written`, for uploads: gRPC
  // has all bytes, and the next upload may begin; called at most once. `ended(finished)` is called once when the
  // attempt is over; if the transfer is not finished, Launch it again later.
  virtual void Launch(const Lanes& lanes, const v1::Context& context, std::optional<uint64_t> generation,
                      std::function<void()> written, std::function<void(bool finished)> ended) = 0;
  virtual void Finish(const absl::Status& status) = 0;  // notifies the owner; no attempt may be running
  void Cancel();                                        // ends the running attempt
  void CancelOn(const std::vector<int>& connections);   // ends the streams that go over one of these

  virtual bool is_upload() const = 0;
  // Whether it has the same object as the earlier transfer: a fragment's initial parameters, or a fragment's anchor. It
  // then replaces that one before it is launched.
  virtual bool Replaces(const Transfer& earlier) const = 0;
  virtual void TakePlaceOfEarlier() {}
  // Whether it was made for an earlier stay than the site is welcomed to: the coordinator would refuse it for ever.
  virtual bool IsOfEarlierStay(int64_t /*welcomed*/) const { return false; }

  int attempts() const { return attempts_; }  // attempts in a row without progress
  // When the attempt broke. REQUIRES: it is over and did not finish.
  core::Clock::TimePoint broke_at() const { return broke_at_.value(); }
  // "upload of fragment 2 was ended 5 times in a row: …"
  std::string WhyItBroke() const;

 protected:
  void BeginAttempt(int streams, const Lanes& lanes, std::function<void(bool finished)> ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Add(const std::shared_ptr<BulkStream>& stream);
  void StreamEnded(const grpc::Status& status);

  // Called when the attempt's last stream is over: to measure the link, and to find out whether the transfer has
  // finished.
  virtual void Measure() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;
  virtual bool TakeOutcome() = 0;
  virtual std::string What() const = 0;  // "upload of fragment 2"

  core::Mutex mutex_;
  LinkMeter* meter_ ABSL_GUARDED_BY(mutex_) = nullptr;
  ShownProofs* proofs_ = nullptr;  // thread-safe
  std::atomic<int> attempts_ = 0;  // attempts in a row without progress
  // Why the attempt broke; if there are several reasons, one that a retry does not cure. Read when no stream is
  // running.
  grpc::Status status_;

 private:
  // Notes when the attempt's first stream broke; an attempt that breaks without an error does so when all streams are
  // over.
  void Break();

  int running_ ABSL_GUARDED_BY(mutex_) = 0;                                 // number of streams that run
  std::vector<std::weak_ptr<BulkStream>> streams_ ABSL_GUARDED_BY(mutex_);  // some may be over
  std::function<void(bool)> ended_ ABSL_GUARDED_BY(mutex_);
  std::optional<core::Clock::TimePoint> broke_at_;
};

std::shared_ptr<Transfer> MakeUpload(UploadRequest request);
std::shared_ptr<Transfer> MakeDownload(DownloadRequest request);

}  // namespace causeway::transport
