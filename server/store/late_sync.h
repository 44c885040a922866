// Syncs the writes of a relaxed journal on a thread of its own, so that commits do not wait for the disk.
//
//   journal's thread   write … write … Begin(files, mark) ─ write … write ─ TakeSynced ─► mark
//   its own                              └─ fdatasync of each ─┘
//
// One Begin is in progress at a time. Thread-safe.
#pragma once

#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "core/mutex.h"
#include "core/thread.h"
#include "server/store/log_file.h"
#include "server/store/segments.h"
#include "server/store/sync_meter.h"

namespace causeway::server {

class LateSync {
 public:
  // `syncs` outlives it. `done` is called on its thread after each sync, with the result.
  LateSync(SyncMeter* syncs, std::function<void(const absl::Status&)> done);
  ~LateSync();  // finishes a sync in progress first

  bool idle() const;
  // Syncs the files in this order; then the log is durable up to `mark`. Needs idle().
  void Begin(Segments::Files files, const LogMark& mark);
  std::optional<LogMark> TakeSynced();  // since the last call
  void Finish();                        // returns when it is idle

 private:
  void Run();

  SyncMeter* const syncs_;
  const std::function<void(const absl::Status&)> done_;
  mutable core::Mutex mutex_;
  core::Condition changed_;
  std::optional<Segments::Files> files_ ABSL_GUARDED_BY(mutex_);  // until they are synced
  LogMark mark_ ABSL_GUARDED_BY(mutex_);
  std::optional<LogMark> synced_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  core::Thread thread_;
};

}  // namespace causeway::server
