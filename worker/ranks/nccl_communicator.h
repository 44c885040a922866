// A non-blocking NCCL communicator: each call returns at once, and is polled until NCCL has accepted it.
//
//   Call ──► ncclAllReduce … ──► ncclInProgress? ──► ncclCommGetAsyncError, every 20 µs to 1 ms, until it is another
//                                                    result, or the group has failed
//   its end ──► ncclCommFinalize, polled ──► ncclCommDestroy; an error, or too long: ncclCommAbort
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
  using GiveUp = std::function<absl::Status()>;  // not OK: the reason to stop waiting

  // Waits until all ranks have joined. `most_finalize`: after which its end no longer waits for the other ranks'.
  static absl::StatusOr<std::unique_ptr<NcclCommunicator>> Make(const NcclApi& nccl, const NcclUniqueId& id, int rank,
                                                                int world, GiveUp give_up,
                                                                std::chrono::nanoseconds most_finalize);
  // All calls must be done, unless Abort was called. Finalizes and destroys it, or aborts it if that fails or takes too
  // long.
  ~NcclCommunicator();

  // Errors name the failed call by `name`.
  absl::Status Call(absl::string_view name, const std::function<NcclResult(const NcclApi&, NcclComm*)>& call);

  // An error of the operations on the device.
  absl::Status AsyncError(absl::string_view name) const;

  // Ends the operations on the device: their memory belongs to the caller again. No call may follow.
  void Abort();

 private:
  NcclCommunicator(const NcclApi& nccl, GiveUp give_up, std::chrono::nanoseconds most_finalize)
      : nccl_(nccl), give_up_(std::move(give_up)), most_finalize_(most_finalize) {}

  absl::Status Settle(absl::string_view name, NcclResult result, const GiveUp& give_up) const;
  absl::Status Finalize();
  absl::Status ErrorOf(absl::string_view name, NcclResult result) const;

  const NcclApi& nccl_;
  const GiveUp give_up_;
  const std::chrono::nanoseconds most_finalize_;
  NcclComm* comm_ = nullptr;
};

// Polls often at first, for short operations, then less and less often, for long ones.
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
