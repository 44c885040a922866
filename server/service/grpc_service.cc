#include "server/service/grpc_service.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "causeway/v1/coordinator.grpc.pb.h"
#include "core/check.h"
#include "core/limits.h"
#include "server/service/commands.h"
#include "server/service/reactors.h"

namespace causeway::server {
namespace {

// Streams: gRPC calls them with the call's headers. Bulk is read and written as raw bytes (transport/bulk_message.h).
using Streams = v1::Coordinator::WithCallbackMethod_Control<v1::Coordinator::WithCallbackMethod_Follow<
    v1::Coordinator::WithRawCallbackMethod_Upload<v1::Coordinator::Service>>>;
// All others are UnaryService's.
using CoordinatorService = v1::Coordinator::WithGenericMethod_Describe<
    v1::Coordinator::WithGenericMethod_GetStatus<v1::Coordinator::WithGenericMethod_DrainSite<
        v1::Coordinator::WithGenericMethod_ChangeRun<v1::Coordinator::WithGenericMethod_GetHistory<
            v1::Coordinator::WithGenericMethod_ReleaseSite<v1::Coordinator::WithGenericMethod_Rollback<
                v1::Coordinator::WithGenericMethod_Download<v1::Coordinator::WithGenericMethod_Show<Streams>>>>>>>>>;

class GrpcService final : public CoordinatorService {
 public:
  GrpcService(Coordinator* coordinator, Gate* gate) : coordinator_(coordinator), gate_(gate) {}

 private:
  grpc::ServerBidiReactor<v1::SiteMessage, v1::CoordinatorMessage>* Control(
      grpc::CallbackServerContext* context) override {
    return NewControlReactor(coordinator_, gate_, PeerOf(*context, "Control"));
  }
  grpc::ServerBidiReactor<v1::FollowMessage, v1::MembershipUpdate>* Follow(
      grpc::CallbackServerContext* context) override {
    return NewFollowReactor(coordinator_, gate_, PeerOf(*context, "Follow"));
  }
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Upload(grpc::CallbackServerContext* context) override {
    return NewUploadReactor(coordinator_, gate_, PeerOf(*context, "Upload"));
  }

  Coordinator* const coordinator_;
  Gate* const gate_;
};

absl::Status History(const Coordinator& coordinator, const v1::HistoryRequest& request, v1::HistoryResponse& response) {
  const int64_t most = core::kMaxHistoryAnswer;
  const int64_t limit = request.limit() > 0 ? std::min<int64_t>(request.limit(), most) : most;
  ASSIGN_OR_RETURN(const std::vector<Event> events, coordinator.History(request.after_id(), limit, request.kind()));
  for (const Event& event : events) {
    v1::HistoryEvent& message = *response.add_events();
    message.set_id(event.id);
    message.set_unix_ms(event.unix_ms);
    message.set_kind(event.kind);
    message.set_site(event.site);
    message.set_fragment(event.fragment);
    message.set_text(event.text);
    if (event.kind != "command") continue;
    if (const auto command = CommandRecord::FromEventText(event.text)) {
      message.set_text(command->Text());
      *message.mutable_command() = command->ToProto();
    }
  }
  return absl::OkStatus();
}

void AddQuestions(Coordinator* coordinator, std::function<std::string()> status_json, Gate* gate,
                  UnaryService& service) {
  service.Add<v1::DescribeRequest, v1::RunDescription>(
      "Describe", [=](const Peer& peer, const v1::DescribeRequest& request, v1::RunDescription& response) {
        absl::Status status = gate->Question(peer, request.context().site());
        if (status.ok()) status = coordinator->CheckContext(request.context());
        if (status.ok()) response = coordinator->Describe();
        return status;
      });
  service.Add<v1::StatusRequest, v1::StatusResponse>(
      "GetStatus", [=](const Peer& peer, const v1::StatusRequest&, v1::StatusResponse& response) {
        absl::Status status = gate->Question(peer, /*site=*/"");
        if (status.ok()) response.set_json(status_json());
        return status;
      });
  service.Add<v1::HistoryRequest, v1::HistoryResponse>(
      "GetHistory", [=](const Peer& peer, const v1::HistoryRequest& request, v1::HistoryResponse& response) {
        absl::Status status = gate->Question(peer, request.context().site());
        if (status.ok()) status = coordinator->CheckContext(request.context());
        if (status.ok()) status = History(*coordinator, request, response);
        return status;
      });
}

// A change that there is none of is the rules' to refuse, for those who may do all.
AskedCommand AskedChange(const v1::ChangeRunRequest& request) {
  const std::string change = v1::ChangeRunRequest::Change_Name(request.change());
  const std::string call = absl::StrCat("ChangeRun ", change);
  if (RowOf(call) != nullptr) return {call, ""};
  return {"ChangeRun STOP", absl::StrCat("change=", static_cast<int>(request.change()))};
}

void AddCommands(Coordinator* coordinator, Gate* gate, UnaryService& service) {
  AddCommand<v1::DrainRequest, v1::DrainResponse>(
      service, coordinator, gate, "DrainSite",
      [](const v1::DrainRequest& request) {
        return AskedCommand{"DrainSite", absl::StrCat("site=", request.site())};
      },
      [=](const v1::DrainRequest& request, v1::DrainResponse&) { return coordinator->Drain(request.site()); });
  AddCommand<v1::ChangeRunRequest, v1::ChangeRunResponse>(
      service, coordinator, gate, "ChangeRun", AskedChange,
      [=](const v1::ChangeRunRequest& request, v1::ChangeRunResponse&) {
        return coordinator->ChangeRun(request.change());
      });
  AddCommand<v1::ReleaseRequest, v1::ReleaseResponse>(
      service, coordinator, gate, "ReleaseSite",
      [](const v1::ReleaseRequest& request) {
        return AskedCommand{"ReleaseSite", absl::StrCat("site=", request.site())};
      },
      [=](const v1::ReleaseRequest& request, v1::ReleaseResponse&) { return coordinator->Release(request.site()); });
  AddCommand<v1::RollbackRequest, v1::RollbackResponse>(
      service, coordinator, gate, "Rollback",
      [](const v1::RollbackRequest& request) {
        return AskedCommand{"Rollback", absl::StrCat("to=", request.version())};
      },
      [=](const v1::RollbackRequest& request, v1::RollbackResponse& response) {
        const absl::StatusOr<std::vector<core::Version>> versions = coordinator->RollBack(request.version());
        if (versions.ok()) response.mutable_versions()->Assign(versions->begin(), versions->end());
        return versions.status();
      });
}

}  // namespace

Services NewGrpcServices(Coordinator* coordinator, std::function<std::string()> status_json, Gate* gate) {
  Services services{std::make_unique<GrpcService>(coordinator, gate), std::make_unique<UnaryService>(gate)};
  AddQuestions(coordinator, std::move(status_json), gate, *services.unary);
  AddCommands(coordinator, gate, *services.unary);
  services.unary->AddStream("Download",
                            [=](Peer peer) { return NewDownloadReactor(coordinator, gate, std::move(peer)); });
  return services;
}

}  // namespace causeway::server
