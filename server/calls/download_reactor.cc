#include <algorithm>
#include <atomic>

#include "absl/strings/str_cat.h"
#include "core/fault_point.h"
#include "core/limits.h"
#include "server/calls/gated_call.h"
#include "server/calls/reactors.h"
#include "transport/messages.h"
#include "transport/read_message.h"

namespace causeway::server {
namespace {

// Reads the request, waits for a source, then header ─► chunks … ─► end. Advance takes the next step whenever one may
// be possible: at the start, after a write, and when a source wakes it (which may be after the call's end: hence the
// shared ownership).
class DownloadReactor final : public CallReactor, public GatedCall {
 public:
  DownloadReactor(RunExchange* exchange, Gate* gate, Peer peer)
      : GatedCall(gate, std::move(peer)), exchange_(exchange) {}

  void Begin(const std::shared_ptr<DownloadReactor>& self) {
    self_ = self;
    weak_ = self;
    if (Arrive(self_)) StartRead(&incoming_);
  }

  void End(const absl::Status& status) override { FinishOnce(ToGrpc(status)); }

  void Beat() override {
    core::MutexLock lock(mutex_);
    if (meters_ == nullptr || !request_.wants_beats() || writing_ || finished_) return;
    v1::DownloadMessage message;
    message.mutable_beat();
    writing_ = true;
    outgoing_ = transport::ToBytes(message);
    StartWrite(&outgoing_);
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return End(absl::InvalidArgumentError("expected a DownloadRequest, got none"));
    Spoke();
    if (const absl::Status status = TakeRequest(); !status.ok()) return End(status);
    {
      core::MutexLock lock(mutex_);
      meters_ = exchange_->transfers().Meters(request_.context().site());
    }
    Advance();
  }

  absl::Status TakeRequest() {
    RETURN_IF_ERROR(transport::ReadMessage(incoming_, &request_, core::kMaxQuestionBytes));
    if (static_cast<size_t>(request_.stripe()) >= Stripes()) {
      return absl::InvalidArgumentError(
          absl::StrCat("expected a stripe below ", Stripes(), ", got stripe ", request_.stripe()));
    }
    ASSIGN_OR_RETURN(counted_, gate_->BulkStream(peer_, request_.context().site()));
    return absl::OkStatus();
  }

  void OnWriteDone(bool ok) override {
    {
      core::MutexLock lock(mutex_);
      writing_ = false;
    }
    if (ok) {
      Advance();
    } else {
      FinishOnce(grpc::Status::CANCELLED);
    }
  }

  void OnCancel() override {
    cancelled_ = true;
    FinishOnce(grpc::Status::CANCELLED);
  }

  void OnDone() override {
    const std::shared_ptr<DownloadReactor> self = std::move(self_);
    if (sent_all_ && !cancelled_) exchange_->transfers().Taken(request_, begun_ms_);
  }

  Waiter AskAgain() {
    return {weak_, [weak = weak_](const absl::Status& status) {
              const auto self = weak.lock();
              if (self != nullptr) status.ok() ? self->Advance() : self->FinishOnce(ToGrpc(status));
            }};
  }

  void Advance() {
    core::MutexLock lock(mutex_);
    if (writing_ || finished_) return;
    if (source_ == nullptr) {
      auto download = exchange_->transfers().BeginDownload(request_, AskAgain());
      if (!download.ok()) return FinishLocked(ToGrpc(download.status()));
      source_ = std::move(download->source);
      generation_ = download->generation;
      if (source_ == nullptr) return;  // will be woken
    }
    if (!header_sent_) return WriteHeader();
    WriteNext();
  }

  void WriteHeader() {
    const auto header = source_->Header(AskAgain());
    if (!header) return;
    header_sent_ = true;
    begun_ms_ = exchange_->now_ms();
    // Chunks of another version are useless; the site starts over when it sees the header.
    const bool anchor = request_.source_case() == v1::DownloadRequest::kAnchorVersion;
    const bool goes_on = !anchor || request_.held_version() == header->version;
    next_ = request_.stripe() + (goes_on ? Stripes() * request_.first_chunk() : 0);
    v1::DownloadMessage message;
    transport::ToProto(*header, message.mutable_header());
    if (request_.wants_proof()) {
      message.mutable_header()->set_proof(exchange_->claims().ProofOfVersion(request_.fragment(), header->version));
    }
    // An older site names none, and gets the same bytes as ever.
    if (request_.has_generation()) message.mutable_header()->set_generation(generation_);
    if (!request_.wants_weights()) message.mutable_header()->clear_merged_weights();
    Write(transport::ToBytes(message));
  }

  void WriteNext() {
    ChunkSource::Item item = source_->Get(next_, AskAgain());
    if (!item.error.ok()) return FinishLocked(ToGrpc(item.error));
    if (item.chunk != nullptr) {
      next_ += Stripes();
      core::FaultPoint("mid_broadcast");
      Write(transport::ChunkMessage(std::move(item.chunk)));
    } else if (item.end) {
      v1::DownloadMessage message;
      message.mutable_end()->set_digest(*item.end);
      sent_all_ = true;
      outgoing_ = transport::ToBytes(message);
      finished_ = true;
      StartWriteAndFinish(&outgoing_, grpc::WriteOptions(), grpc::Status::OK);
    }
  }

  size_t Stripes() const { return std::max(1, request_.num_stripes()); }

  void Write(grpc::ByteBuffer message) {
    writing_ = true;
    outgoing_ = std::move(message);
    meters_->down.Add(static_cast<int64_t>(outgoing_.Length()));
    StartWrite(&outgoing_);
  }

  void FinishOnce(const grpc::Status& status) {
    core::MutexLock lock(mutex_);
    FinishLocked(status);
  }

  void FinishLocked(const grpc::Status& status) {
    if (finished_) return;
    finished_ = true;
    Finish(status);
  }

  RunExchange* const exchange_;
  grpc::ByteBuffer incoming_;
  v1::DownloadRequest request_;
  SiteLimits::Stream counted_;
  core::Mutex mutex_;                   // guards all below
  std::shared_ptr<SiteMeters> meters_;  // nullptr: nothing was requested yet
  std::shared_ptr<ChunkSource> source_;
  uint64_t generation_ = 0;
  bool header_sent_ = false;
  bool writing_ = false;
  bool finished_ = false;
  bool sent_all_ = false;
  int64_t begun_ms_ = 0;
  size_t next_ = 0;
  grpc::ByteBuffer outgoing_;
  std::shared_ptr<DownloadReactor> self_;
  std::weak_ptr<DownloadReactor> weak_;
  std::atomic<bool> cancelled_ = false;  // not under the mutex
};

}  // namespace

CallReactor* NewDownloadReactor(RunExchange* exchange, Gate* gate, Peer peer) {
  auto reactor = std::make_shared<DownloadReactor>(exchange, gate, std::move(peer));
  reactor->Begin(reactor);
  return reactor.get();
}

}  // namespace causeway::server
