#include "transport/channel.h"

#include <arpa/inet.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/client_interceptor.h>
#include <spdlog/spdlog.h>

#include <future>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/text.h"
#include "transport/grpc_log.h"

namespace causeway::transport {
namespace {

constexpr const char* kProxyVariables[] = {"grpc_proxy", "https_proxy", "HTTPS_PROXY", "http_proxy",
                                           "HTTP_PROXY", "all_proxy",   "ALL_PROXY"};
constexpr const char* kDirectVariables[] = {"no_grpc_proxy", "no_proxy", "NO_PROXY"};

// The first of the variables that is set to something.
template <size_t kCount>
std::pair<std::string, std::string> FirstSet(const char* const (&names)[kCount], const core::Environment& environment) {
  for (const char* const name : names) {
    const std::string value(absl::StripAsciiWhitespace(environment(name).value_or("")));
    if (!value.empty()) return {name, value};
  }
  return {};
}

// %40 is '@'; what is no such code stays.
std::string PercentDecoded(absl::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool code =
        text[i] == '%' && i + 2 < text.size() && absl::ascii_isxdigit(text[i + 1]) && absl::ascii_isxdigit(text[i + 2]);
    decoded += code ? absl::HexStringToBytes(text.substr(i + 1, 2)) : std::string(1, text[i]);
    if (code) i += 2;
  }
  return decoded;
}

// The bytes of an IPv4 or IPv6 address; empty for a name.
std::string AddressBytes(const std::string& host) {
  char bytes[sizeof(in6_addr)];
  if (inet_pton(AF_INET, host.c_str(), bytes) == 1) return {bytes, sizeof(in_addr)};
  if (inet_pton(AF_INET6, host.c_str(), bytes) == 1) return {bytes, sizeof(in6_addr)};
  return "";
}

// "10.0.0.0/8"
bool IsInNetwork(const std::string& host, absl::string_view network) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(network, absl::MaxSplits('/', 1));
  const std::string bytes = AddressBytes(host), base = AddressBytes(parts.first);
  size_t bits = 0;
  if (bytes.empty() || bytes.size() != base.size() || !absl::SimpleAtoi(parts.second, &bits)) return false;
  if (bits > 8 * bytes.size()) return false;
  for (size_t bit = 0; bit < bits; ++bit) {
    const int mask = 0x80 >> (bit % 8);
    if (((bytes[bit / 8] ^ base[bit / 8]) & mask) != 0) return false;
  }
  return true;
}

// An entry of no_proxy: "*", a host, a domain with all hosts in it (".example.com" or "example.com"), an address or a
// network, each but a network with a port or without.
bool Covers(absl::string_view entry, const core::Address& coordinator) {
  if (entry == "*") return true;
  if (IsInNetwork(coordinator.host, entry)) return true;
  std::string host(entry);
  if (const auto with_port = core::ParseAddress("no_proxy", host); with_port.ok()) {
    if (with_port->port != coordinator.port) return false;
    host = with_port->host;
  }
  absl::string_view name = host;
  if (absl::ConsumePrefix(&name, "[")) absl::ConsumeSuffix(&name, "]");
  absl::ConsumePrefix(&name, "*");
  absl::ConsumePrefix(&name, ".");
  if (name.empty()) return false;
  return absl::EqualsIgnoreCase(coordinator.host, name) ||
         absl::EndsWithIgnoreCase(coordinator.host, absl::StrCat(".", name));
}

// "http://user:password@proxy:3128" as it may be shown.
std::string WithoutPassword(const std::string& value) {
  const size_t scheme = value.find("://"), at = value.rfind('@');
  if (at == std::string::npos) return value;
  return absl::StrCat(scheme == std::string::npos ? "" : value.substr(0, scheme + 3), "…", value.substr(at));
}

absl::StatusOr<Proxy> ParseProxy(const std::string& name, const std::string& value) {
  const auto wrong = [&](const std::string& why) {
    return absl::InvalidArgumentError(absl::StrCat("--use_proxy: ", name,
                                                   ": expected an HTTP proxy, http://[USER:PASSWORD@]HOST:PORT, got ",
                                                   core::Quoted(WithoutPassword(value)), why));
  };
  absl::string_view rest = value;
  if (const size_t scheme = rest.find("://"); scheme != absl::string_view::npos) {
    const std::string kind = absl::AsciiStrToLower(rest.substr(0, scheme));
    if (kind == "https") return wrong(": gRPC speaks no TLS to a proxy; write http:// if it takes connections without");
    if (kind != "http") return wrong(absl::StrCat(": gRPC cannot use one of ", core::Printable(kind), "://"));
    rest = rest.substr(scheme + 3);
  }
  Proxy proxy{.address = {}, .credentials = "", .source = name};
  if (const size_t at = rest.rfind('@'); at != absl::string_view::npos) {
    proxy.credentials = PercentDecoded(rest.substr(0, at));
    rest = rest.substr(at + 1);
  }
  const absl::StatusOr<core::Address> address = core::ParseAddress(name, std::string(rest));
  if (!address.ok()) return wrong("");
  proxy.address = *address;
  return proxy;
}

// A link that died silently is noticed after the sum of the two, within the default lease of 10 s.
constexpr int kKeepaliveTimeMs = 5'000;
constexpr int kControlKeepaliveTimeMs = 4'000;
constexpr int kKeepaliveTimeoutMs = 4'000;
// Megabytes of send buffer on a link of 1 Mbit/s. A bulk connection that is dead is found earlier (connection_watch.h).
constexpr int kBulkKeepaliveTimeoutMs = 60'000;

// gRPC's name for it is MIN_RECONNECT_BACKOFF, but it is how long one attempt to connect may take: several round trips
// of the slowest link. A refused connection is tried again after the backoff, not after this.
constexpr int kConnectTimeoutMs = 5'000;
constexpr int kResolveAgainMs = 1'000;  // a container that is made anew has another address behind its name

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

absl::StatusOr<std::optional<Proxy>> FindProxy(const core::Address& coordinator, const core::Environment& environment) {
  const auto [name, value] = FirstSet(kProxyVariables, environment);
  if (name.empty()) {
    return absl::InvalidArgumentError(
        "--use_proxy: expected a proxy in https_proxy, http_proxy, all_proxy or grpc_proxy of the environment, "
        "got none of them");
  }
  const auto [direct_name, direct] = FirstSet(kDirectVariables, environment);
  for (const absl::string_view entry : absl::StrSplit(direct, absl::ByAnyChar(", \t"), absl::SkipEmpty())) {
    if (Covers(entry, coordinator)) return std::optional<Proxy>();
  }
  ASSIGN_OR_RETURN(Proxy proxy, ParseProxy(name, value));
  return std::optional<Proxy>(std::move(proxy));
}

std::string ProxyHeader(const std::string& credentials) {
  return absl::StrCat("Proxy-Authorization:Basic ", absl::Base64Escape(credentials));
}

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
  arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, kResolveAgainMs);
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
