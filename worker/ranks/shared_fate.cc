#include "worker/ranks/shared_fate.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

namespace causeway::worker {
namespace {

constexpr std::chrono::milliseconds kBetweenRounds{100};

}  // namespace

SharedFate::SharedFate(std::unique_ptr<Collectives> control, Collectives::Timeout timeout)
    : control_(std::move(control)), timeout_(timeout) {
  if (control_->world() > 1) thread_ = core::Thread([this] { Watch(); });
}

SharedFate::~SharedFate() {
  {
    core::MutexLock lock(mutex_);
    ending_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.Join();
}

void SharedFate::Watch() {
  while (true) {
    std::byte ending{0};
    {
      core::MutexLock lock(mutex_);
      const auto over = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ending_ || !failure_.ok(); };
      lock.WaitFor(changed_, kBetweenRounds, over);
      if (!failure_.ok()) return;
      ending = std::byte{ending_};
    }
    std::vector<std::byte> all(control_->world());
    const absl::Status met = control_->Await(control_->AllGather(std::span(&ending, 1), all), timeout_);
    if (!met.ok()) {
      Keep(met);  // the control group has notified the other ranks
      return;
    }
    if (std::ranges::any_of(all, [](std::byte one) { return one != std::byte{0}; })) return;
  }
}

bool SharedFate::Keep(const absl::Status& failure) {
  core::MutexLock lock(mutex_);
  if (!failure_.ok()) return false;
  failure_ = failure;
  changed_.NotifyAll();
  return true;
}

void SharedFate::Fail(const absl::Status& failure) {
  if (Keep(failure)) control_->Abort(std::string(failure.message()));
}

void SharedFate::AwaitFailure(Collectives::Timeout timeout) {
  core::MutexLock lock(mutex_);
  lock.WaitFor(changed_, timeout, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !failure_.ok(); });
}

absl::Status SharedFate::failure() const {
  core::MutexLock lock(mutex_);
  return failure_;
}

}  // namespace causeway::worker
