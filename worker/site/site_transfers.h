// A site's transfers at the request of its rules: contributions up, anchors and updates down, whole and still encoded.
//
// Thread-safe. The listener is called on the link's threads, with no lock held.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "core/clock.h"
#include "core/run_settings.h"
#include "transport/coordinator_link.h"
#include "worker/site/movers.h"
#include "worker/site/site_checkpoint.h"
#include "worker/site/site_events.h"

namespace causeway::worker {

// Chunks of a contribution in one run of bytes, each after its length in 8 bytes, little-endian: the file of a
// checkpoint and the part of a state.
//
//   | 3 | one | 5 | three | …

// Passes the bytes to `append` in order; returns its first failure.
absl::Status WriteChunks(const std::vector<core::Bytes>& chunks,
                         absl::FunctionRef<absl::Status(std::span<const std::byte>)> append);

// `read` copies bytes from an offset; there are `size` in all. DATA_LOSS if they end inside a chunk; errors call them
// `name`.
absl::StatusOr<Chunks> ReadChunks(const std::string& name, int64_t size,
                                  absl::FunctionRef<absl::Status(int64_t at, std::span<std::byte> bytes)> read);

class TransferListener {
 public:
  virtual ~TransferListener() = default;
  virtual void OnVerdict(const event::VerdictGiven& given) = 0;
  // `revisions` of the run's settings, as far as the coordinator has sent some along.
  virtual void OnBegan(const event::FetchBegan& began, const std::vector<core::SettingsRevision>& revisions) = 0;
  virtual void OnFetched(const event::Fetched& fetched, std::shared_ptr<const Payload> payload) = 0;
  virtual void OnTransferFailed(const absl::Status& status) = 0;  // an error that ends the site
};

class SiteTransfers {
 public:
  // The arguments outlive it.
  SiteTransfers(const core::RunSettings& settings, core::SiteId site, transport::CoordinatorLink* link,
                const core::Clock& clock, TransferListener* listener)
      : settings_(settings), site_(std::move(site)), link_(link), clock_(clock), listener_(listener) {}

  void Upload(const action::Upload& upload, Chunks chunks);
  void UploadInitial(core::FragmentId fragment, Chunks chunks);  // requested again if the coordinator loses it
  // `held_digest`: digest of the initial parameters that the site would make; 0: none.
  void FetchAnchor(const action::FetchAnchor& fetch, const core::Fragment& fragment, uint64_t held_digest);
  void FetchUpdate(const action::FetchUpdate& fetch, const core::Fragment& fragment);

 private:
  void Fetch(const Tag& tag, transport::DownloadRequest request);

  const core::RunSettings& settings_;
  const core::SiteId site_;
  transport::CoordinatorLink* const link_;
  const core::Clock& clock_;
  TransferListener* const listener_;
};

}  // namespace causeway::worker
