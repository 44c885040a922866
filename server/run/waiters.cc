#include "server/run/waiters.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "core/check.h"

namespace causeway::server {

Waiter::Waiter(Waiter&& other) noexcept
    : waits_(std::exchange(other.waits_, false)),
      owned_(other.owned_),
      owner_(std::move(other.owner_)),
      answer_(std::move(other.answer_)) {}

Waiter& Waiter::operator=(Waiter&& other) noexcept {
  if (this == &other) return *this;
  if (waits_) Tell(absl::AbortedError("the coordinator waits for this no longer; retry"));
  waits_ = std::exchange(other.waits_, false);
  owned_ = other.owned_;
  owner_ = std::move(other.owner_);
  answer_ = std::move(other.answer_);
  return *this;
}

Waiter::~Waiter() {
  if (waits_) Tell(absl::AbortedError("the coordinator waits for this no longer; retry"));
}

void Waiter::Tell(const absl::Status& status) {
  waits_ = false;
  if (!gone()) answer_(status);
}

void Waiters::Add(const WaitKey& key, Waiter waiter) {
  std::vector<Waiter> gone;  // released without the lock
  core::MutexLock lock(mutex_);
  CHECK(key.generation >= generation_);
  std::vector<Waiter>& waiting = waiting_[key];
  const auto first_gone = std::partition(waiting.begin(), waiting.end(), [](const Waiter& w) { return !w.gone(); });
  std::move(first_gone, waiting.end(), std::back_inserter(gone));
  waiting.erase(first_gone, waiting.end());
  waiter.Await();
  waiting.push_back(std::move(waiter));
}

template <typename Wanted>
std::vector<Waiter> Waiters::Take(Wanted wanted) {
  std::vector<Waiter> taken;
  core::MutexLock lock(mutex_);
  for (auto entry = waiting_.begin(); entry != waiting_.end();) {
    if (!wanted(entry->first)) {
      ++entry;
      continue;
    }
    std::ranges::move(entry->second, std::back_inserter(taken));
    entry = waiting_.erase(entry);
  }
  return taken;
}

void Waiters::TellTaken(std::vector<Waiter> taken, const absl::Status& status) {
  for (Waiter& waiter : taken) waiter.Tell(status);
}

void Waiters::Wake(const WaitKey& key) {
  std::vector<Waiter> taken;
  {
    core::MutexLock lock(mutex_);
    const auto found = waiting_.find(key);
    if (found == waiting_.end()) return;
    taken = std::move(found->second);
    waiting_.erase(found);
  }
  TellTaken(std::move(taken), absl::OkStatus());
}

void Waiters::WakeFragment(core::FragmentId fragment) {
  TellTaken(Take([fragment](const WaitKey& key) { return key.fragment == fragment; }), absl::OkStatus());
}

void Waiters::WakeAll() {
  TellTaken(Take([](const WaitKey&) { return true; }), absl::OkStatus());
}

void Waiters::BeginGeneration(uint64_t generation) {
  {
    core::MutexLock lock(mutex_);
    generation_ = std::max(generation_, generation);
  }
  TellTaken(Take([generation](const WaitKey& key) { return key.generation < generation; }),
            absl::AbortedError(absl::StrCat("the model is generation ", generation, " now; retry")));
}

size_t Waiters::size() const {
  core::MutexLock lock(mutex_);
  size_t size = 0;
  for (const auto& [key, waiting] : waiting_) size += waiting.size();
  return size;
}

}  // namespace causeway::server
