// The gRPC face of the coordinator: one reactor for each open call, which turns messages into calls of Coordinator and
// its answers into writes. Reactors live from the call's begin to its OnDone; gRPC's threads run them.
#pragma once

#include "causeway/v1/coordinator.grpc.pb.h"
#include "server/service/coordinator.h"
#include "server/service/gate.h"

namespace causeway::server {

// Bulk is read and written as raw bytes (transport/bulk_message.h), everything else as messages.
using RawBulk = v1::Coordinator::WithRawCallbackMethod_Upload<
    v1::Coordinator::WithRawCallbackMethod_Download<v1::Coordinator::Service>>;
using CoordinatorService = v1::Coordinator::WithCallbackMethod_Describe<
    v1::Coordinator::WithCallbackMethod_Control<v1::Coordinator::WithCallbackMethod_GetStatus<
        v1::Coordinator::WithCallbackMethod_DrainSite<v1::Coordinator::WithCallbackMethod_ChangeRun<
            v1::Coordinator::WithCallbackMethod_GetHistory<v1::Coordinator::WithCallbackMethod_Follow<RawBulk>>>>>>>;

class GrpcService final : public CoordinatorService {
 public:
  // `coordinator`, `gate` and what `status_json` refers to outlive the server.
  GrpcService(Coordinator* coordinator, std::function<std::string()> status_json, Gate* gate = Gate::Open())
      : coordinator_(coordinator), gate_(gate), status_json_(std::move(status_json)) {}

 private:
  absl::Status History(const v1::HistoryRequest& request, v1::HistoryResponse& response) const;

  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context, const v1::DescribeRequest* request,
                                     v1::RunDescription* response) override;
  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context, const v1::StatusRequest* request,
                                      v1::StatusResponse* response) override;
  grpc::ServerUnaryReactor* DrainSite(grpc::CallbackServerContext* context, const v1::DrainRequest* request,
                                      v1::DrainResponse* response) override;
  grpc::ServerUnaryReactor* ChangeRun(grpc::CallbackServerContext* context, const v1::ChangeRunRequest* request,
                                      v1::ChangeRunResponse* response) override;
  grpc::ServerUnaryReactor* GetHistory(grpc::CallbackServerContext* context, const v1::HistoryRequest* request,
                                       v1::HistoryResponse* response) override;
  grpc::ServerBidiReactor<v1::SiteMessage, v1::CoordinatorMessage>* Control(
      grpc::CallbackServerContext* context) override;
  grpc::ServerBidiReactor<v1::FollowMessage, v1::MembershipUpdate>* Follow(
      grpc::CallbackServerContext* context) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Upload(grpc::CallbackServerContext* context) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Download(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) override;

  Coordinator* const coordinator_;
  Gate* const gate_;
  const std::function<std::string()> status_json_;
};

// absl and gRPC number their codes alike.
inline grpc::Status ToGrpc(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

// One reactor each, in the file of its name.
grpc::ServerBidiReactor<v1::SiteMessage, v1::CoordinatorMessage>* NewControlReactor(Coordinator* coordinator,
                                                                                    Gate* gate, Peer peer);
grpc::ServerBidiReactor<v1::FollowMessage, v1::MembershipUpdate>* NewFollowReactor(Coordinator* coordinator, Gate* gate,
                                                                                   Peer peer);
grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* NewUploadReactor(Coordinator* coordinator, Gate* gate,
                                                                              Peer peer);
grpc::ServerWriteReactor<grpc::ByteBuffer>* NewDownloadReactor(Coordinator* coordinator, Gate* gate, const Peer& peer,
                                                               grpc::ByteBuffer request);

}  // namespace causeway::server
