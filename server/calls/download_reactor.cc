#include <grpcpp/support/byte_buffer.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/functional/function_ref.h"
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

// The messages of one download, in order: header, chunks of the stripe, end. One owner at a time.

class DownloadMessages {
 public:
  // Both outlive it.
  DownloadMessages(RunExchange* exchange, const v1::DownloadRequest* request)
      : exchange_(exchange), request_(request) {}

  // The next message; nothing if the reader has to wait: the waiter of `ask_again` is called when one may be there. An
  // error ends the download.
  absl::StatusOr<std::optional<grpc::ByteBuffer>> Next(absl::FunctionRef<Waiter()> ask_again);

  bool complete() const { return complete_; }  // the end was among them
  SiteMeters& meters() { return *download_.meters; }
  int64_t begun_ms() const { return begun_ms_; }  // when the header was there; of the run's clock

 private:
  std::optional<grpc::ByteBuffer> Header(absl::FunctionRef<Waiter()> ask_again);
  size_t Stripes() const { return std::max(1, request_->num_stripes()); }

  RunExchange* const exchange_;
  const v1::DownloadRequest* const request_;
  Download download_;
  bool header_sent_ = false;
  size_t next_ = 0;  // the chunk after those taken
  int64_t begun_ms_ = 0;
  bool complete_ = false;
};

absl::StatusOr<std::optional<grpc::ByteBuffer>> DownloadMessages::Next(absl::FunctionRef<Waiter()> ask_again) {
  if (download_.source == nullptr) {
    Waiter waiter = ask_again();
    Ready ready = exchange_->Handle(input::BeginDownload{*request_, waiter});
    RETURN_IF_ERROR(ready.status);
    download_ = std::move(ready.download);
    if (download_.source == nullptr) return std::nullopt;
  }
  if (!header_sent_) return Header(ask_again);
  ChunkSource::Item item = download_.source->Get(next_, ask_again());
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

std::optional<grpc::ByteBuffer> DownloadMessages::Header(absl::FunctionRef<Waiter()> ask_again) {
  const auto header = download_.source->Header(ask_again());
  if (!header) return std::nullopt;
  header_sent_ = true;
  begun_ms_ = exchange_->options().clock->NowMs();
  // Chunks of another version are useless; the site starts over when it sees the header.
  const bool anchor = request_->source_case() == v1::DownloadRequest::kAnchorVersion;
  const bool goes_on = !anchor || request_->held_version() == header->version;
  next_ = request_->stripe() + (goes_on ? Stripes() * request_->first_chunk() : 0);
  v1::DownloadMessage message;
  transport::ToProto(*header, message.mutable_header());
  if (request_->wants_proof()) {
    message.mutable_header()->set_proof(
        exchange_->admission().claims().ProofOfVersion(request_->fragment(), header->version));
  }
  // An older site names none, and gets the same bytes as ever.
  if (request_->has_generation()) message.mutable_header()->set_generation(download_.generation);
  for (const core::SettingsRevision& revision : exchange_->SettingsAfter(request_->revision())) {
    transport::ToProto(revision, message.mutable_header()->add_revisions());
  }
  if (!request_->wants_weights()) message.mutable_header()->clear_merged_weights();
  if (!request_->wants_run_tokens()) message.mutable_header()->clear_run_tokens();
  return transport::ToBytes(message);
}

// Reads the request, then writes its messages. Advance takes the next step whenever one may be possible: at the start,
// after a write, and when a source wakes it (which may be after the call's end: hence the shared ownership).
class DownloadReactor final : public GatedCall {
 public:
  DownloadReactor(RunExchange* exchange, Gate* gate, Peer peer)
      : GatedCall(gate, std::move(peer)), exchange_(exchange), messages_(exchange, &request_) {}

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
    if (messages_.complete() && !cancelled_) exchange_->Taken(request_, messages_.begun_ms());
  }

  Waiter AskAgain() {
    return {weak_, [this, weak = weak_](const absl::Status& status) {
              if (weak.lock() != nullptr) status.ok() ? Advance() : End(status);
            }};
  }

  void Advance() {
    core::MutexLock lock(mutex_);
    if (writing_ || finished_) return;
    absl::StatusOr<std::optional<grpc::ByteBuffer>> next = messages_.Next([this] { return AskAgain(); });
    if (!next.ok()) return FinishOnce(ToGrpc(next.status()));
    if (!next->has_value()) return;  // will be woken
    if (!messages_.complete()) return Write(std::move(**next));
    outgoing_ = std::move(**next);
    FinishWith(outgoing_);
  }

  void Write(grpc::ByteBuffer message) {
    writing_ = true;
    outgoing_ = std::move(message);
    messages_.meters().down.Add(static_cast<int64_t>(outgoing_.Length()));
    StartWrite(&outgoing_);
  }

  RunExchange* const exchange_;
  v1::DownloadRequest request_;
  SiteLimits::Stream counted_;
  DownloadMessages messages_;
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
