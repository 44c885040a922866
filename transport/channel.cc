#include "transport/channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/client_interceptor.h>
#include <spdlog/spdlog.h>

#include <future>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/limits.h"
#include "transport/grpc_log.h"

namespace causeway::transport {
namespace {

// A link that died silently is noticed after the sum of the two, within the default lease of 10 s.
constexpr int kKeepaliveTimeMs = 5'000;
constexpr int kControlKeepaliveTimeMs = 4'000;
constexpr int kKeepaliveTimeoutMs = 4'000;
// Megabytes of send buffer on a link of 1 Mbit/s. A bulk connection that is dead is found earlier (connection_watch.h).
constexpr int kBulkKeepaliveTimeoutMs = 60'000;

// gRPC's name for it is MIN_RECONNECT_BACKOFF, but it is how long one attempt to connect may take: several round trips
// of the slowest link. A refused connection is tried again after the backoff, not after this.
constexpr int kConnectTimeoutMs = 5'000;

// Puts the token into the headers of every call, over both TLS and plaintext (gRPC's call credentials refuse plaintext,
// which loopback uses).
class TokenInterceptor final : public grpc::experimental::Interceptor {
 public:
  explicit TokenInterceptor(const std::string& value) : value_(value) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    using grpc::experimental::InterceptionHookPoints;
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->emplace("authorization", value_);
    }
    methods->Proceed();
  }

 private:
  const std::string& value_;  // for the factory, which the channel holds
};

class TokenInterceptorFactory final : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  explicit TokenInterceptorFactory(const std::string& token) : value_(absl::StrCat("Bearer ", token)) {}

  grpc::experimental::Interceptor* CreateClientInterceptor(grpc::experimental::ClientRpcInfo*) override {
    return new TokenInterceptor(value_);
  }

 private:
  const std::string value_;
};

// gRPC 1.51 ends the threads of its callbacks with the last channel that has used them. If a callback releases that
// channel, such a thread waits for itself, or uses its queue after its end. So one channel stays for the life of the
// process: it leads nowhere and never connects, because its only call is over before it begins.
void KeepCallbackThreads() {
  static const grpc::GenericStub* const kept = [] {
    auto* stub = new grpc::GenericStub(grpc::CreateChannel("unix:/", grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    context.set_deadline(core::SystemClock().Calendar());
    const grpc::Slice nothing;
    const grpc::ByteBuffer request(&nothing, 1);
    grpc::ByteBuffer response;
    std::promise<void> over;
    stub->UnaryCall(&context, "/", {}, &request, &response, [&](const grpc::Status&) { over.set_value(); });
    over.get_future().wait();
    return stub;
  }();
  CHECK(kept != nullptr);
}

// As gRPC's own reading of http_proxy does; the names of these two arguments are not in its headers.
void SendThrough(const Proxy& proxy, const Address& address, grpc::ChannelArguments& arguments) {
  arguments.SetString("grpc.http_connect_server", address.Text());
  if (!proxy.credentials.empty()) {
    arguments.SetString("grpc.http_connect_headers", ProxyHeader(proxy.credentials));
  }
  arguments.SetString(GRPC_ARG_DEFAULT_AUTHORITY, address.Text());  // whose certificate TLS expects
}

// For gRPC. Link-local addresses have a zone, [fe80::1%eth0]:7077, which its resolver of names does not know.
std::string TargetOf(const Address& address) {
  if (address.host.find('%') == std::string::npos) return address.Text();
  return absl::StrCat("ipv6:%5B", absl::StrReplaceAll(address.host, {{"%", "%25"}}), "%5D:", address.port);
}

}  // namespace

absl::Status CheckPlaintextAllowed(const Address& address, bool insecure) {
  if (insecure || address.IsLoopback()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(address.Text(),
                   " is not a loopback address, and traffic is not encrypted; give --tls_ca, --tls_cert and --tls_key "
                   "(deploy/certs makes them), or say --insecure if the network is yours"));
}

absl::Status CheckHttpAllowed(const Address& address, bool insecure_http) {
  if (insecure_http || address.IsLoopback()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--http: ", address.Text(),
                   " is not a loopback address, and the status page has no password; let a proxy on this machine ask "
                   "for one, or say --insecure_http if the network is yours"));
}

absl::StatusOr<ChannelOptions> ReadClientFlags(const ClientFlags& flags, const Address& address) {
  ChannelOptions options{.insecure = flags.insecure};
  ASSIGN_OR_RETURN(options.tls, ReadTlsFlags(flags.tls_ca, flags.tls_cert, flags.tls_key));
  if (!options.tls.given()) RETURN_IF_ERROR(CheckPlaintextAllowed(address, flags.insecure));
  if (flags.use_proxy) {
    ASSIGN_OR_RETURN(options.proxy, FindProxy(address, core::ProcessEnvironment));
    spdlog::info("reaches {} {}", address.Text(),
                 options.proxy
                     ? absl::StrCat("by the proxy ", options.proxy->address.Text(), " of ", options.proxy->source)
                     : "directly, because no_proxy has it");
  }
  if (flags.token_file.empty()) return options;
  ASSIGN_OR_RETURN(options.token, ReadToken(flags.token_file));
  return options;
}

std::shared_ptr<grpc::Channel> MakeChannel(const Address& address, const ChannelOptions& options, Traffic traffic,
                                           const std::optional<Address>& at) {
  RouteGrpcLog();
  KeepCallbackThreads();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // ours is below
  if (options.proxy) SendThrough(*options.proxy, address, arguments);
  if (at) arguments.SetString(GRPC_ARG_DEFAULT_AUTHORITY, address.Text());  // whose certificate TLS expects
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, static_cast<int>(core::kFirstBackoffMs));
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectTimeoutMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, static_cast<int>(core::kLastBackoffMs));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS,
                   traffic == Traffic::kControl ? kControlKeepaliveTimeMs : kKeepaliveTimeMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                   traffic == Traffic::kControl ? kKeepaliveTimeoutMs : kBulkKeepaliveTimeoutMs);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetMaxReceiveMessageSize(core::kMaxControlMessageBytes);
  arguments.SetMaxSendMessageSize(core::kMaxControlMessageBytes);
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> interceptors;
  interceptors.push_back(WatchAnswers(options.answers));
  if (!options.token.empty()) interceptors.push_back(std::make_unique<TokenInterceptorFactory>(options.token));
  return grpc::experimental::CreateCustomChannelWithInterceptors(
      TargetOf(options.proxy ? options.proxy->address : at.value_or(address)),
      options.tls.given() ? TlsChannelCredentials(options.tls, options.tls_reload_s)
                          : grpc::InsecureChannelCredentials(),
      arguments, std::move(interceptors));
}

void ConfigureServer(grpc::ServerBuilder& builder, int fragments) {
  RouteGrpcLog();
  builder.SetMaxReceiveMessageSize(core::kMaxControlMessageBytes);
  builder.SetMaxSendMessageSize(core::kMaxControlMessageBytes);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kBulkKeepaliveTimeoutMs);  // leases detect lost sites
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kKeepaliveTimeMs / 2);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, core::kHandshakeTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, core::MaxStreamsPerConnection(fragments));
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, core::kMaxMetadataBytes);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // a second coordinator on the port is an error
}

}  // namespace causeway::transport
