// Carries bytes between two ranks of a site: all that OrderedCollectives needs from a transport.
//
//   Send(to, tag, bytes)  ~~►  Receive(from, tag, bytes)      of one pair and tag, in the order of calls; equal sizes
//
// Transfers of different pairs and tags run side by side. Memory stays until Await has returned or the transfer is
// gone. Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace causeway::worker {

class Wire {
 public:
  class Transfer {
   public:
    virtual ~Transfer() = default;
    // Waits without a limit; Abort ends it. UNAVAILABLE: "rank 2 of 4 (host) has ended". ABORTED: the reason that a
    // rank gave to Abort.
    virtual absl::Status Await() = 0;
  };

  virtual ~Wire() = default;

  virtual int rank() const = 0;
  virtual int world() const = 0;
  virtual const std::string& host(int rank) const = 0;
  std::string NameOf(int rank) const { return absl::StrCat("rank ", rank, " of ", world(), " (", host(rank), ")"); }

  virtual std::unique_ptr<Transfer> Send(int to, uint64_t tag, std::span<const std::byte> bytes) = 0;
  virtual std::unique_ptr<Transfer> Receive(int from, uint64_t tag, std::span<std::byte> bytes) = 0;

  // Ends all transfers, present and future, here and on the other ranks. The reason is the same on all: it names a
  // rank.
  virtual void Abort(const std::string& reason) = 0;

  // The next tags not used by any group of ranks: groups that share two ranks agree on it when they are created.
  std::atomic<uint32_t>& next_channel() { return next_channel_; }

 private:
  std::atomic<uint32_t> next_channel_ = 1;
};

}  // namespace causeway::worker
