#include "server/calls/listening_server.h"

#include <fcntl.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_builder.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "causeway/v1/coordinator.grpc.pb.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/listen_failure.h"
#include "transport/channel.h"
#include "transport/first_address.h"

namespace causeway::server {
namespace {

constexpr auto kShutdownGrace = std::chrono::milliseconds(200);
constexpr auto kSayAgain = std::chrono::minutes(1);
constexpr auto kLookAgain = std::chrono::milliseconds(50);
constexpr int kReflectionThreads = 8;  // each open reflection stream has one; any peer that may connect may use it

// A socket that listens there, for both families where that is any address; closed if it cannot be had.
formats::FileDescriptor ListenAt(const addrinfo& at, bool both) {
  formats::FileDescriptor listener(
      ::socket(at.ai_family, at.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, at.ai_protocol));
  const int yes = 1, no = both ? 0 : 1;
  if (!listener.is_open()) return listener;
  ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (at.ai_family == AF_INET6) ::setsockopt(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
  const bool listens =
      ::bind(listener.get(), at.ai_addr, at.ai_addrlen) == 0 && ::listen(listener.get(), SOMAXCONN) == 0;
  return listens ? std::move(listener) : formats::FileDescriptor();
}

int PortOf(const formats::FileDescriptor& listener) {
  sockaddr_storage bound = {};
  socklen_t bytes = sizeof(bound);
  char port[NI_MAXSERV] = "0";
  if (::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&bound), &bytes) == 0)
    ::getnameinfo(reinterpret_cast<sockaddr*>(&bound), bytes, nullptr, 0, port, sizeof(port), NI_NUMERICSERV);
  return std::atoi(port);
}

// Its first bytes, which come with the connection, are version 1's or 2's line of haproxy's proxy-protocol.txt: gRPC
// would end it without a word.
bool BeginsWithProxyLine(int connection) {
  constexpr int kComesWithinMs = 1;
  constexpr std::string_view kFirst = "PROXY ", kSecond{"\r\n\r\n\0\r\nQUIT\n", 12};
  pollfd polled = {.fd = connection, .events = POLLIN, .revents = 0};
  if (::poll(&polled, 1, kComesWithinMs) != 1) return false;
  char bytes[kSecond.size()];
  const ssize_t got = ::recv(connection, bytes, sizeof(bytes), MSG_PEEK | MSG_DONTWAIT);
  const std::string_view text(bytes, static_cast<size_t>(std::max<ssize_t>(0, got)));
  return text.starts_with(kFirst) || text.starts_with(kSecond);
}

std::string PeerOf(int connection) {
  sockaddr_storage peer = {};
  socklen_t bytes = sizeof(peer);
  char host[NI_MAXHOST] = "?";
  if (::getpeername(connection, reinterpret_cast<sockaddr*>(&peer), &bytes) == 0)
    ::getnameinfo(reinterpret_cast<sockaddr*>(&peer), bytes, host, sizeof(host), nullptr, 0, NI_NUMERICHOST);
  return host;
}

// The kernel gives the lowest number that is free.
int64_t DescriptorsLeft() {
  rlimit limit = {};
  const formats::FileDescriptor lowest(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0));
  if (!lowest.is_open() || ::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  return static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, INT32_MAX)) - lowest.get();
}

}  // namespace

// At the addresses of the host's name that can be had, on one port.
ListeningServer::Sockets ListeningServer::Listen(core::Address& address) {
  Sockets sockets;
  const bool any = address.host == "0.0.0.0" || address.host == "::";
  const addrinfo hints = {.ai_flags = AI_PASSIVE, .ai_socktype = SOCK_STREAM};
  for (const std::string& host : any ? std::vector<std::string>{"::", "0.0.0.0"} : std::vector{address.host}) {
    addrinfo* found = nullptr;
    int port = address.port;
    if (::getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &found) != 0) continue;
    for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
      if (at->ai_family == AF_INET)
        reinterpret_cast<sockaddr_in*>(at->ai_addr)->sin_port = htons(static_cast<uint16_t>(port));
      if (at->ai_family == AF_INET6)
        reinterpret_cast<sockaddr_in6*>(at->ai_addr)->sin6_port = htons(static_cast<uint16_t>(port));
      formats::FileDescriptor listener = ListenAt(*at, any);
      if (!listener.is_open()) continue;
      port = PortOf(listener);
      sockets.push_back(std::move(listener));
    }
    ::freeaddrinfo(found);
    if (sockets.empty()) continue;
    address.port = port;
    break;
  }
  return sockets;
}

