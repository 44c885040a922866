// A non-blocking NCCL communicator: each call returns at once, and is polled until NCCL has accepted it.
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
  using GiveUp = std::function<absl::Status()>;  // not OK: the reason to stop waiting

  // Waits until all ranks have joined.
  static absl::StatusOr<std::unique_ptr<NcclCommunicator>> Make(const NcclApi& nccl, const NcclUniqueId& id, int rank,
                                                                int world, GiveUp give_up);
  // All calls must be done, unless Abort was called.
  ~NcclCommunicator();

  // Errors name the failed call by `name`.
  absl::Status Call(absl::string_view name, const std::function<NcclResult(const NcclApi&, NcclComm*)>& call);

  // An error of the operations on the device.
  absl::Status AsyncError(absl::string_view name) const;

  // Ends the operations on the device: their memory belongs to the caller again. No call may follow.
  void Abort();

 private:
  NcclCommunicator(const NcclApi& nccl, GiveUp give_up) : nccl_(nccl), give_up_(std::move(give_up)) {}

  absl::Status Settle(absl::string_view name, NcclResult result) const;
  absl::Status ErrorOf(absl::string_view name, NcclResult result) const;

  const NcclApi& nccl_;
  const GiveUp give_up_;
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
