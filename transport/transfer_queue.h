// The transfers of a link, in order: those that may be launched now, those that wait for their retry, those dropped.
//
//   Add ─► waiting ─► TakeDue: running ─► Written (gRPC has all of an upload) ─► Ended ─► Remove
//             ▲                     └──── Ended ─► Retry: until that is due ───┐
//             └────────────────────────────────────────────────────────────────┘
//
// Uploads go one after the other, each over all connections: the fragment that was sent first is needed first, and
// keeps its turn while it waits for its retry. The next one begins when gRPC has all bytes of the previous one, so that
// the link is not idle in between. Downloads wait for no other transfer.
//
// Pure: time and random numbers are arguments. The only question it asks a transfer is whether it is an upload.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "transport/transfer.h"

namespace causeway::transport {

class TransferQueue {
 public:
  using Transfers = std::vector<std::shared_ptr<Transfer>>;
  struct Dropped {
    Transfers running;  // must be cancelled; each stays until its attempt is over
    Transfers idle;     // removed from the queue; their owners must be notified
    bool any() const { return !running.empty() || !idle.empty(); }
  };

  bool empty() const { return pending_.empty(); }
  void Add(std::shared_ptr<Transfer> transfer);
  Transfers TakeDue(int64_t now_ms);  // transfers to launch; they count as running from here on
  Transfers Running() const;
  void Written(const Transfer& transfer);

  // The attempt is over. Returns whether the transfer is still wanted; it counts as running until Retry or Remove.
  bool Ended(const Transfer& transfer);
  // The attempt broke at `broke_ms`, as the last of `attempts` in a row without progress.
  void Retry(const Transfer& transfer, int attempts, int64_t broke_ms, int64_t now_ms, uint64_t random);
  void Remove(const Transfer& transfer);
  // The last error of a transfer that has been ended again and again, for ten seconds or longer, without a byte more;
  // or of several that another program, such as a proxy with a limit, ended within a minute. Empty: none.
  std::string Failing(int64_t now_ms) const;

  Dropped DropIf(const std::function<bool(const Transfer&)>& condition);
  bool IsDropped(const Transfer& transfer) const;  // whether it is dropped and not yet removed

  // Milliseconds from `looked_ms`, the last call of TakeDue, to the next: until the next retry is due, if that is soon.
  int64_t MsToLook(int64_t looked_ms) const;
  bool TakeRetryAdded();  // whether a retry was added since the last call

 private:
  struct Pending {
    std::shared_ptr<Transfer> transfer;
    bool running = false;
    bool writing = false;  // an upload whose bytes gRPC does not all have yet
    bool dropped = false;
    int64_t retry_at_ms = 0;
    int64_t failing_ms = 0;  // when the first of its last attempts in a row broke
    std::string failed;      // why its last attempt broke
  };

  bool MayLaunch(const Pending& pending, int64_t now_ms) const;
  std::list<Pending>::iterator Find(const Transfer& transfer);

  std::list<Pending> pending_;
  bool retry_added_ = false;
  // Attempts that something other than a coordinator has ended, the last a minute after the one before at most.
  struct Foreign {
    int attempts = 0;
    int64_t last_ms = 0;
    std::string why;
  } foreign_;
};

}  // namespace causeway::transport
