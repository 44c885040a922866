// Exports the global parameters every `every_rounds` rounds, from a site: anchors have the same bits everywhere, so any
// site can.
//
//   Due(rounds) ─► copy of the anchors (task thread) ─► Write ─► dir/round-000040/{config.json, …, model.safetensors}
//
// A folder appears under its name when it is complete; of those with weights of this run the `keep` that were written
// last stay, and nothing else is removed. Where another run's export or another program's folder has the name, it is
// round-000040-RUN. A separate thread writes them; if copies come faster, only the newest waits. A failed export is
// logged, and training continues.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "core/manifest.h"
#include "core/mutex.h"
#include "formats/export_form.h"
#include "worker/site/movers.h"
#include "worker/site/step_thread.h"

namespace causeway::worker {

// A thread that takes copies of the anchors one after the other. If they come faster, only the newest waits.

// Thread-safe.
class NewestCopy {
 public:
  explicit NewestCopy(std::function<void(AnchorCopy)> take) : take_(std::move(take)) {}

  void Post(AnchorCopy copy) {
    {
      core::MutexLock lock(mutex_);
      const bool posted = waiting_.has_value();
      waiting_ = std::move(copy);
      if (posted) return;
    }
    tasks_.Post([this] { TakeWaiting(); });
  }

  void Finish() { tasks_.Finish(); }  // returns when the newest has been taken

 private:
  void TakeWaiting() {
    AnchorCopy copy;
    {
      core::MutexLock lock(mutex_);
      copy = *std::exchange(waiting_, std::nullopt);
    }
    take_(std::move(copy));
  }

  const std::function<void(AnchorCopy)> take_;
  core::Mutex mutex_;
  std::optional<AnchorCopy> waiting_ ABSL_GUARDED_BY(mutex_);
  TaskThread tasks_;  // last: its thread calls us
};

// The worker's flags of these names.
struct ExportFlags {
  std::string directory;
  int64_t every_rounds = 0;
  int keep = 3;
  std::string assets;
  std::string dtype = "float32";
};

// Called before anything is started. INVALID_ARGUMENT: a flag is invalid, or the directory cannot be written to.
absl::Status CheckExportFlags(const ExportFlags& flags);

struct ExportOptions {
  std::string directory;  // "": none; several sites may share it
  core::SiteId site;
  core::Version every_rounds = 0;
  int keep = 3;
  formats::ExportForm form;
};

class Exports {
 public:
  // `manifest` outlives it. `written(path, seconds)` is called on its thread.
  Exports(ExportOptions options, const core::Manifest& manifest,
          std::function<void(const std::string& path, double seconds)> written);

  bool enabled() const { return !options_.directory.empty(); }
  void Begin(core::Version rounds) { exported_ = rounds; }        // the rounds with which the site entered
  bool Due(core::Version rounds);                                 // true once for each multiple
  void Write(AnchorCopy copy) { copies_.Post(std::move(copy)); }  // thread-safe
  void Finish() { copies_.Finish(); }

 private:
  void WriteNow(const AnchorCopy& copy) const;
  // The path for that round's export: free, or taken by an export of the same run. UNAVAILABLE: there is no such path.
  absl::StatusOr<std::string> PlaceOf(const std::string& name) const;
  void RemoveOld(const std::string& latest, core::Version rounds) const;

  const ExportOptions options_;
  const core::Manifest& manifest_;
  const std::function<void(const std::string&, double)> written_;
  const std::set<std::string> before_;  // the names that were there before this process
  core::Version exported_ = 0;
  NewestCopy copies_{[this](const AnchorCopy& copy) { WriteNow(copy); }};
};

}  // namespace causeway::worker
