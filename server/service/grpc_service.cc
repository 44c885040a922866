#include "server/service/grpc_service.h"

#include <algorithm>

#include "causeway/v1/coordinator.grpc.pb.h"
#include "core/check.h"
#include "core/limits.h"
#include "server/service/reactors.h"

namespace causeway::server {
namespace {

// Bulk is read and written as raw bytes (transport/bulk_message.h), everything else as messages.
using RawBulk = v1::Coordinator::WithRawCallbackMethod_Upload<
    v1::Coordinator::WithRawCallbackMethod_Download<v1::Coordinator::Service>>;
using CoordinatorService = v1::Coordinator::WithCallbackMethod_Describe<
    v1::Coordinator::WithCallbackMethod_Control<v1::Coordinator::WithCallbackMethod_GetStatus<
        v1::Coordinator::WithCallbackMethod_DrainSite<v1::Coordinator::WithCallbackMethod_ChangeRun<
            v1::Coordinator::WithCallbackMethod_GetHistory<v1::Coordinator::WithCallbackMethod_Follow<RawBulk>>>>>>>;

class GrpcService final : public CoordinatorService {
 public:
  GrpcService(Coordinator* coordinator, std::function<std::string()> status_json, Gate* gate)
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

grpc::ServerUnaryReactor* GrpcService::ChangeRun(grpc::CallbackServerContext* context,
                                                 const v1::ChangeRunRequest* request, v1::ChangeRunResponse*) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  absl::Status status = gate_->Command(PeerOf(*context));
  if (status.ok()) status = coordinator_->CheckContext(request->context());
  if (status.ok()) status = coordinator_->ChangeRun(request->change());
  reactor->Finish(ToGrpc(status));
  return reactor;
}

grpc::ServerUnaryReactor* GrpcService::GetHistory(grpc::CallbackServerContext* context,
                                                  const v1::HistoryRequest* request, v1::HistoryResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  absl::Status status = gate_->Question(PeerOf(*context), request->context().site());
  if (status.ok()) status = coordinator_->CheckContext(request->context());
  if (status.ok()) status = History(*request, *response);
  reactor->Finish(ToGrpc(status));
  return reactor;
}

absl::Status GrpcService::History(const v1::HistoryRequest& request, v1::HistoryResponse& response) const {
  const int64_t most = core::kMaxHistoryAnswer;
  const int64_t limit = request.limit() > 0 ? std::min<int64_t>(request.limit(), most) : most;
  ASSIGN_OR_RETURN(const std::vector<Event> events, coordinator_->History(request.after_id(), limit));
  for (const Event& event : events) {
    v1::HistoryEvent& message = *response.add_events();
    message.set_id(event.id);
    message.set_unix_ms(event.unix_ms);
    message.set_kind(event.kind);
    message.set_site(event.site);
    message.set_fragment(event.fragment);
    message.set_text(event.text);
  }
  return absl::OkStatus();
}

grpc::ServerBidiReactor<v1::SiteMessage, v1::CoordinatorMessage>* GrpcService::Control(
    grpc::CallbackServerContext* context) {
  return NewControlReactor(coordinator_, gate_, PeerOf(*context));
}

grpc::ServerBidiReactor<v1::FollowMessage, v1::MembershipUpdate>* GrpcService::Follow(
    grpc::CallbackServerContext* context) {
  return NewFollowReactor(coordinator_, gate_, PeerOf(*context));
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* GrpcService::Upload(grpc::CallbackServerContext* context) {
  return NewUploadReactor(coordinator_, gate_, PeerOf(*context));
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* GrpcService::Download(grpc::CallbackServerContext* context,
                                                                  const grpc::ByteBuffer* request) {
  return NewDownloadReactor(coordinator_, gate_, PeerOf(*context), *request);
}

}  // namespace

std::unique_ptr<grpc::Service> NewGrpcService(Coordinator* coordinator, std::function<std::string()> status_json,
                                              Gate* gate) {
  return std::make_unique<GrpcService>(coordinator, std::move(status_json), gate);
}

}  // namespace causeway::server
