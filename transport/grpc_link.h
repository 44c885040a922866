// A link to one coordinator over a wire: one connection for control, others for bulk, and one thread that repairs
// breaks.
//
//   link thread    join ─► welcomed ─► (broke) ─► wait, longer each time ─► join again with the same session …
//   transfers      launched while welcomed; an attempt that broke is launched again where it stopped
//
// The rules of the session and of the order of transfers are separate (control_session.h, transfer_queue.h); the link
// carries them out.
//
// Thread-safe. Callbacks come from gRPC's threads and the link thread, never with the link's mutex held.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "core/thread.h"
#include "transport/channel.h"
#include "transport/connection_watch.h"
#include "transport/control_session.h"
#include "transport/coordinator_link.h"
#include "transport/link_meter.h"
#include "transport/state_show.h"
#include "transport/transfer.h"
#include "transport/transfer_queue.h"
#include "transport/wire.h"

namespace causeway::transport {

class GrpcLink final : public ShardLink {
 public:
  explicit GrpcLink(LinkOptions options, std::unique_ptr<Wire> wire = nullptr);  // nullptr: over gRPC
  ~GrpcLink() override;

  void Resume(const core::SessionId& session, const Remembered& of_coordinator) override;
  // Constant from Start on.
  const core::SessionId& session() const override ABSL_NO_THREAD_SAFETY_ANALYSIS { return session_.id(); }
  Remembered remembered() const override;
  absl::StatusOr<RunDescription> Describe(const std::function<bool()>& cancelled) override;

  void Start(const core::Manifest& manifest, LinkListener* listener) override;
  void SendReady() override;
  bool SendProgress(const core::Progress& progress) override;
  core::LinkProgress Measured() const override;
  void Upload(UploadRequest request) override;
  void Download(DownloadRequest request) override;
  void Rejoin() override;
  void Leave(bool finished, const std::string& reason) override;
  void Hurry() override;
  void JoinAs(int64_t stay) override;
  void DropTransfers() override;

 private:
  void Run();
  void Connect();
  void OnControlMessage(const v1::CoordinatorMessage& message);
  void OnControlEnded(const grpc::Status& status);
  void OnWelcome(const v1::Welcome& welcome);
  void OnRefused(const v1::Refused& refused);
  bool SendOnControl(v1::SiteMessage message);  // false: there is no stream
  void Fail(const absl::Status& status);

  void Add(std::shared_ptr<Transfer> transfer);
  void LaunchDue();
  void Replace(const ConnectionWatch::Dead& dead);
  void OnTransferWritten(const Transfer& transfer);
  void OnTransferEnded(const std::shared_ptr<Transfer>& transfer, bool finished);
  bool DropIf(const std::function<bool(const Transfer&)>& condition);  // returns whether there was any

  bool WaitForRetry(int64_t backoff_ms, const std::function<bool()>& cancelled);
  bool Stopping() const;

  const LinkOptions options_;
  const core::Clock& clock_ = core::SystemClock();
  const std::unique_ptr<Wire> wire_;
  LinkMeter meter_;
  ConnectionWatch watch_;
  Pacer up_, down_;
  StateShow show_;
  core::Manifest manifest_;
  LinkListener* listener_ = nullptr;
  core::Thread thread_;
  BufferAdviser buffers_;

  mutable core::Mutex mutex_;
  core::Condition changed_;
  ControlSession session_ ABSL_GUARDED_BY(mutex_);
  TransferQueue transfers_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<ControlStream> control_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway::transport
