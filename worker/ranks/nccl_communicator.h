// One communicator of NCCL that does not block: each call returns at once, and is polled until it has been taken.
//
//   Call ──► ncclAllReduce … ──► ncclInProgress? ──► ncclCommGetAsyncError, every 20 µs to 1 ms, until it is another
//                                                    result, or the group has failed
//
// For one thread at a time, with the device current on it.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "worker/ranks/nccl_api.h"

namespace causeway::worker {

class NcclCommunicator {
 public:
  using GiveUp = std::function<absl::Status()>;  // not OK: why to wait no longer

  // Waits until all ranks are there.
  static absl::StatusOr<std::unique_ptr<NcclCommunicator>> Make(const NcclApi& nccl, const NcclUniqueId& id, int rank,
                                                                int world, GiveUp give_up);
  // All that was called must be done, unless Abort was called.
  ~NcclCommunicator();

  // `name` says what failed.
  absl::Status Call(absl::string_view name, const std::function<NcclResult(const NcclApi&, NcclComm*)>& call);

  // An error of what the device is doing.
  absl::Status AsyncError(absl::string_view name) const;

  // Ends what the device is doing: its memory is the caller's again. Nothing may be called after it.
  void Abort();

 private:
  NcclCommunicator(const NcclApi& nccl, GiveUp give_up) : nccl_(nccl), give_up_(std::move(give_up)) {}

  absl::Status Settle(absl::string_view name, NcclResult result) const;
  absl::Status ErrorOf(absl::string_view name, NcclResult result) const;

  const NcclApi& nccl_;
  const GiveUp give_up_;
  NcclComm* comm_ = nullptr;
};

// Polls begin often, for what is short, and end rarely, for what is not.
class PollPause {
 public:
  std::chrono::microseconds Next() {
    const std::chrono::microseconds now = next_;
    next_ = std::min(2 * next_, std::chrono::microseconds(1000));
    return now;
  }
  void Reset() { next_ = kFirst; }

 private:
  static constexpr std::chrono::microseconds kFirst{20};
  std::chrono::microseconds next_ = kFirst;
};

}  // namespace causeway::worker
