// A site's link to a coordinator in the same process: the calls that the network would carry, without it.
//
//   worker::Site ── Upload, Download … ──► LocalLink ── BeginUpload, BeginDownload … ──► server::Coordinator
//       ▲                                    │                                               │
//       └───────── LinkListener ◄── tasks ◄──┴──────────── SitePeer::Send, wake ◄────────────┘
//
// It does what GrpcLink and the reactors of server/calls do, minus everything that can break: rules, merge, codecs
// and their checks are the product's own, and every payload byte is made, checked and decoded as it is between
// datacenters. One thread runs whatever the site and the coordinator ask for, in the order they ask, so that neither
// waits for the other with a lock held.
//
// Leave must be called before the coordinator is destroyed, the coordinator destroyed before the link.
#pragma once

#include <list>
#include <memory>
#include <string>
#include <vector>

#include "server/run/run_exchange.h"
#include "transport/coordinator_link.h"
#include "worker/site/step_thread.h"

namespace causeway::bench {

// Sees the payloads of one site, on the link's thread.
class LinkObserver {
 public:
  virtual ~LinkObserver() = default;
  virtual void OnContribution(core::FragmentId fragment, core::Version base,
                              const std::vector<core::Bytes>& chunks) = 0;
  virtual void OnUpdate(core::FragmentId fragment, core::Version base, const std::vector<std::string>& chunks) = 0;
};

class LocalLink final : public transport::CoordinatorLink {
 public:
  // All three outlive the link's Leave; `observer` may be null. `phase_rounds`: QualityOptions::link_phase_rounds.
  LocalLink(server::RunExchange* coordinator, const core::RunId& run_id, core::SiteId site, LinkObserver* observer,
            int64_t phase_rounds);
  ~LocalLink() override;

  void Start(const core::Manifest& manifest, transport::LinkListener* listener) override;
  void SendReady() override;
  bool SendProgress(const core::Progress& progress) override;
  void Upload(transport::UploadRequest request) override;
  void Download(transport::DownloadRequest request) override;
  core::LinkProgress Measured() const override { return {}; }
  void Rejoin() override {}  // nothing is pruned here
  void Leave(bool finished, const std::string& reason) override;
  void Hurry() override {}

  // After Leave: bytes of chunks of contributions and updates, and the last progress the site reported.
  int64_t up_bytes() const { return up_bytes_; }
  int64_t down_bytes() const { return down_bytes_; }
  const core::Progress& last_progress() const { return last_progress_; }

 private:
  class Peer;

  // A download under way; it is in downloads_ until it has ended.
  struct Incoming {
    transport::DownloadRequest request;
    std::shared_ptr<server::ChunkSource> source;
    bool header_sent = false;
    std::vector<std::string> chunks;  // so far
  };

  void DropTransfers();
  v1::Context MakeContext() const;
  void Deliver(const v1::CoordinatorMessage& message);
  void TellPhase(core::Version base);  // how fast the link is at that version
  void Offer(const transport::UploadRequest& request);
  void Advance(const std::shared_ptr<Incoming>& incoming);
  void End(const std::shared_ptr<Incoming>& incoming, const absl::Status& status, uint64_t digest);

  server::RunExchange* const coordinator_;
  const core::RunId run_id_;
  const core::SiteId site_;
  LinkObserver* const observer_;
  const int64_t phase_rounds_;

  // The task thread's; the others touch them only before Start and after Leave.
  transport::LinkListener* listener_ = nullptr;
  std::shared_ptr<Peer> peer_;
  bool left_ = false;
  std::list<std::shared_ptr<Incoming>> downloads_;
  int64_t up_bytes_ = 0;
  int64_t down_bytes_ = 0;
  core::Progress last_progress_;

  worker::TaskThread tasks_;
};

}  // namespace causeway::bench
