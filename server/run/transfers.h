// The bulk streams: contributions and initial parameters up, updates and anchors down. Thread-safe.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "causeway/v1/coordinator.pb.h"
#include "server/run/open_uploads.h"
#include "server/run/run_figures.h"
#include "server/run/run_model.h"
#include "server/run/run_options.h"
#include "server/store/journal.h"

namespace causeway::server {

class RunExchange;
class Run;

class Transfers {
 public:
  // The arguments outlive this object.
  Transfers(RunExchange& exchange, const RunOptions& options, Journal& journal, RunFigures& figures)
      : exchange_(exchange), options_(options), journal_(journal), figures_(figures) {}

  absl::StatusOr<Upload> BeginUpload(const v1::UploadHeader& header);
  // Admits the contribution once every chunk is there, or none is needed. The verdict comes on another thread, when it
  // is durable.
  void CompleteUpload(const v1::UploadHeader& header, Upload upload, const std::shared_ptr<UploadPeer>& peer);
  // Refuses an upload whose chunks the round does not take: the site encodes by other settings.
  void RefuseUpload(const v1::UploadHeader& header, const Upload& upload, const std::string& why,
                    const std::shared_ptr<UploadPeer>& peer);

  using Download = RunModel::Download;
  absl::StatusOr<Download> BeginDownload(const v1::DownloadRequest& request, Waiter waiter);
  // A stream of a download has sent everything; it began at `begun_ms` of the exchange's now_ms().
  void Taken(const v1::DownloadRequest& request, int64_t begun_ms);

  std::shared_ptr<SiteMeters> Meters(const core::SiteId& site);

 private:
  absl::Status Check(const v1::Context& context, core::FragmentId fragment);
  static absl::StatusOr<Upload> BeginSeed(const v1::UploadHeader& header, Run& run);
  void CompleteSeed(const v1::UploadHeader& header, const std::shared_ptr<UploadPeer>& peer);

  RunExchange& exchange_;
  const RunOptions& options_;
  Journal& journal_;
  RunFigures& figures_;
};

}  // namespace causeway::server
