#include "server/calls/listening_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <utility>

#include "causeway/v1/coordinator.grpc.pb.h"
#include "core/clock.h"
#include "core/port_owner.h"
#include "transport/channel.h"

namespace causeway::server {
namespace {

constexpr auto kShutdownGrace = std::chrono::milliseconds(200);
constexpr int kReflectionThreads = 8;  // each open reflection stream has one; any peer that may connect may use it

}  // namespace

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
  int port = 0;
  builder.AddListeningPort(
      address.Text(), tls.given() ? transport::TlsServerCredentials(tls) : grpc::InsecureServerCredentials(), &port);
  service.Register(builder);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    return absl::UnavailableError("--listen: " + core::WhyNotListening(address.host, address.port));
  }
  server->GetHealthCheckService()->SetServingStatus(v1::Coordinator::service_full_name(), true);
  address.port = port;
  return std::unique_ptr<ListeningServer>(new ListeningServer(std::move(server)));
}

ListeningServer::~ListeningServer() {
  server_->Shutdown(core::SystemClock().Calendar() + kShutdownGrace);
  server_->Wait();
}

}  // namespace causeway::server
