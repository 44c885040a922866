#include <optional>

#include "core/check.h"
#include "server/calls/reactors.h"
#include "transport/read_message.h"

namespace causeway::server {
namespace {

// The stream of a shard that follows this one. Every update is complete, so that only the last pending one is sent.
class FollowReactor final : public GatedCall, public ShardPeer {
 public:
  FollowReactor(RunExchange* exchange, Gate* gate, Peer peer) : GatedCall(gate, std::move(peer)), exchange_(exchange) {}

  // ---- ShardPeer ----

  void Send(const v1::MembershipUpdate& update) override {
    core::MutexLock lock(mutex_);
    if (finished_) return;
    std::string run_config = waiting_ ? waiting_->run_config() : "";
    waiting_ = update;
    if (!run_config.empty()) waiting_->set_run_config(std::move(run_config));
    WriteNext();
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return End(absl::OkStatus());
    v1::FollowMessage message;
    if (const absl::Status status = Take(message); !status.ok()) return End(status);
    exchange_->Handle(input::Report{shard_, message.report()});
    ReadOn();
  }

  absl::Status Take(v1::FollowMessage& message) {
    if (!begun_) Spoke();
    RETURN_IF_ERROR(transport::ReadMessage(incoming_, &message));
    if (begun_) return absl::OkStatus();
    const std::shared_ptr<ShardPeer> peer(self(), this);
    RETURN_IF_ERROR(exchange_->Handle(input::BeginFollow{message.context(), peer}).status);
    begun_ = true;
    shard_ = message.context().shard();
    return absl::OkStatus();
  }

  void OnWriteDone(bool ok) override {
    core::MutexLock lock(mutex_);
    writing_ = false;
    if (ok && !finished_) WriteNext();
  }

  void OnCancel() override { End(absl::OkStatus()); }
  void OnEnded() override { exchange_->Handle(input::EndFollow{this}); }

  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || !waiting_) return;
    writing_ = true;
    outgoing_ = transport::ToBytes(*waiting_);
    waiting_.reset();
    StartWrite(&outgoing_);
  }

  RunExchange* const exchange_;
  bool begun_ = false;  // it and the next: read and written by OnReadDone alone
  int shard_ = 0;
  grpc::ByteBuffer outgoing_;  // is being written
  std::optional<v1::MembershipUpdate> waiting_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

CallReactor* NewFollowReactor(RunExchange* exchange, Gate* gate, Peer peer) {
  return GatedCall::Begin(std::make_shared<FollowReactor>(exchange, gate, std::move(peer)));
}

}  // namespace causeway::server
