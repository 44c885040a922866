// The global parameters, written down every so many rounds by a site: anchors are the same bits everywhere, so any site
// can.
//
//   Due(rounds) ─► copy of the anchors (task thread) ─► Write ─► dir/round-000040/{config.json, …, model.safetensors}
//
// A folder is there under its name when it is whole; of them the newest `keep` stay. Written by a thread of its own; if
// copies come faster than that, only the newest waits. An export that fails is logged, and training goes on.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "core/manifest.h"
#include "formats/export_form.h"
#include "worker/loop/newest_copy.h"

namespace causeway::worker {

struct ExportOptions {
  std::string directory;  // "": none
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
  void Begin(core::Version rounds) { exported_ = rounds; }        // that the site entered with
  bool Due(core::Version rounds);                                 // true once for each multiple
  void Write(AnchorCopy copy) { copies_.Post(std::move(copy)); }  // thread-safe
  void Finish() { copies_.Finish(); }

 private:
  void WriteNow(const AnchorCopy& copy) const;
  void RemoveOld() const;

  const ExportOptions options_;
  const core::Manifest& manifest_;
  const std::function<void(const std::string&, double)> written_;
  core::Version exported_ = 0;
  NewestCopy copies_{[this](const AnchorCopy& copy) { WriteNow(copy); }};
};

}  // namespace causeway::worker
