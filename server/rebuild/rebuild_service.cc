#include "server/rebuild/rebuild_service.h"

#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "server/calls/reactors.h"
#include "transport/read_message.h"

namespace causeway::server {
namespace {

constexpr int64_t kAskAgainMs = 1'000;
constexpr const char* kRebuilds = "the coordinator rebuilds its state from the sites'";

absl::Status AnswerJoin(Gate* gate, const Peer& peer, const v1::SiteMessage& message, v1::CoordinatorMessage& answer) {
  if (!message.has_join()) return absl::InvalidArgumentError("expected Join");
  const v1::Context& context = message.join().context();
  const auto bytes = static_cast<int64_t>(message.ByteSizeLong());
  RETURN_IF_ERROR(gate->ControlBytes(peer, bytes));
  RETURN_IF_ERROR(gate->ControlMessage(peer, context.site(), bytes, /*has_manifest=*/true));
  v1::Refused& refused = *answer.mutable_refused();
  refused.set_reason(kRebuilds);
  refused.set_retry_after_ms(kAskAgainMs);
  refused.set_wants_state(!context.lineage().empty());
  return absl::OkStatus();
}

class ShowCall final : public GatedCall, public ShowPeer {
 public:
  ShowCall(Rebuild* rebuild, Gate* gate, Peer peer) : GatedCall(gate, std::move(peer)), rebuild_(rebuild) {}

  void Ask(core::FragmentId fragment) override {
    v1::ShowReply reply;
    reply.set_fragment(fragment);
    core::MutexLock lock(mutex_);
    asked_.push_back(transport::ToBytes(reply));
    if (asked_.size() == 1 && !finished_) StartWrite(&asked_.front());
  }

  void End(const absl::Status& status) override { GatedCall::End(status); }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return End(absl::AbortedError("the site ended it"));
    const absl::Status status = Take();
    if (!status.ok()) return End(status);
    ReadOn();
  }

  absl::Status Take() {
    if (begun_) {
      const std::optional<std::string> piece = transport::TakeChunk(incoming_);
      incoming_.Clear();
      return piece ? rebuild_->TakePiece(this, *piece) : absl::InvalidArgumentError("expected a piece of a fragment");
    }
    Spoke();
    const auto bytes = static_cast<int64_t>(incoming_.Length());
    v1::ShowMessage message;
    RETURN_IF_ERROR(transport::ReadMessage(incoming_, &message));
    if (!message.has_holdings()) return absl::InvalidArgumentError("expected Holdings first");
    begun_ = true;
    const absl::Status allowed =
        gate_->ControlMessage(peer_, message.holdings().context().site(), bytes, /*has_manifest=*/true);
    return allowed.ok() ? rebuild_->BeginShow(std::shared_ptr<ShowPeer>(self(), this), message.holdings()) : allowed;
  }

  void OnWriteDone(bool ok) override {
    core::MutexLock lock(mutex_);
    asked_.pop_front();
    if (ok && !finished_ && !asked_.empty()) StartWrite(&asked_.front());
  }

  void OnCancel() override { End(absl::CancelledError("the site ended it")); }

  void OnEnded() override { rebuild_->EndShow(this); }

  Rebuild* const rebuild_;
  bool begun_ = false;
  std::deque<grpc::ByteBuffer> asked_ ABSL_GUARDED_BY(mutex_);  // front is being written
};

}  // namespace

std::unique_ptr<CallService> NewRebuildService(Rebuild* rebuild, Gate* gate,
                                               const std::optional<v1::RunDescription>& leads) {
  auto service = std::make_unique<CallService>(gate, /*lineage=*/"");
  service->AddStream(
      "Show", [=](Peer peer) { return GatedCall::Begin(std::make_shared<ShowCall>(rebuild, gate, std::move(peer))); });
  service->Add<v1::SiteMessage, v1::CoordinatorMessage>(
      "Control",
      [=](const Peer& peer, const v1::SiteMessage& message, v1::CoordinatorMessage& answer) {
        return AnswerJoin(gate, peer, message, answer);
      },
      core::kMaxControlMessageBytes);
  service->Add<v1::DescribeRequest, v1::RunDescription>(
      "Describe", [=](const Peer& peer, const v1::DescribeRequest& request, v1::RunDescription& description) {
        RETURN_IF_ERROR(gate->Question(peer, request.context().site()));
        if (request.who_leads() && leads) {
          description = *leads;
          return absl::OkStatus();
        }
        // Not UNAVAILABLE, as one that cannot be reached: a site that a standby sends away comes here.
        return absl::Status(absl::AbortedError(absl::StrCat(kRebuilds, ": ", rebuild->Progress())));
      });
  service->Add<v1::FollowMessage, v1::MembershipUpdate>(  // to a shard that wants to follow: retry later
      "Follow", [](const Peer&, const v1::FollowMessage&, v1::MembershipUpdate&) {
        return absl::Status(absl::UnavailableError(kRebuilds));
      });
  return service;
}

}  // namespace causeway::server
