#include "worker/ranks/rendezvous.h"

#include <grpcpp/grpcpp.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "causeway/v1/ranks.grpc.pb.h"
#include "core/address.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/mutex.h"

namespace causeway::worker {
namespace {

constexpr std::chrono::seconds kLongestRead{5};  // of an answer, by a rank that lives

std::string Name(const v1::MeetRequest& rank) {
  return absl::StrCat("rank ", rank.rank(), " of ", rank.world(), " (", rank.host(), ")");
}

// Rank 0's side.
class Hall final : public v1::Rendezvous::Service {
 public:
  explicit Hall(int world) : ranks_(world) {}

  grpc::Status Meet(grpc::ServerContext* context,
                    grpc::ServerReaderWriter<v1::MeetReply, v1::MeetRequest>* stream) override {
    v1::MeetRequest request;
    if (!stream->Read(&request)) return grpc::Status::OK;
    v1::MeetReply reply;
    const absl::Status status = Meet(request, context->deadline() - core::SystemClock().Calendar(), reply);
    reply.set_code(static_cast<int>(status.code()));
    reply.set_message(std::string(status.message()));
    stream->Write(reply);
    // A connection that this side closes first may break under what the caller still writes, before it has read.
    while (stream->Read(&request)) continue;
    return grpc::Status::OK;
  }

  absl::Status Meet(const v1::MeetRequest& request, std::chrono::nanoseconds timeout, v1::MeetReply& reply) {
    core::MutexLock lock(mutex_);
    if (over_.ok()) over_ = Enter(request);
    changed_.NotifyAll();
    const bool all = lock.WaitFor(changed_, timeout, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return !over_.ok() || here_ == ranks_.size();
    });
    if (all && over_.ok()) {
      for (const auto& rank : ranks_) *reply.add_ranks() = *rank;
      return absl::OkStatus();
    }
    if (over_.ok()) over_ = Missing(timeout);
    changed_.NotifyAll();
    return over_;
  }

 private:
  absl::Status Enter(const v1::MeetRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const int world = static_cast<int>(ranks_.size());
    if (request.world() != world || request.rank() < 0 || request.rank() >= world) {
      return absl::InvalidArgumentError(
          absl::StrCat("expected ranks of a world of ", world, ", as rank 0 is, got ", Name(request)));
    }
    std::optional<v1::MeetRequest>& place = ranks_[request.rank()];
    if (place) {
      return absl::InvalidArgumentError(absl::StrCat("expected each rank once, got ", Name(*place), " and ",
                                                     Name(request), ": does another site meet at the same address?"));
    }
    for (const auto& other : ranks_) {
      if (!other || other->identity() == request.identity()) continue;
      return absl::InvalidArgumentError(absl::StrCat("expected all ranks alike, got ", Name(*other), " with ",
                                                     other->identity(), " and ", Name(request), " with ",
                                                     request.identity()));
    }
    place = request;
    ++here_;
    return absl::OkStatus();
  }

  absl::Status Missing(std::chrono::nanoseconds timeout) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::string missing;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (!ranks_[rank]) absl::StrAppend(&missing, missing.empty() ? "" : ", ", rank);
    }
    return absl::DeadlineExceededError(absl::StrFormat("expected %d ranks within %.1f s, got %d: rank %s has not come",
                                                       ranks_.size(), std::chrono::duration<double>(timeout).count(),
                                                       here_, missing));
  }

  core::Mutex mutex_;
  core::Condition changed_;
  std::vector<std::optional<v1::MeetRequest>> ranks_ ABSL_GUARDED_BY(mutex_);
  size_t here_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status over_ ABSL_GUARDED_BY(mutex_);  // why it failed, for all ranks
};

absl::Status MeetAtRank0(const MeetOptions& options, const v1::MeetRequest& request, v1::MeetReply& reply) {
  Hall hall(options.place.world);
  grpc::ServerBuilder builder;
  builder.RegisterService(&hall);
  builder.SetMaxReceiveMessageSize(-1);
  std::string address = options.place.rendezvous;
  int port = 0;
  if (!address.starts_with("unix:")) address = "0.0.0.0" + address.substr(address.rfind(':'));
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) {
    return absl::UnavailableError(absl::StrCat("rank 0 cannot listen at ", address, " (", options.place.rendezvous,
                                               ", from ", options.place.source, ")"));
  }
  const absl::Status met =
      hall.Meet(request, std::chrono::nanoseconds(static_cast<int64_t>(options.timeout_s * 1e9)), reply);
  server->Shutdown(core::SystemClock().Calendar() + kLongestRead);  // returns when the others have read their answers
  return met;
}

