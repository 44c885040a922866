// The failure that ends all groups of one origin: on this rank at once, on the others as soon as they learn of it.
//
//   a group fails ──► Fail(status) ──► failure() of all groups here
//                            └──► control.Abort ~~► the other ranks' rounds end ──► their failure()
//
// NCCL gives no reason when another rank is gone, and usually no error either: its kernels wait. Therefore the ranks
// meet on the host in rounds of one byte each, ten times a second, through which a rank that has ended or failed is
// noticed while the device waits. The rounds end, on all ranks, with the first rank that ends its part.
#pragma once

#include <memory>

#include "core/mutex.h"
#include "core/thread.h"
#include "worker/ranks/collectives.h"

namespace causeway::worker {

class SharedFate {
 public:
  // `control` is on the host and for this alone. A rank that does not join a round within `timeout` has failed.
  SharedFate(std::unique_ptr<Collectives> control, Collectives::Timeout timeout);
  ~SharedFate();

  // Keeps the first failure. Thread-safe.
  void Fail(const absl::Status& failure);
  absl::Status failure() const;
  void AwaitFailure(Collectives::Timeout timeout);  // returns after `timeout` at the latest

 private:
  void Watch();
  bool Keep(const absl::Status& failure);  // false: there was one already

  const std::unique_ptr<Collectives> control_;
  const Collectives::Timeout timeout_;
  mutable core::Mutex mutex_;
  core::Condition changed_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  core::Thread thread_;  // last: it calls us
};

}  // namespace causeway::worker