void ListeningServer::Accept() {
  std::vector<pollfd> polled;
  for (const auto& socket : sockets_) polled.push_back({.fd = socket.get(), .events = POLLIN});
  const int64_t kept = std::min<int64_t>(kDescriptorsKept, DescriptorsLeft() / 4);
  std::optional<core::Clock::TimePoint> told;
  bool told_of_proxy = false;
  while (::poll(polled.data(), polled.size(), -1) >= 0 || errno == EINTR) {
    if (DescriptorsLeft() <= kept) {
      const core::Clock::TimePoint now = core::SystemClock().Now();
      if (!told || now - *told > kSayAgain) {
        told = now;
        spdlog::warn("ulimit -n leaves {} descriptors, for the state: callers wait until connections end", kept);
      }
      core::SleepUntil(now + kLookAgain);
      if (closes_) return;
      continue;
    }
    for (const pollfd& one : polled) {
      if ((one.revents & (POLLHUP | POLLNVAL)) != 0) return;  // the destructor has shut it down
      if ((one.revents & POLLIN) == 0) continue;
      const int connection = ::accept4(one.fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (connection < 0) continue;
      if (BeginsWithProxyLine(connection)) {
        if (!std::exchange(told_of_proxy, true)) {
          spdlog::error(
              "a connection from {} begins with the PROXY protocol, which the coordinator does not speak: turn it off "
              "at the proxy or load balancer in front (haproxy: send-proxy, nginx: proxy_protocol). Such connections "
              "are closed",
              PeerOf(connection));
        }
        ::close(connection);
        continue;
      }
      const int yes = 1;
      ::setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
      grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters made;
      made.listener_fd = one.fd;
      made.fd = connection;
      acceptor_->HandleNewConnection(&made);
    }
  }
}

absl::StatusOr<std::unique_ptr<ListeningServer>> ListeningServer::Start(CallService& service, int64_t fragments,
                                                                        core::Address& address,
                                                                        const transport::TlsFiles& tls) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  transport::ConfigureServer(builder, static_cast<int>(fragments));
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);  // for reflection only; other calls never block
  // No memory quota: with one of 512 MB, gRPC 1.51 held 3.8 GB of partly received messages, and 0.9 GB without.
  builder.SetResourceQuota(grpc::ResourceQuota("reflection").SetMaxThreads(kReflectionThreads));
  std::unique_ptr<ListeningServer> server(new ListeningServer(Listen(address)));
  if (server->sockets_.empty()) {
    return absl::UnavailableError("--listen: " + core::WhyNotListening(address.host, address.port));
  }
  server->acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      tls.given() ? transport::TlsServerCredentials(tls) : grpc::InsecureServerCredentials());
  service.Register(builder);
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr) return absl::UnavailableError("--listen: gRPC's server does not start");
  server->server_->GetHealthCheckService()->SetServingStatus(v1::Coordinator::service_full_name(), true);
  server->thread_ = core::Thread([accepts = server.get()] { accepts->Accept(); });
  return server;
}

ListeningServer::~ListeningServer() {
  closes_ = true;
  for (const auto& socket : sockets_) ::shutdown(socket.get(), SHUT_RDWR);
  if (!thread_.joinable()) return;  // it could not be started
  thread_.Join();
  server_->Shutdown(core::SystemClock().Calendar() + kShutdownGrace);
  server_->Wait();
}

namespace {

absl::Status ReadShard(const ListeningFlags& flags, Listening& listening) {
  const std::vector<std::string> parts = absl::StrSplit(flags.shard, '/');
  core::Shard& shard = listening.shard;
  const bool parsed =
      parts.size() == 2 && absl::SimpleAtoi(parts[0], &shard.index) && absl::SimpleAtoi(parts[1], &shard.count);
  if (!parsed || shard.index < 0 || shard.index >= shard.count) {
    return absl::InvalidArgumentError(absl::StrCat("--shard: expected i/n with i from 0 to n - 1, got ", flags.shard));
  }
  if (shard.leads() != flags.membership.empty()) {
    return absl::InvalidArgumentError(
        shard.leads() ? absl::StrCat("--membership: shard 0 follows no other shard, got ", flags.membership)
                      : absl::StrCat("--membership: expected HOST:PORT of shard 0, which ", shard.Text(), " follows"));
  }
  listening.client = {.insecure = flags.insecure,
                      .tls_ca = flags.tls_ca,
                      .tls_cert = flags.membership_tls_cert,
                      .tls_key = flags.membership_tls_key,
                      .token_file = flags.membership_token_file};
  if (!flags.standby_of.empty()) {
    ASSIGN_OR_RETURN(listening.leader, core::ParseAddress("--standby_of", flags.standby_of));
    if (flags.standby_of == flags.listen || flags.standby_of == flags.advertise) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--standby_of: expected the address of another coordinator, got this one's, ", flags.standby_of));
    }
    RETURN_IF_ERROR(transport::ReadClientFlags(listening.client, *listening.leader).status());
  }
  if (shard.leads()) return absl::OkStatus();
  ASSIGN_OR_RETURN(listening.leads, transport::ParseAddresses("--membership", flags.membership));
  listening.lead = listening.leads.front();
  ASSIGN_OR_RETURN(listening.lead_channel, transport::ReadClientFlags(listening.client, listening.lead));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Listening> ReadListening(const ListeningFlags& flags) {
  Listening listening;
  ASSIGN_OR_RETURN(listening.grpc, core::ParseAddress("--listen", flags.listen));
  ASSIGN_OR_RETURN(listening.http, core::ParseAddress("--http", flags.http));
  RETURN_IF_ERROR(transport::CheckHttpAllowed(listening.http, flags.insecure_http));
  if (!flags.health.empty()) {
    ASSIGN_OR_RETURN(listening.health, core::ParseAddress("--health", flags.health));
  }
  ASSIGN_OR_RETURN(listening.tls, transport::ReadTlsFlags(flags.tls_ca, flags.tls_cert, flags.tls_key));
  RETURN_IF_ERROR(ReadShard(flags, listening));
  if (!flags.advertise.empty()) {
    ASSIGN_OR_RETURN(const core::Address advertised, core::ParseAddress("--advertise", flags.advertise));
    listening.advertised = advertised.Text();
  }
  if (!listening.tls.given()) {
    RETURN_IF_ERROR(transport::CheckPlaintextAllowed(listening.grpc, flags.insecure));
  }
  return listening;
}

}  // namespace causeway::server
