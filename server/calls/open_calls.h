// The open calls, which the gate can end: a call that does not identify itself, or whose token is withdrawn.
// Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "core/mutex.h"
#include "server/calls/authorizer.h"

namespace causeway::server {

class Call {
 public:
  virtual ~Call() = default;
  virtual void End(const absl::Status& status) = 0;  // called from any thread; the call may have ended already
  virtual void Beat() {}  // says that the coordinator is there, where the caller waits and wants to hear it
};

class OpenCalls {
 public:
  // A call is open for as long as its place lives, and silent until its first message.
  class Place {
   public:
    Place(OpenCalls* calls, uint64_t id) : calls_(calls), id_(id) {}
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    ~Place() { calls_->Remove(id_); }
    void Spoke() { calls_->Spoke(id_); }

   private:
    OpenCalls* const calls_;
    const uint64_t id_;
  };
  struct Found {
    std::shared_ptr<Call> call;
    Peer peer;
  };

  // `call` lives at least as long as the place.
  std::unique_ptr<Place> Add(std::weak_ptr<Call> call, Peer peer, int64_t now_ms);

  std::vector<Found> All() const;
  std::vector<Found> SilentSince(int64_t since_ms) const;  // calls silent since then or for longer

 private:
  struct Entry {
    std::weak_ptr<Call> call;
    Peer peer;
    std::optional<int64_t> silent_since_ms;
  };
  void Remove(uint64_t id);
  void Spoke(uint64_t id);

  mutable core::Mutex mutex_;
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, Entry> calls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway::server
