// Moves values between the ranks of one site: the processes, R of them, that train one replica together.
//
//   every rank   AllReduce(bucket 0) ─► ticket 0 ┐  run one after the other beside the caller,
//                AllReduce(bucket 1) ─► ticket 1 ┘  in the order in which they were requested
//                Await(ticket 1, timeout) ─► both are done
//
// Every rank requests the same operations in the same order, with the same sizes and roots; the k-th of one rank meets
// the k-th of the others. Memory given to an operation must stay valid and unchanged until it is done.
//
// Implementations:
//   OrderedCollectives   host memory, over a Wire: Gloo (TCP), threads of one process, or none (one rank). Sums are
//                        float32 in the order of the ranks, so that their bits depend only on the values. A
//                        rank that asks for another operation is found, with both named.
//   NcclCollectives      device memory, by NCCL: its own order of sums, the same on all ranks.
//
// Errors end the group: this and every later Await returns the first one, on all ranks as soon as they learn of it.
//   UNAVAILABLE          a rank has ended: "rank 2 of 4 (host) ended"
//   DEADLINE_EXCEEDED    a rank was waited for in vain: "rank 2 of 4 (host) has said nothing for 3.0 s: …"
//   FAILED_PRECONDITION  the ranks' orders differ: "rank 2 of 4 (host): expected …, got …"
//   ABORTED              another rank has given up: "rank 2 of 4 (host): its reason"
//
// Operations are requested on one thread at a time; Await and Abort may be called on any.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace causeway::worker {

// The mean of recent durations: the newest counts a tenth, the one before it a tenth of the rest, and so on.

// `mean` is 0 before the first.
inline void AddToLateMean(double newest_s, double& mean_s) {
  constexpr double kNewestShare = 0.1;
  mean_s = mean_s == 0 ? newest_s : mean_s + kNewestShare * (newest_s - mean_s);
}

class Collectives {
 public:
  using Ticket = int64_t;
  using Timeout = std::chrono::nanoseconds;

  virtual ~Collectives() = default;

  virtual int rank() const = 0;
  virtual int world() const = 0;
  virtual std::string NameOf(int rank) const = 0;  // "rank 2 of 4 (host)"

  // values ← Σ over ranks, on all of them.
  virtual Ticket AllReduce(std::span<float> values) = 0;
  // part ← Σ over ranks of their values [rank · n, (rank + 1) · n), where n is the part's size and values has world ·
  // n.
  virtual Ticket ReduceScatter(std::span<const float> values, std::span<float> part) = 0;
  // all ← the parts of all ranks, in their order; all has world times the part's size.
  virtual Ticket AllGather(std::span<const std::byte> part, std::span<std::byte> all) = 0;
  // received ← part `rank` of each rank's parts, in their order; both have world parts of one size.
  virtual Ticket AllToAll(std::span<const std::byte> parts, std::span<std::byte> received) = 0;
  virtual Ticket Broadcast(std::span<std::byte> bytes, int root) = 0;
  // Only the pair of ranks takes part in these two.
  virtual Ticket Send(std::span<const std::byte> bytes, int to) = 0;
  virtual Ticket Receive(std::span<std::byte> bytes, int from) = 0;
  virtual Ticket Barrier() = 0;

  // Divides the ranks into groups of equal color, each in the order of its ranks here. An error in one group, or an
  // Abort, ends all groups of the same origin.
  virtual absl::StatusOr<std::unique_ptr<Collectives>> Split(int color, Timeout timeout) = 0;

  // Returns when the operation and all earlier ones are done. After `timeout` it aborts, and names the rank that was
  // waited for.
  virtual absl::Status Await(Ticket ticket, Timeout timeout) = 0;
  // Whether Await would return at once, and OK.
  virtual bool IsDone(Ticket ticket) = 0;

  // Gives up: operations in progress end here at once, and on the other ranks as soon as they learn the reason.
  virtual void Abort(const std::string& reason) = 0;

  // The bytes that this rank has sent to others, excluding the transport's overhead.
  virtual int64_t sent_bytes() const = 0;
};

inline Collectives::Timeout TimeoutOf(double seconds) {
  return std::chrono::duration_cast<Collectives::Timeout>(std::chrono::duration<double>(seconds));
}

// Views of values as the bytes that move.
template <typename T>
std::span<std::byte> BytesOf(std::span<T> values) {
  return std::as_writable_bytes(values);
}
template <typename T>
std::span<const std::byte> BytesOf(std::span<const T> values) {
  return std::as_bytes(values);
}

}  // namespace causeway::worker
