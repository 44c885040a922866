// A link to one coordinator over a wire: one connection for control, others for bulk, and one thread that mends what
// breaks.
//
//   link thread    join ─► welcomed ─► (broke) ─► wait, longer each time ─► join again with the same session …
//   transfers      launched while welcomed; an attempt that broke is launched again where it stopped
//
// Thread-safe. Callbacks come from gRPC's threads and the link thread, never with the link's mutex held.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "core/shard.h"
#include "core/thread.h"
#include "transport/channel.h"
#include "transport/control_stream.h"
#include "transport/link_meter.h"
#include "transport/pacer.h"
#include "transport/session_link.h"
#include "transport/transfer.h"
#include "transport/wire.h"

namespace causeway::transport {

struct LinkOptions {
  Address coordinator;
  ChannelOptions channel;
  core::SiteId site;
  core::Shard shard;              // that is expected there
  int64_t connect_timeout_s = 0;  // give up when unreached for so long; 0 = never
  double max_up_bytes_per_s = 0;  // of payload; 0 = as fast as it goes
  double max_down_bytes_per_s = 0;
  int channels = 0;  // TCP connections that a transfer is spread over; 0 = by measurement
};

class GrpcLink final : public ShardLink {
 public:
  explicit GrpcLink(LinkOptions options);  // over gRPC
  GrpcLink(LinkOptions options, std::unique_ptr<Wire> wire);
  ~GrpcLink() override;

  void Resume(const core::SessionId& session, const std::string& lineage) override;
  const core::SessionId& session() const override { return session_; }
  std::string lineage() const override;
  absl::StatusOr<RunDescription> Describe(const std::function<bool()>& cancelled) override;

  void Start(const core::Manifest& manifest, LinkListener* listener) override;
  void SendReady() override;
  bool SendProgress(const core::Progress& progress) override;
  core::LinkProgress Measured() const override { return meter_.progress(); }
  void Upload(UploadRequest request) override;
  void Download(DownloadRequest request) override;
  void Rejoin() override;
  void Leave(bool finished, const std::string& reason) override;
  void Hurry() override;
  void JoinStay(int64_t stay) override;
  void DropTransfers() override;

 private:
  struct Pending {
    std::shared_ptr<Transfer> transfer;
    bool running = false;
    bool writing = false;  // an upload that has not given gRPC all of it
    bool dropped = false;
    int64_t retry_at_ms = 0;
  };

  void Run();
  void Connect();
  void OnControlMessage(const v1::CoordinatorMessage& message);
  void OnControlEnded(const grpc::Status& status);
  void OnWelcome(const v1::Welcome& welcome);
  void Ping();
  void OnRefused(const v1::Refused& refused);
  void Add(std::shared_ptr<Transfer> transfer);
  bool DropIf(const std::function<bool(const Transfer&)>& condition);  // whether there was one
  bool MayLaunch(const Pending& pending, int64_t now_ms) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Lanes LanesFor(const Transfer& transfer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckShard(const v1::RunDescription& description) const;
  void OnTransferWritten(const std::shared_ptr<Transfer>& transfer);
  std::list<Pending>::iterator Find(const std::shared_ptr<Transfer>& transfer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LaunchDue();
  int64_t MsToLook(int64_t looked_ms) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnTransferEnded(const std::shared_ptr<Transfer>& transfer, bool finished);
  void AdviseOnBuffers();
  void Fail(const absl::Status& status);
  bool WaitForRetry(int64_t backoff_ms, const std::function<bool()>& cancelled);
  bool Stopping() const;
  bool UnreachableTooLong(int64_t since_ms) const;
  std::string Explain(const std::string& error) const;
  v1::Context MakeContext() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool SendOnControl(v1::SiteMessage message);  // false: there is no stream

  const LinkOptions options_;
  const core::Clock& clock_ = core::SystemClock();
  core::SessionId session_;  // constant from Start on
  const std::unique_ptr<Wire> wire_;
  LinkMeter meter_;
  Pacer up_, down_;
  core::Manifest manifest_;
  LinkListener* listener_ = nullptr;
  core::Thread thread_;
  std::atomic<bool> advised_ = false;  // on the kernel's buffers; once is enough

  mutable core::Mutex mutex_;
  core::Condition changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool hurried_ ABSL_GUARDED_BY(mutex_) = false;
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
  int64_t stay_ ABSL_GUARDED_BY(mutex_) = 0;  // that another shard than 0 is told
  uint64_t epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string lineage_ ABSL_GUARDED_BY(mutex_);
  std::optional<uint64_t> generation_ ABSL_GUARDED_BY(mutex_);  // of the model that it was welcomed to
  std::shared_ptr<ControlStream> control_ ABSL_GUARDED_BY(mutex_);
  int64_t pinged_ms_ ABSL_GUARDED_BY(mutex_) = 0;
  std::list<Pending> transfers_ ABSL_GUARDED_BY(mutex_);
  bool retry_added_ ABSL_GUARDED_BY(mutex_) = false;  // since the link's thread looked
};

}  // namespace causeway::transport
