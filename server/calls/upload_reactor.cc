#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/fault_point.h"
#include "server/calls/reactors.h"
#include "transport/read_message.h"

namespace causeway::server {
namespace {

// header ─► what is missing ─► chunks … ─► verdict. At most one message is in flight in each direction, so nothing
// piles up here: the site's next chunk is read when the last one is spooled. If a contribution comes in several
// streams, the stream that completes it gets the verdict; the others end without one.
class UploadReactor final : public GatedCall, public UploadPeer {
 public:
  UploadReactor(RunExchange* exchange, Gate* gate, Peer peer) : GatedCall(gate, std::move(peer)), exchange_(exchange) {}

  // On the journal's thread; the call may be over.
  void Answer(const absl::StatusOr<v1::Verdict>& verdict) override {
    verdict.ok() ? WriteVerdict(*verdict) : End(verdict.status());
  }

  void Beat() override {
    core::MutexLock lock(mutex_);
    if (!beats_ || writing_ || finished_) return;
    v1::UploadReply reply;
    reply.mutable_beat()->set_received(received_);
    outgoing_ = transport::ToBytes(reply);
    writing_ = true;
    StartWrite(&outgoing_);
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) {
      TakeEnd();
    } else if (!has_header_) {
      TakeHeader();
    } else {
      TakeChunk();
    }
  }

  void TakeHeader() {
    Spoke();
    v1::UploadMessage message;
    if (const absl::Status read = transport::ReadMessage(incoming_, &message); !read.ok()) return End(read);
    if (!message.has_header()) return End(absl::InvalidArgumentError("expected a header first, got a chunk"));
    header_ = std::move(*message.mutable_header());
    has_header_ = true;
    const int stripes = std::max(1, header_.num_stripes());
    if (header_.stripe() >= stripes) {
      return End(absl::InvalidArgumentError(
          absl::StrCat("expected a stripe below ", stripes, ", got stripe ", header_.stripe())));
    }
    absl::StatusOr<SiteLimits::Stream> allowed = gate_->BulkStream(peer_, header_.context().site());
    if (!allowed.ok()) return End(allowed.status());
    counted_ = *std::move(allowed);
    Ready ready = exchange_->Handle(input::BeginUpload{header_});
    if (!ready.status.ok()) return End(ready.status);
    upload_ = std::move(ready.upload);
    BeginBeats();
    if (upload_.contribution == nullptr) return Complete();
    const std::vector<int> missing = upload_.contribution->Missing();
    if (missing.empty()) return Complete();
    core::MutexLock lock(mutex_);
    if (finished_) return;  // cancelled meanwhile
    if (!header_.sends_all()) {
      v1::UploadReply reply;
      v1::ChunkList& list = *reply.mutable_missing();  // even if nothing of the stream is missing
      for (int index : missing) {
        if (InStripe(index)) list.add_chunks(index);
      }
      outgoing_ = transport::ToBytes(reply);
      writing_ = true;
      StartWrite(&outgoing_);
    }
    StartRead(&incoming_);
  }

  void BeginBeats() {
    core::MutexLock lock(mutex_);
    beats_ = header_.wants_beats();
  }

  bool InStripe(int index) const { return index % std::max(1, header_.num_stripes()) == header_.stripe(); }

  // The site has sent all of the stream, or it broke.
  void TakeEnd() {
    const bool whole = upload_.contribution != nullptr &&
                       std::ranges::none_of(upload_.contribution->Missing(), [this](int i) { return InStripe(i); });
    End(whole ? absl::OkStatus() : absl::AbortedError("the upload ended before it was complete"));
  }

  void TakeChunk() {
    upload_.meters->up.Add(static_cast<int64_t>(incoming_.Length()));
    std::optional<std::string> chunk = transport::TakeChunk(incoming_);
    incoming_.Clear();
    const absl::Status status = chunk ? upload_.contribution->Add(*std::move(chunk))
                                      : absl::InvalidArgumentError("expected a chunk, got something else");
    if (!status.ok()) {
      const std::string text =
          absl::StrCat("fragment ", header_.fragment(), " from ", header_.context().site(), ": ", status.message());
      if (!absl::IsFailedPrecondition(status) || header_.initial()) {
        return End(absl::InvalidArgumentError(text));
      }
      const std::shared_ptr<UploadPeer> peer(self(), this);
      exchange_->Handle(input::RefuseUpload{header_, upload_, text + " (other settings than the run's)", peer});
      return;
    }
    core::FaultPoint("after_chunk");
    const bool complete = upload_.contribution->complete();
    {
      core::MutexLock lock(mutex_);
      ++received_;
      if (!complete && !finished_) StartRead(&incoming_);
    }
    if (complete) Complete();
  }

  void Complete() {
    // Nothing is kept here: the contribution is freed when it is merged, not when the site has read its verdict.
    exchange_->CompleteUpload(header_, std::move(upload_), {self(), this});
  }

  // The site may have sent all chunks before we learn that the list of them is written.
  void OnWriteDone(bool ok) override {
    core::MutexLock lock(mutex_);
    writing_ = false;
    if (ok && verdict_.Valid()) FinishWith(verdict_);
  }

  void WriteVerdict(const v1::Verdict& verdict) {
    core::MutexLock lock(mutex_);
    v1::UploadReply reply;
    *reply.mutable_verdict() = verdict;
    if (verdict.admitted() && header_.wants_proof() && !header_.initial()) {
      reply.mutable_verdict()->set_proof(exchange_->admission().claims().ProofOfAdmission(
          header_.context().site(), header_.fragment(), header_.base_version()));
    }
    verdict_ = transport::ToBytes(reply);
    if (!writing_) FinishWith(verdict_);
  }

  RunExchange* const exchange_;
  SiteLimits::Stream counted_;
  grpc::ByteBuffer outgoing_;
  bool has_header_ = false;
  v1::UploadHeader header_;
  Upload upload_;
  grpc::ByteBuffer verdict_ ABSL_GUARDED_BY(mutex_);  // valid once set
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool beats_ ABSL_GUARDED_BY(mutex_) = false;  // the site wants them, and its header is answered first
  int received_ ABSL_GUARDED_BY(mutex_) = 0;    // chunks
};

}  // namespace

CallReactor* NewUploadReactor(RunExchange* exchange, Gate* gate, Peer peer) {
  return GatedCall::Begin(std::make_shared<UploadReactor>(exchange, gate, std::move(peer)));
}

}  // namespace causeway::server
