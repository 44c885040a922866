#include "worker/ranks/rendezvous.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>

#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "causeway/v1/ranks.grpc.pb.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/thread.h"
#include "worker/ranks/hall.h"
#include "worker/ranks/host_address.h"

namespace causeway::worker {
namespace {

constexpr std::chrono::seconds kLongestRead{5};  // of an answer, by a rank that lives
constexpr std::chrono::milliseconds kTryAgain{200};
constexpr int kMostMessageBytes = 1 << 20;
constexpr int kThreadsBeside = 4;  // of the server

class RendezvousOfRank0 final : public Rendezvous {
 public:
  explicit RendezvousOfRank0(const MeetOptions& options)
      : Rendezvous(options), hall_(options.place.world, options.key) {}

  ~RendezvousOfRank0() override {
    if (server_ != nullptr) server_->Shutdown(core::SystemClock().Calendar() + kLongestRead);
  }

  absl::Status Listen() {
    const RankPlace& place = options_.place;
    ASSIGN_OR_RETURN(const std::string address, ListenAddress(place.rendezvous));
    grpc::ServerBuilder builder;
    builder.RegisterService(&hall_);
    builder.SetMaxReceiveMessageSize(kMostMessageBytes);
    builder.SetResourceQuota(
        grpc::ResourceQuota("ranks").SetMaxThreads(kThreadsBeside + (Hall::kStrangersPerRank + 1) * place.world));
    int port = 0;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    server_ = builder.BuildAndStart();
    if (server_ != nullptr) return absl::OkStatus();
    return absl::UnavailableError(
        absl::StrCat("rank 0 cannot listen at ", address, " (", place.rendezvous, ", from ", place.source, ")"));
  }

 private:
  absl::Status Send(const v1::MeetRequest& request, v1::MeetReply& reply) override {
    return hall_.Meet(request, std::chrono::nanoseconds(static_cast<int64_t>(options_.timeout_s * 1e9)), reply);
  }

  Hall hall_;
  std::unique_ptr<grpc::Server> server_;
};

class RendezvousOfOther final : public Rendezvous {
 public:
  explicit RendezvousOfOther(const MeetOptions& options) : Rendezvous(options) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    arguments.SetMaxReceiveMessageSize(-1);
    stub_ = v1::Rendezvous::NewStub(
        grpc::CreateCustomChannel(options.place.rendezvous, grpc::InsecureChannelCredentials(), arguments));
  }

 private:
  absl::Status Send(const v1::MeetRequest& request, v1::MeetReply& reply) override {
    const auto until =
        core::SystemClock().Calendar() + std::chrono::milliseconds(static_cast<int64_t>(options_.timeout_s * 1000));
    while (true) {
      const std::optional<absl::Status> met = SendOnce(until, request, reply);
      if (met) return *met;
      core::SleepUntil(core::SystemClock().Now() + kTryAgain);  // strangers hold all places
    }
  }

  std::optional<absl::Status> SendOnce(std::chrono::system_clock::time_point until, const v1::MeetRequest& request,
                                       v1::MeetReply& reply);

  std::unique_ptr<v1::Rendezvous::Stub> stub_;
};

// Nothing: rank 0 had no place for one more that has not proven the key.
std::optional<absl::Status> RendezvousOfOther::SendOnce(std::chrono::system_clock::time_point until,
                                                        const v1::MeetRequest& request, v1::MeetReply& reply) {
  const RankPlace& place = options_.place;
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(until);
  const auto stream = stub_->Meet(&context);
  v1::MeetMessage message;
  message.set_nonce(NewNonce());
  stream->Write(message);
  bool answered = stream->Read(&reply);
  const std::string challenge = message.nonce() + reply.nonce();
  if (answered && !options_.key.IsProven(kRank0Role, challenge, reply.proof())) {
    context.TryCancel();
    (void)stream->Finish();
    return absl::InvalidArgumentError(absl::StrCat("expected rank 0 at ", place.rendezvous,
                                                   " to know the ranks' key, got one that does not: give "
                                                   "all ranks the same ",
                                                   kRankKeyVariable, " or --rendezvous_key_file"));
  }
  if (answered) {
    message.clear_nonce();
    message.set_request(request.SerializeAsString());
    message.set_proof(options_.key.Prove(kRankRole, challenge + message.request()));
    stream->Write(message);
    answered = stream->Read(&reply);
  }
  stream->WritesDone();
  const grpc::Status status = stream->Finish();
  if (answered) return absl::Status(static_cast<absl::StatusCode>(reply.code()), reply.message());
  if (status.ok()) return absl::UnavailableError("rank 0 ended before all ranks had come");
  if (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED) return std::nullopt;
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return absl::DeadlineExceededError(absl::StrFormat("expected rank 0 of %d at %s within %.1f s, got no answer",
                                                       place.world, place.rendezvous, options_.timeout_s));
  }
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Rendezvous>> Rendezvous::Open(const MeetOptions& options) {
  if (options.place.rank != 0) return std::make_unique<RendezvousOfOther>(options);
  auto rank0 = std::make_unique<RendezvousOfRank0>(options);
  RETURN_IF_ERROR(rank0->Listen());
  return rank0;
}

absl::StatusOr<std::vector<RankContact>> Rendezvous::Meet(const RankContact& mine) {
  v1::MeetRequest request;
  request.set_rank(options_.place.rank);
  request.set_world(options_.place.world);
  request.set_host(mine.host);
  request.set_identity(options_.identity);
  request.set_addresses(mine.addresses);
  request.set_meeting(meetings_++);
  v1::MeetReply reply;
  RETURN_IF_ERROR(Send(request, reply));
  std::vector<RankContact> contacts;
  for (const v1::MeetRequest& rank : reply.ranks()) contacts.push_back({rank.host(), rank.addresses()});
  return contacts;
}

}  // namespace causeway::worker
