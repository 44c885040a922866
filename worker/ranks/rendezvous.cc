#include "worker/ranks/rendezvous.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <map>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "causeway/v1/ranks.grpc.pb.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "core/text.h"
#include "core/thread.h"
#include "worker/ranks/host_address.h"

namespace causeway::worker {

// Rank 0's side of the rendezvous (worker/ranks/rendezvous.h): a service that only the ranks of a site enter.
//
//   nonce ─► ◄─ nonce, rank 0's proof;  request, the rank's proof ─► … all have come? ◄─ all requests, or why not
//
// Those who have not proven the key are strangers: four for each rank at once, each for 5 s and with messages of 1 MB
// at most; where all places are taken, the one who has said nothing for longest goes, of the address that has most
// (ranks behind one address may share it). One that fails is refused alone, with a line in the log. After a meeting the
// next one begins; after one that failed, all fail. Thread-safe.
inline constexpr char kRank0Role[] = "rank 0";  // of proofs
inline constexpr char kRankRole[] = "rank";

class Hall final : public v1::Rendezvous::Service {
 public:
  static constexpr int kStrangersPerRank = 4;
  static constexpr std::chrono::seconds kLongestStranger{5};

  Hall(int world, RankKey key);
  ~Hall() override;

  grpc::Status Meet(grpc::ServerContext* context,
                    grpc::ServerReaderWriter<v1::MeetReply, v1::MeetMessage>* stream) override;

  // As rank 0 itself. Statuses as Rendezvous::Meet.
  absl::Status Meet(const v1::MeetRequest& request, std::chrono::nanoseconds timeout, v1::MeetReply& reply);

 private:
  struct Meeting {
    explicit Meeting(size_t world, int number) : number(number), ranks(world) {}

    const int number;
    std::vector<std::optional<v1::MeetRequest>> ranks;
    size_t here = 0;
    absl::Status failure;  // for all of them

    bool is_over() const { return !failure.ok() || here == ranks.size(); }
  };

  struct Stranger {
    std::string address;  // without the port
    core::Clock::TimePoint until;
    bool silent = true;
  };

  bool IsRank(grpc::ServerContext* context, grpc::ServerReaderWriter<v1::MeetReply, v1::MeetMessage>& stream,
              v1::MeetRequest& request);
  bool Arrive(grpc::ServerContext* context, const std::string& caller);
  bool MakeRoom() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Leave(grpc::ServerContext* context);
  void EndLateStrangers();
  static absl::Status Enter(Meeting& meeting, const v1::MeetRequest& request);
  static absl::Status Missing(const Meeting& meeting, std::chrono::nanoseconds timeout);

