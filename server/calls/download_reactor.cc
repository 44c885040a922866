#include <grpcpp/support/byte_buffer.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "causeway/v1/coordinator.pb.h"
#include "core/check.h"
#include "core/fault_point.h"
#include "core/limits.h"
#include "server/calls/reactors.h"
#include "server/run/chunk_source.h"
#include "server/run/run_exchange.h"
#include "transport/bulk_message.h"
#include "transport/messages.h"
#include "transport/read_message.h"

namespace causeway::server {
namespace {

// Reads the request, then writes its messages: header, chunks of the stripe, end. Advance takes the next step whenever
// one may be possible: at the start, after a write, and when a source wakes it, which may be after the call's end.
class DownloadReactor final : public GatedCall {
 public:
  DownloadReactor(RunExchange* exchange, Gate* gate, Peer peer)
      : GatedCall(gate, std::move(peer)), exchange_(exchange) {}

  void Beat() override {
    core::MutexLock lock(mutex_);
    if (!asked_ || !request_.wants_beats() || writing_ || finished_) return;
    v1::DownloadMessage message;
    message.mutable_beat();
    writing_ = true;
    outgoing_ = transport::ToBytes(message);
    StartWrite(&outgoing_);
  }

 private:
  void OnArrived() override {
    weak_ = self();
    GatedCall::OnArrived();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return End(absl::InvalidArgumentError("expected a DownloadRequest, got none"));
    Spoke();
    if (const absl::Status status = TakeRequest(); !status.ok()) return End(status);
    {
      core::MutexLock lock(mutex_);
      asked_ = true;
    }
    Advance();
  }

  absl::Status TakeRequest() {
    RETURN_IF_ERROR(transport::ReadMessage(incoming_, &request_, core::kMaxQuestionBytes));
    if (const int stripes = std::max(1, request_.num_stripes()); request_.stripe() >= stripes) {
      return absl::InvalidArgumentError(
          absl::StrCat("expected a stripe below ", stripes, ", got stripe ", request_.stripe()));
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
      OnCancel();
    }
  }

  void OnCancel() override {
    cancelled_ = true;
    GatedCall::OnCancel();
  }

  void OnEnded() override {
    if (complete_ && !cancelled_) exchange_->Taken(request_, begun_ms_);
  }

  Waiter AskAgain() {
    return {weak_, [this, weak = weak_](const absl::Status& status) {
              if (weak.lock() != nullptr) status.ok() ? Advance() : End(status);
            }};
  }

  void Advance() {
    core::MutexLock lock(mutex_);
    if (writing_ || finished_) return;
    absl::StatusOr<std::optional<grpc::ByteBuffer>> next = Next();
    if (!next.ok()) return FinishOnce(ToGrpc(next.status()));
    if (!next->has_value()) return;  // will be woken
    if (!complete_) return Write(std::move(**next));
    outgoing_ = std::move(**next);
    FinishWith(outgoing_);
  }

  // The next message; nothing if the reader has to wait. An error ends the download.
  absl::StatusOr<std::optional<grpc::ByteBuffer>> Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (download_.source == nullptr) {
      Waiter waiter = AskAgain();
      Ready ready = exchange_->Handle(input::BeginDownload{request_, waiter});
      RETURN_IF_ERROR(ready.status);
      download_ = std::move(ready.download);
      if (download_.source == nullptr) return std::nullopt;
    }
    if (!header_sent_) return Header();
    ChunkSource::Item item = download_.source->Get(next_, AskAgain());
    RETURN_IF_ERROR(item.error);
    if (item.chunk != nullptr) {
      next_ += Stripes();
      core::FaultPoint("mid_broadcast");
      return transport::ChunkMessage(std::move(item.chunk));
    }
    if (!item.end) return std::nullopt;
    complete_ = true;
    v1::DownloadMessage message;
    message.mutable_end()->set_digest(*item.end);
    return transport::ToBytes(message);
  }

  std::optional<grpc::ByteBuffer> Header() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto header = download_.source->Header(AskAgain());
    if (!header) return std::nullopt;
    header_sent_ = true;
    begun_ms_ = exchange_->options().clock->NowMs();
    // Chunks of another version are useless; the site starts over when it sees the header.
    const bool anchor = request_.source_case() == v1::DownloadRequest::kAnchorVersion;
    const bool goes_on = !anchor || request_.held_version() == header->version;
    next_ = request_.stripe() + (goes_on ? Stripes() * request_.first_chunk() : 0);
    v1::DownloadMessage message;
    transport::ToProto(*header, message.mutable_header());
    if (request_.wants_proof()) {
      message.mutable_header()->set_proof(
          exchange_->admission().claims().ProofOfVersion(request_.fragment(), header->version));
    }
    // An older site names none, and gets the same bytes as ever.
    if (request_.has_generation()) message.mutable_header()->set_generation(download_.generation);
    for (const core::SettingsRevision& revision : exchange_->SettingsAfter(request_.revision())) {
      transport::ToProto(revision, message.mutable_header()->add_revisions());
    }
    if (!request_.wants_weights()) message.mutable_header()->clear_merged_weights();
    if (!request_.wants_run_tokens()) message.mutable_header()->clear_run_tokens();
    return transport::ToBytes(message);
  }

  size_t Stripes() const { return std::max(1, request_.num_stripes()); }

  void Write(grpc::ByteBuffer message) {
    writing_ = true;
    outgoing_ = std::move(message);
    download_.meters->down.Add(static_cast<int64_t>(outgoing_.Length()));
    StartWrite(&outgoing_);
  }

  RunExchange* const exchange_;
  v1::DownloadRequest request_;
  SiteLimits::Stream counted_;
  Download download_;
  bool header_sent_ = false;
  bool complete_ = false;  // the end was sent
  size_t next_ = 0;        // the chunk after those taken
  int64_t begun_ms_ = 0;   // when the header was there; of the run's clock
  bool asked_ = false;
  bool writing_ = false;
  grpc::ByteBuffer outgoing_;
  std::weak_ptr<GatedCall> weak_;
  std::atomic<bool> cancelled_ = false;  // not under the mutex
};

}  // namespace

CallReactor* NewDownloadReactor(RunExchange* exchange, Gate* gate, Peer peer) {
  return GatedCall::Begin(std::make_shared<DownloadReactor>(exchange, gate, std::move(peer)));
}

}  // namespace causeway::server
