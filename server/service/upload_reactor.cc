#include "absl/strings/str_cat.h"
#include "core/fault_point.h"
#include "server/service/grpc_service.h"

namespace causeway::server {
namespace {

// header ─► what is missing ─► chunks … ─► verdict. One message is under way in each direction at most, so nothing
// piles up here: the site's next chunk is read when the last one is spooled.
class UploadReactor final : public grpc::ServerBidiReactor<v1::UploadMessage, v1::UploadReply> {
 public:
  UploadReactor(Coordinator* coordinator, Gate* gate, Peer peer)
      : coordinator_(coordinator), gate_(gate), peer_(std::move(peer)) {}

  void Begin(std::shared_ptr<UploadReactor> self) {
    self_ = std::move(self);
    StartRead(&incoming_);
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) {
      FinishOnce(grpc::Status(grpc::StatusCode::ABORTED, "the upload ended before it was complete"));
    } else if (upload_.contribution == nullptr) {
      TakeHeader();
    } else {
      TakeChunk();
    }
  }

  void TakeHeader() {
    if (!incoming_.has_header()) {
      FinishOnce(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "expected a header first, got a chunk"));
      return;
    }
    header_ = std::move(*incoming_.mutable_header());
    absl::StatusOr<SiteLimits::Stream> allowed = gate_->BulkStream(peer_, header_.context().site());
    if (!allowed.ok()) {
      FinishOnce(ToGrpc(allowed.status()));
      return;
    }
    counted_ = *std::move(allowed);
    absl::StatusOr<Coordinator::Upload> upload = coordinator_->BeginUpload(header_);
    if (!upload.ok()) {
      FinishOnce(ToGrpc(upload.status()));
      return;
    }
    upload_ = *std::move(upload);
    if (upload_.contribution == nullptr) return Complete();
    const std::vector<int> missing = upload_.contribution->Missing();
    if (missing.empty()) return Complete();
    outgoing_.mutable_missing()->mutable_chunks()->Assign(missing.begin(), missing.end());
    core::MutexLock lock(mutex_);
    if (finished_) return;  // cancelled meanwhile
    writing_ = true;
    StartWrite(&outgoing_);
    StartRead(&incoming_);
  }

  void TakeChunk() {
    upload_.meters->up.Add(static_cast<int64_t>(incoming_.ByteSizeLong()));
    const absl::Status status = upload_.contribution->Add(std::move(*incoming_.mutable_chunk()));
    if (!status.ok()) {
      FinishOnce(ToGrpc(absl::InvalidArgumentError(
          absl::StrCat("fragment ", header_.fragment(), " from ", header_.context().site(), ": ", status.message()))));
      return;
    }
    core::FaultPoint("after_chunk");
    if (upload_.contribution->complete()) {
      Complete();
    } else {
      core::MutexLock lock(mutex_);
      if (!finished_) StartRead(&incoming_);
    }
  }

  // The verdict comes on another thread, and may come when the call is over.
  void Complete() {
    // Nothing is kept here: the contribution is let go of when it is merged, not when the site has read its verdict.
    coordinator_->CompleteUpload(header_, std::move(upload_),
                                 [self = self_](const v1::Verdict& verdict) { self->WriteVerdict(verdict); });
  }

  // The site may have sent all chunks before we are told that the list of them is written.
  void OnWriteDone(bool ok) override {
    core::MutexLock lock(mutex_);
    writing_ = false;
    if (ok && verdict_.has_verdict()) FinishWithVerdict();
  }

  void WriteVerdict(const v1::Verdict& verdict) {
    core::MutexLock lock(mutex_);
    *verdict_.mutable_verdict() = verdict;
    if (!writing_) FinishWithVerdict();
  }

  void FinishWithVerdict() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (finished_) return;
    finished_ = true;
    StartWriteAndFinish(&verdict_, grpc::WriteOptions(), grpc::Status::OK);
  }

  void FinishOnce(const grpc::Status& status) {
    core::MutexLock lock(mutex_);
    if (finished_) return;
    finished_ = true;
    Finish(status);
  }

  void OnCancel() override { FinishOnce(grpc::Status::CANCELLED); }
  void OnDone() override { const std::shared_ptr<UploadReactor> self = std::move(self_); }

  Coordinator* const coordinator_;
  Gate* const gate_;
  const Peer peer_;
  SiteLimits::Stream counted_;
  v1::UploadMessage incoming_;
  v1::UploadReply outgoing_;
  v1::UploadHeader header_;
  Coordinator::Upload upload_;
  core::Mutex mutex_;
  v1::UploadReply verdict_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<UploadReactor> self_;  // until OnDone
};

}  // namespace

grpc::ServerBidiReactor<v1::UploadMessage, v1::UploadReply>* NewUploadReactor(Coordinator* coordinator, Gate* gate,
                                                                              Peer peer) {
  auto reactor = std::make_shared<UploadReactor>(coordinator, gate, std::move(peer));
  reactor->Begin(reactor);
  return reactor.get();
}

}  // namespace causeway::server
