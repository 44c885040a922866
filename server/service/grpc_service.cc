#include "server/service/grpc_service.h"

namespace causeway::server {

grpc::ServerUnaryReactor* GrpcService::Describe(grpc::CallbackServerContext* context,
                                                const v1::DescribeRequest* request, v1::RunDescription* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  absl::Status status = gate_->Question(PeerOf(*context), request->context().site());
  if (status.ok()) status = coordinator_->CheckContext(request->context());
  if (status.ok()) *response = coordinator_->Describe();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

grpc::ServerUnaryReactor* GrpcService::GetStatus(grpc::CallbackServerContext* context, const v1::StatusRequest*,
                                                 v1::StatusResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::Status status = gate_->Question(PeerOf(*context), /*site=*/"");
  if (status.ok()) response->set_json(status_json_());
  reactor->Finish(ToGrpc(status));
  return reactor;
}

grpc::ServerUnaryReactor* GrpcService::DrainSite(grpc::CallbackServerContext* context, const v1::DrainRequest* request,
                                                 v1::DrainResponse*) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  absl::Status status = gate_->Command(PeerOf(*context));
  if (status.ok()) status = coordinator_->CheckContext(request->context());
  if (status.ok()) status = coordinator_->Drain(request->site());
  reactor->Finish(ToGrpc(status));
  return reactor;
}

grpc::ServerBidiReactor<v1::SiteMessage, v1::CoordinatorMessage>* GrpcService::Control(
    grpc::CallbackServerContext* context) {
  return NewControlReactor(coordinator_, gate_, PeerOf(*context));
}

grpc::ServerBidiReactor<v1::UploadMessage, v1::UploadReply>* GrpcService::Upload(grpc::CallbackServerContext* context) {
  return NewUploadReactor(coordinator_, gate_, PeerOf(*context));
}

grpc::ServerWriteReactor<v1::DownloadMessage>* GrpcService::Download(grpc::CallbackServerContext* context,
                                                                     const v1::DownloadRequest* request) {
  return NewDownloadReactor(coordinator_, gate_, PeerOf(*context), *request);
}

}  // namespace causeway::server
