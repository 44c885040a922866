// CoordinatorLink over gRPC: one connection for control, others for bulk, and one thread that mends what breaks.
//
//   link thread    join ─► welcomed ─► (broke) ─► wait, longer each time ─► join again with the same session …
//   transfers      launched while welcomed; an attempt that broke is launched again where it stopped
//
// Thread-safe. Callbacks come from gRPC's threads and the link thread, never with the link's mutex held.
#pragma once

#include <atomic>
#include <condition_variable>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "core/mutex.h"
#include "transport/channel.h"
#include "transport/client_streams.h"
#include "transport/coordinator_link.h"
#include "transport/transfer.h"

namespace causeway::transport {

struct LinkOptions {
  Address coordinator;
  ChannelOptions channel;
  core::SiteId site;
  int64_t connect_timeout_s = 0;  // give up when unreached for so long; 0 = never
};

// What a site needs before it can join.
struct RunDescription {
  core::RunId run_id;
  std::string run_config;  // serialized; formats::ParseRunConfig reads it
};

class GrpcLink final : public CoordinatorLink {
 public:
  explicit GrpcLink(LinkOptions options);
  ~GrpcLink() override;

  // Before Start: goes on with a session of an earlier process, which held parameters of that lineage ("" for none).
  void Resume(const core::SessionId& session, const std::string& lineage);
  const core::SessionId& session() const { return session_; }
  std::string lineage() const;

  // Asks what run this is, for as long as it takes. UNAVAILABLE after connect_timeout_s, CANCELLED once `cancelled`
  // returns true, PERMISSION_DENIED if what answers is no coordinator that we understand.
  absl::StatusOr<RunDescription> Describe(const std::function<bool()>& cancelled);

  void Start(const core::Manifest& manifest, LinkListener* listener) override;
  void SendReady() override;
  bool SendProgress(const core::Progress& progress) override;
  void Upload(UploadRequest request) override;
  void Download(DownloadRequest request) override;
  void Rejoin() override;
  void Leave(bool finished, const std::string& reason) override;

 private:
  struct Pending {
    std::shared_ptr<Transfer> transfer;
    bool running = false;
    bool dropped = false;
    int64_t retry_at_ms = 0;
  };

  static int64_t NowMs();  // monotonic
  static uint64_t RandomBits();

  void Run();
  void Connect();
  void OnControlMessage(const v1::CoordinatorMessage& message);
  void OnControlEnded(const grpc::Status& status);
  void OnWelcome(const v1::Welcome& welcome);
  void OnRefused(const v1::Refused& refused);
  void Add(std::shared_ptr<Transfer> transfer);
  std::list<Pending>::iterator Find(const std::shared_ptr<Transfer>& transfer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LaunchDue();
  void DropTransfers();  // all of them end with CANCELLED
  void OnTransferEnded(const std::shared_ptr<Transfer>& transfer, bool finished);
  void Fail(const absl::Status& status);
  bool WaitForRetry(int64_t backoff_ms);
  bool Stopping() const;
  bool UnreachableTooLong(int64_t since_ms) const;
  std::string Explain(const std::string& error) const;
  v1::Context MakeContext() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool SendOnControl(v1::SiteMessage message);  // false: there is no stream

  const LinkOptions options_;
  core::SessionId session_;  // constant from Start on
  const std::shared_ptr<grpc::Channel> control_channel_;
  std::unique_ptr<v1::Coordinator::Stub> control_stub_;
  std::vector<std::unique_ptr<v1::Coordinator::Stub>> bulk_stubs_;  // transfers take turns
  std::atomic<size_t> next_bulk_ = 0;
  core::Manifest manifest_;
  LinkListener* listener_ = nullptr;
  std::thread thread_;

  mutable core::Mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool failed_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<v1::SiteMessage> leave_ ABSL_GUARDED_BY(mutex_);  // on its way
  bool left_ ABSL_GUARDED_BY(mutex_) = false;                     // the coordinator has heard it
  bool control_running_ ABSL_GUARDED_BY(mutex_) = false;
  bool welcomed_ ABSL_GUARDED_BY(mutex_) = false;
  bool joining_ ABSL_GUARDED_BY(mutex_) = false;  // as the last Join said
  int attempts_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t retry_after_ms_ ABSL_GUARDED_BY(mutex_) = 0;  // the coordinator asked us to wait so long
  int64_t unreached_since_ms_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string last_error_ ABSL_GUARDED_BY(mutex_);
  bool connection_failed_ ABSL_GUARDED_BY(mutex_) = false;  // the last time, before it was welcomed
  core::RunId run_id_ ABSL_GUARDED_BY(mutex_);
  uint64_t epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string lineage_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<ControlStream> control_ ABSL_GUARDED_BY(mutex_);
  std::list<Pending> transfers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway::transport
