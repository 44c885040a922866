// All readers that wait for a part of the model: for an anchor, for an update, or for an update's next chunk.
//
//   reader ── Add(generation, fragment, version) ──► Waiters ── Wake ──────────► OK: retry
//                                                       └──── BeginGeneration ──► ABORTED: the model is another one
//
// There is one registry, so that no waiter is forgotten with the object that it waits for. Each is answered exactly
// once: a waiter that the registry drops without an answer answers ABORTED itself, so that its stream ends and is
// retried. Thread-safe; waiters are answered with no lock held.
#pragma once

#include <compare>
#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/ids.h"
#include "core/mutex.h"

namespace causeway::server {

// Identifies the object of a wait.
struct WaitKey {
  uint64_t generation = 0;  // the model's generation
  core::FragmentId fragment = 0;
  core::Version version = 0;

  friend auto operator<=>(const WaitKey&, const WaitKey&) = default;
};

// Receives the answer to a reader: OK when a retry makes sense, else the status with which its call ends.
class Waiter {
 public:
  using Answer = std::function<void(const absl::Status&)>;

  // A waiter for an owner that may disappear while it waits, and is then forgotten.
  Waiter(std::weak_ptr<const void> owner, Answer answer)
      : owned_(true), owner_(std::move(owner)), answer_(std::move(answer)) {}
  // A waiter for an owner that outlives the registry, and retries whatever the answer is.
  template <std::invocable Call>
  Waiter(Call call)  // NOLINT(google-explicit-constructor): a lambda is a waiter
      : answer_([call = std::move(call)](const absl::Status&) { call(); }) {}
  Waiter(Waiter&& other) noexcept;
  Waiter& operator=(Waiter&& other) noexcept;
  ~Waiter();

  bool gone() const { return owned_ && owner_.expired(); }
  void Await() { waits_ = true; }  // from now on it must be answered
  void Tell(const absl::Status& status);

 private:
  bool waits_ = false;
  bool owned_ = false;
  std::weak_ptr<const void> owner_;
  Answer answer_;
};

class Waiters {
 public:
  // REQUIRES: `key` is of the current generation: a reader of an older one is refused before it waits.
  void Add(const WaitKey& key, Waiter waiter);

  void Wake(const WaitKey& key);
  void WakeFragment(core::FragmentId fragment);
  void WakeAll();

  // The model has been replaced: answers those that wait for an earlier one accordingly.
  void BeginGeneration(uint64_t generation);

  size_t size() const;

 private:
  void TellTaken(std::vector<Waiter> taken, const absl::Status& status);
  template <typename Wanted>
  std::vector<Waiter> Take(Wanted wanted);

  mutable core::Mutex mutex_;
  uint64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<WaitKey, std::vector<Waiter>> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway::server
