#include <spdlog/spdlog.h>

#include "absl/strings/str_cat.h"
#include "core/address.h"
#include "core/check.h"
#include "core/thread.h"
#include "server/calls/reactors.h"
#include "transport/messages.h"
#include "transport/read_message.h"

namespace causeway::server {
namespace {

// A standby's stream. A thread of its own reads the files and writes them to the stream, one message at a time, so that
// neither gRPC's threads nor the journal's wait for a disk or a slow link.
class ReplicateReactor final : public GatedCall {
 public:
  ReplicateReactor(RunExchange* exchange, Gate* gate, Peer peer)
      : GatedCall(gate, std::move(peer)),
        exchange_(exchange),
        feed_(std::make_shared<MirrorFeed>(exchange->journal().mirrors().directory())) {}
  ~ReplicateReactor() override {
    if (thread_.joinable()) thread_.Join();
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return End(absl::OkStatus());
    v1::ReplicateMessage message;
    if (const absl::Status read = transport::ReadMessage(incoming_, &message); !read.ok()) return End(read);
    if (thread_.joinable()) {
      feed_->Acknowledged(message.mirrored(), message.unfit());
      if (message.wants_to_lead()) HandOver();
      return ReadOn();
    }
    Spoke();
    if (const absl::Status status = Check(message); !status.ok()) return End(status);
    address_ = AddressOf(message);
    thread_ = core::Thread([this, message = std::move(message)] {
      End(Send(message));
      exchange_->journal().mirrors().End(feed_);
    });
    ReadOn();
  }

  absl::Status Check(const v1::ReplicateMessage& message) const {
    const v1::Context& context = message.context();
    RETURN_IF_ERROR(exchange_->admission().CheckContext(context));
    return core::ParseAddress("--advertise", message.address()).status();
  }

  // One that listens on all addresses, and has no --advertise, is known by the one from which it calls.
  std::string AddressOf(const v1::ReplicateMessage& message) const {
    const absl::StatusOr<core::Address> said = core::ParseAddress("--advertise", message.address());
    const absl::StatusOr<core::Address> from = core::ParseAddress("peer", peer_.Address());
    if (!said.ok() || !from.ok() || (said->host != "0.0.0.0" && said->host != "::")) return message.address();
    const std::string text = core::Address{from->host, said->port}.Text();
    spdlog::warn("the standby at {} does not say where it is reached (--advertise): others hear of {}", peer_.Address(),
                 text);
    return text;
  }

  void HandOver() {
    Journal& journal = exchange_->journal();
    absl::Status begun = journal.status();
    if (begun.ok()) begun = journal.mirrors().BeginHandOver(feed_);
    if (!begun.ok()) return feed_->Say(std::string(begun.message()));
    spdlog::info("hands over to the standby at {}", address_);
    journal.Commit({.handed_to = address_});
    journal.Flush();
    // The record is there, or the journal has failed.
    absl::IsAborted(journal.status()) ? feed_->Finish() : End(journal.status());
  }

  absl::Status Send(const v1::ReplicateMessage& message) {
    std::vector<MirrorFile> copy;
    for (const v1::MirrorFile& file : message.files()) copy.push_back({file.name(), file.bytes(), file.digest()});
    v1::ReplicateReply reply;
    v1::ReplicateBegin& begin = *reply.mutable_begin();
    absl::StatusOr<std::map<std::string, int64_t>> held = Agreeing(exchange_->journal().mirrors().directory(), copy);
    if (!held.ok() && !absl::IsFailedPrecondition(held.status())) return held.status();
    begin.set_set_aside(!held.ok());
    begin.set_reason(std::string(held.status().message()));
    feed_->Serve(address_, held.ok() ? *std::move(held) : std::map<std::string, int64_t>());
    ASSIGN_OR_RETURN(const int place, exchange_->journal().Mirror(feed_, message.formerly()));
    begin.set_place(place);
    begin.set_bytes(feed_->figures().bytes);
    begin.set_address(address_);
    *begin.mutable_run() = exchange_->Describe();
    spdlog::info("the standby at {} follows: {} bytes to copy", address_, begin.bytes());
    while (Write(reply)) {
      const absl::StatusOr<MirrorPiece> next = feed_->Next();
      reply.Clear();
      if (absl::IsOutOfRange(next.status())) {
        reply.set_handed_over(true);
        Write(reply);
        return absl::OkStatus();
      }
      ASSIGN_OR_RETURN(const MirrorPiece piece, next);
      reply.set_name(piece.name);
      reply.set_offset(piece.offset);
      reply.set_contents(piece.bytes);
      reply.set_removed(piece.removed);
      reply.set_said(piece.said);
      if (piece.mark.sequence == 0) continue;
      reply.set_sequence(piece.mark.sequence);
      reply.set_hash(piece.mark.hash.data(), piece.mark.hash.size());
    }
    return absl::OkStatus();
  }

  // Returns when it is on its way; false: the stream is over.
  bool Write(const v1::ReplicateReply& reply) {
    core::MutexLock lock(mutex_);
    if (finished_) return false;
    outgoing_ = transport::ToBytes(reply);
    writing_ = true;
    StartWrite(&outgoing_);
    lock.Wait(changed_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !writing_; });
    return !finished_;
  }

  void OnWriteDone(bool /*ok*/) override {
    core::MutexLock lock(mutex_);
    writing_ = false;
    changed_.NotifyAll();
  }

  void OnCancel() override { End(absl::CancelledError("the standby ended it")); }
  void End(const absl::Status& status) override {
    feed_->Stop();
    GatedCall::End(status);
  }

  RunExchange* const exchange_;
  const std::shared_ptr<MirrorFeed> feed_;
  std::string address_;  // of the standby; OnReadDone's alone
  grpc::ByteBuffer outgoing_;
  core::Condition changed_;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  core::Thread thread_;
};

}  // namespace

CallReactor* NewReplicateReactor(RunExchange* exchange, Gate* gate, Peer peer) {
  return GatedCall::Begin(std::make_shared<ReplicateReactor>(exchange, gate, std::move(peer)));
}

}  // namespace causeway::server