  const RankKey key_;
  core::Mutex mutex_;
  core::Condition changed_;
  std::map<grpc::ServerContext*, Stranger> strangers_ ABSL_GUARDED_BY(mutex_);
  bool closes_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<Meeting> meeting_ ABSL_GUARDED_BY(mutex_);
  core::Thread watcher_;  // uses everything above
};

namespace {

constexpr std::chrono::milliseconds kLookAtStrangers{250};

std::string Name(const v1::MeetRequest& rank) {
  return absl::StrCat("rank ", rank.rank(), " of ", rank.world(), " (", core::InOneLine(rank.host()), ")");
}

}  // namespace

Hall::Hall(int world, RankKey key)
    : key_(std::move(key)), meeting_(std::make_shared<Meeting>(world, 0)), watcher_([this] { EndLateStrangers(); }) {}

Hall::~Hall() {
  {
    core::MutexLock lock(mutex_);
    closes_ = true;
  }
  changed_.NotifyAll();
  watcher_.Join();
}

grpc::Status Hall::Meet(grpc::ServerContext* context,
                        grpc::ServerReaderWriter<v1::MeetReply, v1::MeetMessage>* stream) {
  v1::MeetRequest request;
  const std::string caller = context->peer();  // of one that is cancelled it is unknown
  if (!Arrive(context, caller)) return {grpc::StatusCode::RESOURCE_EXHAUSTED, "too many that have not proven the key"};
  const bool proven = IsRank(context, *stream, request);
  Leave(context);
  if (!proven) {
    spdlog::warn("rank 0: {} was refused: it does not know the ranks' key", caller);
    return {grpc::StatusCode::UNAUTHENTICATED, "the site's ranks have another key"};
  }
  v1::MeetReply reply;
  const absl::Status status = Meet(request, context->deadline() - core::SystemClock().Calendar(), reply);
  reply.set_code(static_cast<int>(status.code()));
  reply.set_message(std::string(status.message()));
  stream->Write(reply);
  // A connection that this side closes first may break under what the caller still writes, before it has read.
  v1::MeetMessage more;
  while (stream->Read(&more)) continue;
  return grpc::Status::OK;
}

absl::Status Hall::Meet(const v1::MeetRequest& request, std::chrono::nanoseconds timeout, v1::MeetReply& reply) {
  core::MutexLock lock(mutex_);
  const std::shared_ptr<Meeting> meeting = meeting_;
  if (meeting->failure.ok()) meeting->failure = Enter(*meeting, request);
  if (meeting->failure.ok() && meeting->is_over()) {
    meeting_ = std::make_shared<Meeting>(meeting->ranks.size(), meeting->number + 1);
  }
  changed_.NotifyAll();
  lock.WaitFor(changed_, timeout, [&] { return meeting->is_over(); });
  if (!meeting->is_over()) meeting->failure = Missing(*meeting, timeout);
  changed_.NotifyAll();
  RETURN_IF_ERROR(meeting->failure);
  for (const auto& rank : meeting->ranks) *reply.add_ranks() = *rank;
  return absl::OkStatus();
}

bool Hall::IsRank(grpc::ServerContext* context, grpc::ServerReaderWriter<v1::MeetReply, v1::MeetMessage>& stream,
                  v1::MeetRequest& request) {
  v1::MeetMessage message;
  if (!stream.Read(&message)) return false;
  {
    const core::MutexLock lock(mutex_);
    if (const auto stranger = strangers_.find(context); stranger != strangers_.end()) stranger->second.silent = false;
  }
  v1::MeetReply own;
  own.set_nonce(NewNonce());
  const std::string challenge = message.nonce() + own.nonce();
  own.set_proof(key_.Prove(kRank0Role, challenge));
  if (!stream.Write(own) || !stream.Read(&message)) return false;
  return key_.IsProven(kRankRole, challenge + message.request(), message.proof()) &&
         request.ParseFromString(message.request());
}

bool Hall::Arrive(grpc::ServerContext* context, const std::string& caller) {
  core::MutexLock lock(mutex_);
  if (strangers_.size() >= kStrangersPerRank * meeting_->ranks.size() && !MakeRoom()) return false;
  strangers_[context] = {.address = caller.substr(0, caller.rfind(':')),
                         .until = core::SystemClock().Now() + kLongestStranger};
  return true;
}

// Its call ends, and no longer counts.
bool Hall::MakeRoom() {
  std::map<std::string, int> of_address;
  for (const auto& [context, stranger] : strangers_) ++of_address[stranger.address];
  auto longest = strangers_.end();
  for (auto one = strangers_.begin(); one != strangers_.end(); ++one) {
    if (!one->second.silent) continue;
    const auto rank = [&](const Stranger& stranger) {
      return std::pair(-of_address[stranger.address], stranger.until);
    };
    if (longest == strangers_.end() || rank(one->second) < rank(longest->second)) longest = one;
  }
  if (longest == strangers_.end()) return false;
  longest->first->TryCancel();
  strangers_.erase(longest);
  return true;
}

void Hall::Leave(grpc::ServerContext* context) {
  core::MutexLock lock(mutex_);
  strangers_.erase(context);
}

void Hall::EndLateStrangers() {
  core::MutexLock lock(mutex_);
  while (!closes_) {
    lock.WaitFor(changed_, kLookAtStrangers, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return closes_; });
    const core::Clock::TimePoint now = core::SystemClock().Now();
    for (const auto& [context, stranger] : strangers_) {
      if (stranger.until <= now) context->TryCancel();
    }
  }
}

absl::Status Hall::Enter(Meeting& meeting, const v1::MeetRequest& request) {
  const int world = static_cast<int>(meeting.ranks.size());
  if (request.world() != world || request.rank() < 0 || request.rank() >= world) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected a world of ", world, " ranks, as rank 0 has, got ", Name(request)));
  }
  if (request.meeting() != meeting.number) {
    return absl::InvalidArgumentError(absl::StrCat(
        Name(request), " has started anew while the others connect: expected all ranks to start together"));
  }
  std::optional<v1::MeetRequest>& place = meeting.ranks[request.rank()];
  if (place) {
    return absl::InvalidArgumentError(absl::StrCat("expected each rank once, got ", Name(*place), " and ",
                                                   Name(request), ": does another site meet at the same address?"));
  }
  for (const auto& other : meeting.ranks) {
    if (!other || other->identity() == request.identity()) continue;
    return absl::InvalidArgumentError(absl::StrCat("expected all ranks alike, got ", Name(*other), " with ",
                                                   core::InOneLine(other->identity()), " and ", Name(request), " with ",
                                                   core::InOneLine(request.identity())));
  }
  place = request;
  ++meeting.here;
  return absl::OkStatus();
}

absl::Status Hall::Missing(const Meeting& meeting, std::chrono::nanoseconds timeout) {
  std::string missing;
  for (size_t rank = 0; rank < meeting.ranks.size(); ++rank) {
    if (!meeting.ranks[rank]) absl::StrAppend(&missing, missing.empty() ? "" : ", ", rank);
  }
  return absl::DeadlineExceededError(
      absl::StrFormat("expected %d ranks within %.1f s, got %d: rank %s has not come", meeting.ranks.size(),
                      std::chrono::duration<double>(timeout).count(), meeting.here, missing));
}

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
