#include "server/store/late_sync.h"

#include <utility>

#include "core/check.h"

namespace causeway::server {

LateSync::LateSync(SyncMeter* syncs, std::function<void(const absl::Status&)> done)
    : syncs_(syncs), done_(std::move(done)), thread_([this] { Run(); }) {}

LateSync::~LateSync() {
  {
    const core::MutexLock lock(mutex_);
    closing_ = true;
    changed_.NotifyAll();
  }
  thread_.Join();
}

bool LateSync::idle() const {
  const core::MutexLock lock(mutex_);
  return !files_;
}

void LateSync::Begin(Segments::Files files, const LogMark& mark) {
  const core::MutexLock lock(mutex_);
  CHECK(!files_);
  files_ = std::move(files);
  mark_ = mark;
  changed_.NotifyAll();
}

std::optional<LogMark> LateSync::TakeSynced() {
  const core::MutexLock lock(mutex_);
  return std::exchange(synced_, std::nullopt);
}

void LateSync::Finish() {
  core::MutexLock lock(mutex_);
  lock.Wait(changed_, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !files_; });
}

void LateSync::Run() {
  while (true) {
    Segments::Files files;
    {
      core::MutexLock lock(mutex_);
      lock.Wait(changed_, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return closing_ || files_; });
      if (!files_) return;
      files = *files_;
    }
    const absl::Status status = syncs_->Time([&] { return Segments::SyncFiles(files); });
    {
      const core::MutexLock lock(mutex_);
      if (status.ok()) synced_ = mark_;
      files_.reset();
      changed_.NotifyAll();
    }
    done_(status);
  }
}

}  // namespace causeway::server
