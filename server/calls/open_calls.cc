#include "server/calls/open_calls.h"

namespace causeway::server {

std::unique_ptr<OpenCalls::Place> OpenCalls::Add(std::weak_ptr<Call> call, Peer peer, int64_t now_ms) {
  core::MutexLock lock(mutex_);
  const uint64_t id = next_id_++;
  calls_.emplace(id, Entry{std::move(call), std::move(peer), now_ms});
  return std::make_unique<Place>(this, id);
}

// A call whose last owner releases it meanwhile removes its place: both functions release calls without the mutex.
std::vector<OpenCalls::Found> OpenCalls::All() const {
  std::vector<Found> found;
  core::MutexLock lock(mutex_);
  for (const auto& [id, entry] : calls_) found.push_back({entry.call.lock(), entry.peer});
  return found;
}

std::vector<OpenCalls::Found> OpenCalls::SilentSince(int64_t since_ms) const {
  std::vector<Found> found;
  core::MutexLock lock(mutex_);
  for (const auto& [id, entry] : calls_) {
    if (entry.silent_since_ms && *entry.silent_since_ms <= since_ms) found.push_back({entry.call.lock(), entry.peer});
  }
  return found;
}

void OpenCalls::Remove(uint64_t id) {
  core::MutexLock lock(mutex_);
  calls_.erase(id);
}

void OpenCalls::Spoke(uint64_t id) {
  core::MutexLock lock(mutex_);
  calls_.at(id).silent_since_ms.reset();
}

}  // namespace causeway::server