absl::Status MeetFrom(const MeetOptions& options, const v1::MeetRequest& request, v1::MeetReply& reply) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(-1);
  const auto channel =
      grpc::CreateCustomChannel(options.place.rendezvous, grpc::InsecureChannelCredentials(), arguments);
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(core::SystemClock().Calendar() +
                       std::chrono::milliseconds(static_cast<int64_t>(options.timeout_s * 1000)));
  const auto stub = v1::Rendezvous::NewStub(channel);
  const auto stream = stub->Meet(&context);
  stream->Write(request);
  const bool answered = stream->Read(&reply);
  stream->WritesDone();
  const grpc::Status status = stream->Finish();
  if (answered) return {static_cast<absl::StatusCode>(reply.code()), reply.message()};
  if (status.ok()) return absl::UnavailableError("rank 0 ended before all ranks had come");
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return absl::DeadlineExceededError(absl::StrFormat("expected rank 0 of %d at %s within %.1f s, got no answer",
                                                       options.place.world, options.place.rendezvous,
                                                       options.timeout_s));
  }
  return {static_cast<absl::StatusCode>(status.error_code()), status.error_message()};
}

std::string Text(const sockaddr* address) {
  char text[NI_MAXHOST] = "";
  const socklen_t size = address->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  getnameinfo(address, size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  return text;
}

bool IsLoopback(const std::string& address) { return address.starts_with("127.") || address == "::1"; }

// The first address of this host that others may be able to reach; Debian's /etc/hosts maps the host's own name to
// 127.0.1.1.
std::string FirstAddress() {
  std::string found;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return found;
  for (const ifaddrs* one = all; one != nullptr && found.empty(); one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    if (const std::string text = Text(one->ifa_addr); !IsLoopback(text)) found = text;
  }
  freeifaddrs(all);
  return found;
}

}  // namespace

std::string HostName() {
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  return name;
}

absl::StatusOr<std::string> OwnAddress(const std::string& rendezvous) {
  if (rendezvous.starts_with("unix:")) return "127.0.0.1";
  ASSIGN_OR_RETURN(const core::Address meeting, core::ParseAddress("--rendezvous", rendezvous));
  if (meeting.IsLoopback()) return "127.0.0.1";
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;  // connecting one sends nothing
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(meeting.host.c_str(), std::to_string(meeting.port).c_str(), &hints, &found);
      error != 0) {
    return absl::InvalidArgumentError(absl::StrCat("--rendezvous: expected a host that can be looked up, got ",
                                                   rendezvous, ": ", gai_strerror(error)));
  }
  std::string own;
  const int socket = ::socket(found->ai_family, SOCK_DGRAM, 0);
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  if (socket >= 0 && connect(socket, found->ai_addr, found->ai_addrlen) == 0 &&
      getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0) {
    own = Text(reinterpret_cast<const sockaddr*>(&address));
  }
  if (socket >= 0) close(socket);
  freeaddrinfo(found);
  if (own.empty() || IsLoopback(own)) own = FirstAddress();
  return own.empty() ? "127.0.0.1" : own;
}

absl::StatusOr<std::vector<RankContact>> MeetRanks(const MeetOptions& options, const RankContact& mine) {
  v1::MeetRequest request;
  request.set_rank(options.place.rank);
  request.set_world(options.place.world);
  request.set_host(mine.host);
  request.set_identity(options.identity);
  request.set_addresses(mine.addresses);
  v1::MeetReply reply;
  RETURN_IF_ERROR(options.place.rank == 0 ? MeetAtRank0(options, request, reply) : MeetFrom(options, request, reply));
  std::vector<RankContact> contacts;
  for (const v1::MeetRequest& rank : reply.ranks()) contacts.push_back({rank.host(), rank.addresses()});
  return contacts;
}

}  // namespace causeway::worker
