#include "server/service/grpc_service.h"

namespace causeway::server {

grpc::ServerUnaryReactor* GrpcService::Describe(grpc::CallbackServerContext* context,
                                                const v1::DescribeRequest* request, v1::RunDescription* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::Status status = coordinator_->CheckContext(request->context());
  if (status.ok()) *response = coordinator_->Describe();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

grpc::ServerUnaryReactor* GrpcService::GetStatus(grpc::CallbackServerContext* context, const v1::StatusRequest*,
                                                 v1::StatusResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  response->set_json(status_json_());
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* GrpcService::DrainSite(grpc::CallbackServerContext* context, const v1::DrainRequest* request,
                                                 v1::DrainResponse*) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  absl::Status status = coordinator_->CheckContext(request->context());
  if (status.ok()) status = coordinator_->Drain(request->site());
  reactor->Finish(ToGrpc(status));
  return reactor;
}

grpc::ServerBidiReactor<v1::SiteMessage, v1::CoordinatorMessage>* GrpcService::Control(grpc::CallbackServerContext*) {
  return NewControlReactor(coordinator_);
}

grpc::ServerBidiReactor<v1::UploadMessage, v1::UploadReply>* GrpcService::Upload(grpc::CallbackServerContext*) {
  return NewUploadReactor(coordinator_);
}

grpc::ServerWriteReactor<v1::DownloadMessage>* GrpcService::Download(grpc::CallbackServerContext*,
                                                                     const v1::DownloadRequest* request) {
  return NewDownloadReactor(coordinator_, *request);
}

}  // namespace causeway::server
