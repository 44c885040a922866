// Collectives in device memory, by NCCL.
//
//   AllReduce ──► queue ──thread──► ncclAllReduce ──► event on the stream ──polled──► done, as are all before it
//                                        │
//                          ncclCommGetAsyncError: an error ──► the group has failed, and ncclCommAbort
//
// Values must be in device memory before the call: the stream waits for no other. One thread makes all calls of a
// communicator, so that none overlaps an abort, and a deadline holds however long NCCL takes to connect. NCCL chooses
// the order of sums, which is the same on all ranks. NCCL does not detect ranks whose orders of operations differ: they
// wait until the deadline. Nor does it know for which rank it waits; the end of a rank is noticed on the host
// (worker/ranks/shared_fate.h).
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "core/mutex.h"
#include "core/thread.h"
#include "worker/ranks/collectives.h"
#include "worker/ranks/nccl_communicator.h"
#include "worker/ranks/shared_fate.h"
#include "worker/ranks/stream_hooks.h"

namespace causeway::worker {

class NcclCollectives final : public Collectives {
 public:
  // The parts of a group.
  struct Parts {
    std::unique_ptr<Collectives> control;  // the same ranks on the host
    std::shared_ptr<StreamHooks> hooks;
    std::shared_ptr<SharedFate> fate;
    std::unique_ptr<NcclCommunicator> communicator;
    void* token = nullptr;  // one float in device memory, summed by barriers
  };

  NcclCollectives(const NcclApi& nccl, Parts parts);
  ~NcclCollectives() override;

  int rank() const override { return parts_.control->rank(); }
  int world() const override { return parts_.control->world(); }
  std::string NameOf(int rank) const override { return parts_.control->NameOf(rank); }

  Ticket AllReduce(std::span<float> values) override;
  Ticket ReduceScatter(std::span<const float> values, std::span<float> part) override;
  Ticket AllGather(std::span<const std::byte> part, std::span<std::byte> all) override;
  Ticket AllToAll(std::span<const std::byte> parts, std::span<std::byte> received) override;
  Ticket Broadcast(std::span<std::byte> bytes, int root) override;
  Ticket Send(std::span<const std::byte> bytes, int to) override;
  Ticket Receive(std::span<std::byte> bytes, int from) override;
  Ticket Barrier() override;
  absl::StatusOr<std::unique_ptr<Collectives>> Split(int color, Timeout timeout) override;
  absl::Status Await(Ticket ticket, Timeout timeout) override;
  bool IsDone(Ticket ticket) override;
  void Abort(const std::string& reason) override;
  int64_t sent_bytes() const override { return sent_bytes_; }

 private:
  using Launch = std::function<NcclResult(const NcclApi& nccl, NcclComm* comm, void* stream)>;
  struct Operation {
    std::string name;
    Launch launch;  // null: there is nothing to do
    int64_t sent = 0;
    int64_t event = 0;  // 0: none
  };

  Ticket Post(Operation operation);
  std::string Numbered(const char* kind);

  // Called on thread_ alone.
  void Serve();
  Operation* NextToLaunch(PollPause& pause);  // null: there is none for now
  absl::Status LaunchOne(Operation& operation);
  absl::StatusOr<bool> Advance();  // whether another operation is done
  void AbortGroup();

  const NcclApi& nccl_;
  const Parts parts_;
  uint64_t asked_ = 0;  // number of the whole group's operations; used by the owner thread
  std::atomic<int64_t> sent_bytes_ = 0;
  core::Mutex mutex_;
  core::Condition changed_;
  std::deque<Operation> queue_ ABSL_GUARDED_BY(mutex_);  // operations that are not done
  size_t launched_ ABSL_GUARDED_BY(mutex_) = 0;          // how many of these, from the front, were launched
  int64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;  // has failed, and the device is idle
  core::Thread thread_;                         // last: it calls us
};

// Connects all ranks of `control`, which is on the host (OrderedCollectives) and is also ended by an error or an Abort.
// All ranks call it together; the device of `hooks` stays the current one of the calling thread. Takes at most
// `timeout`.
absl::StatusOr<std::unique_ptr<Collectives>> MakeNcclCollectives(const NcclApi& nccl, Collectives& control,
                                                                 std::shared_ptr<StreamHooks> hooks,
                                                                 Collectives::Timeout timeout);

}  // namespace causeway::worker
