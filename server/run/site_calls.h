// The control streams of sites. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "causeway/v1/coordinator.pb.h"
#include "core/ids.h"
#include "server/run/members.h"
#include "server/run/run_options.h"
#include "server/store/journal.h"

namespace causeway::server {

class RunExchange;
class Run;

class SiteCalls {
 public:
  // The arguments outlive this object.
  SiteCalls(RunExchange& exchange, const RunOptions& options, Journal& journal)
      : exchange_(exchange), options_(options), journal_(journal) {}

  void Join(const std::shared_ptr<SitePeer>& peer, const v1::Join& join);
  void Ready(const SitePeer* peer);
  void Progress(const SitePeer* peer, const v1::Progress& progress);
  void Leave(const SitePeer* peer, const v1::Leave& leave);
  void Disconnected(const SitePeer* peer);
  // True: the journal is full, and a stream of control messages resumes reading when `read_on` is called, on another
  // thread.
  bool AwaitsJournal(std::function<void()> read_on);
  // A stream of the site was ended because it exceeded a limit: shown for a minute, if the site is known.
  void Flooded(const core::SiteId& site, const std::string& why);

 private:
  void Join(Run& run, const std::shared_ptr<SitePeer>& peer, const v1::Join& join,
            const absl::StatusOr<core::Manifest>& manifest);

  RunExchange& exchange_;
  const RunOptions& options_;
  Journal& journal_;
};

}  // namespace causeway::server
