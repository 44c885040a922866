// The transfers of a link in their order: which may be launched now, which one waits for its retry, which was dropped.
//
//   Add ─► waiting ─► TakeDue: running ─► Written (gRPC has all of an upload) ─► Ended ─► Remove
//             ▲                     └──── Ended ─► Retry: until that is due ───┐
//             └────────────────────────────────────────────────────────────────┘
//
// Uploads go one after the other, each over all connections: the fragment that was sent first is needed first, and
// keeps its turn while it waits for its retry. The next one begins when the last one's bytes are with gRPC, so that the
// link is not idle in between. Downloads wait for no other transfer.
//
// Pure: time and chance are arguments. It never calls a transfer but to ask whether it is an upload.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <vector>

#include "transport/transfer.h"

namespace causeway::transport {

class TransferQueue {
 public:
  using Transfers = std::vector<std::shared_ptr<Transfer>>;
  struct Dropped {
    Transfers running;  // to be cancelled; each stays until its attempt is over
    Transfers idle;     // are out of the queue; their owners are to hear of it
    bool any() const { return !running.empty() || !idle.empty(); }
  };

  bool empty() const { return pending_.empty(); }
  void Add(std::shared_ptr<Transfer> transfer);
  Transfers TakeDue(int64_t now_ms);  // what is to be launched; it runs from here on
  void Written(const Transfer& transfer);

  // The attempt is over. Whether the transfer is still wanted; it counts as running until Retry or Remove.
  bool Ended(const Transfer& transfer);
  // The attempt broke at that time, the last of `attempts` in a row that brought nothing new.
  void Retry(const Transfer& transfer, int attempts, int64_t broke_ms, int64_t now_ms, uint64_t random);
  void Remove(const Transfer& transfer);

  Dropped DropIf(const std::function<bool(const Transfer&)>& condition);
  bool IsDropped(const Transfer& transfer) const;  // and has not been removed

  // Until TakeDue should be called again after it was at that time: when the next retry is due, if that is soon.
  int64_t MsToLook(int64_t looked_ms) const;
  bool TakeRetryAdded();  // whether there was one since the last call

 private:
  struct Pending {
    std::shared_ptr<Transfer> transfer;
    bool running = false;
    bool writing = false;  // an upload that has not given gRPC all of it
    bool dropped = false;
    int64_t retry_at_ms = 0;
  };

  bool MayLaunch(const Pending& pending, int64_t now_ms) const;
  std::list<Pending>::iterator Find(const Transfer& transfer);

  std::list<Pending> pending_;
  bool retry_added_ = false;
};

}  // namespace causeway::transport
