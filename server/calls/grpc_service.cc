#include "server/calls/grpc_service.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "causeway/v1/coordinator.pb.h"
#include "core/check.h"
#include "core/limits.h"
#include "server/calls/commands.h"
#include "server/calls/reactors.h"
#include "transport/messages.h"

namespace causeway::server {
namespace {

absl::Status History(RunExchange& exchange, const v1::HistoryRequest& request, v1::HistoryResponse& response) {
  const int64_t most = core::kMaxHistoryAnswer;
  const int64_t limit = request.limit() > 0 ? std::min<int64_t>(request.limit(), most) : most;
  ASSIGN_OR_RETURN(const std::vector<Event> events,
                   exchange.journal().History(request.after_id(), limit, request.kind()));
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

void AddFiles(RunExchange* exchange, Gate* gate, ModelFiles* files, CallService& service) {
  service.Add<v1::KeepFileRequest, v1::KeptFiles>(
      "KeepFile",
      [=](const Peer& peer, const v1::KeepFileRequest& request, v1::KeptFiles& response) -> absl::Status {
        RETURN_IF_ERROR(gate->Question(peer, request.context().site()));
        RETURN_IF_ERROR(exchange->admission().CheckContext(request.context()));
        if (!exchange->View([](const RunParts& run) { return run.model.fact().stays(); })) {
          return absl::UnavailableError("the run has no initial parameters yet; retry");
        }
        ASSIGN_OR_RETURN(response, files->Keep(request));
        return absl::OkStatus();
      },
      core::kMaxControlMessageBytes);
  service.Add<v1::GetFileRequest, v1::FileContents>(
      "GetFile", [=](const Peer& peer, const v1::GetFileRequest& request, v1::FileContents& response) -> absl::Status {
        RETURN_IF_ERROR(gate->Question(peer, request.context().site()));
        RETURN_IF_ERROR(exchange->admission().CheckContext(request.context()));
        ASSIGN_OR_RETURN(*response.mutable_contents(), files->Read(request.name()));
        return absl::OkStatus();
      });
  service.AnswerAside("KeepFile");
  service.AnswerAside("GetFile");
}

void AddQuestions(RunExchange* exchange, std::function<std::string()> status_json, Gate* gate, ModelFiles* files,
                  CallService& service) {
  service.Add<v1::DescribeRequest, v1::RunDescription>(
      "Describe", [=](const Peer& peer, const v1::DescribeRequest& request, v1::RunDescription& response) {
        absl::Status status = gate->Question(peer, request.context().site());
        if (status.ok()) status = exchange->admission().CheckContext(request.context());
        if (!status.ok()) return status;
        response = exchange->Describe();
        const v1::KeptFiles kept = files == nullptr ? v1::KeptFiles() : files->List();
        for (const v1::ModelFile& file : kept.files()) {
          if (std::ranges::find(kept.missing(), file.name()) == kept.missing().end()) *response.add_files() = file;
        }
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
        if (status.ok()) status = exchange->admission().CheckContext(request.context());
        if (status.ok()) status = History(*exchange, request, response);
        return status;
      });
  service.AnswerAside("GetHistory");
}

// An unknown change is left to the rules to refuse, for callers that may make any change.
AskedCommand AskedChange(const v1::ChangeRunRequest& request) {
  const std::string change = v1::ChangeRunRequest::Change_Name(request.change());
  const std::string call = absl::StrCat("ChangeRun ", change);
  if (RowOf(call) != nullptr) return {call, ""};
  return {"ChangeRun STOP", absl::StrCat("change=", static_cast<int>(request.change()))};
}

AskedCommand AskedSettings(const v1::ChangeSettingsRequest& request) {
  std::vector<std::string> changes;
  for (const v1::SettingChange& change : request.changes()) {
    changes.push_back(absl::StrCat(change.key(), "=", change.value()));
  }
  if (request.at_step() > 0) changes.push_back(absl::StrCat("at_step=", request.at_step()));
  if (request.dry_run()) changes.emplace_back("dry_run");
  if (request.cancel()) changes.emplace_back("cancel");
  if (request.yes()) changes.emplace_back("yes");
  return {"ChangeSettings", absl::StrJoin(changes, " ")};
}

void AddCommands(RunExchange* exchange, Gate* gate, CallService& service) {
  AddCommand<v1::DrainRequest, v1::DrainResponse>(
      service, exchange, gate, "DrainSite",
      [](const v1::DrainRequest& request) {
        return AskedCommand{"DrainSite", absl::StrCat("site=", request.site())};
      },
      [=](const v1::DrainRequest& request, v1::DrainResponse&) {
        return exchange->Ask(input::Drain{request.site()}).status();
      });
  AddCommand<v1::ChangeRunRequest, v1::ChangeRunResponse>(
      service, exchange, gate, "ChangeRun", AskedChange,
      [=](const v1::ChangeRunRequest& request, v1::ChangeRunResponse&) {
        return exchange->Ask(input::ChangeRun{request.change()}).status();
      });
  AddCommand<v1::ReleaseRequest, v1::ReleaseResponse>(
      service, exchange, gate, "ReleaseSite",
      [](const v1::ReleaseRequest& request) {
        return AskedCommand{"ReleaseSite", absl::StrCat("site=", request.site())};
      },
      [=](const v1::ReleaseRequest& request, v1::ReleaseResponse&) {
        return exchange->Ask(input::Release{request.site()}).status();
      });
  AddCommand<v1::ChangeSettingsRequest, v1::ChangeSettingsResponse>(
      service, exchange, gate, "ChangeSettings", AskedSettings,
      [=](const v1::ChangeSettingsRequest& request, v1::ChangeSettingsResponse& response) {
        ASSIGN_OR_RETURN(const Ready ready, exchange->Ask(input::ChangeSettings{request}));
        const std::vector<core::SettingsRevision>& revisions = ready.revisions;
        transport::ToProto(revisions.front(), response.mutable_revision());
        for (size_t i = 1; i < revisions.size(); ++i) transport::ToProto(revisions[i], response.add_pending());
        return absl::OkStatus();
      });
  AddCommand<v1::RollbackRequest, v1::RollbackResponse>(
      service, exchange, gate, "Rollback",
      [](const v1::RollbackRequest& request) {
        return AskedCommand{"Rollback", absl::StrCat("to=", request.version())};
      },
      [=](const v1::RollbackRequest& request, v1::RollbackResponse& response) {
        const absl::StatusOr<std::vector<core::Version>> versions = exchange->RollBack(request.version());
        if (versions.ok()) response.mutable_versions()->Assign(versions->begin(), versions->end());
        return versions.status();
      });
}

}  // namespace

std::unique_ptr<CallService> NewGrpcService(RunExchange* exchange, std::function<std::string()> status_json, Gate* gate,
                                            ModelFiles* files) {
  auto service = std::make_unique<CallService>(gate, exchange->admission().claims().own().lineage);
  AddQuestions(exchange, std::move(status_json), gate, files, *service);
  if (files != nullptr) AddFiles(exchange, gate, files, *service);
  AddCommands(exchange, gate, *service);
  service->AddStream("Control", [=](Peer peer) { return NewControlReactor(exchange, gate, std::move(peer)); });
  service->AddStream("Follow", [=](Peer peer) { return NewFollowReactor(exchange, gate, std::move(peer)); });
  service->AddStream("Upload", [=](Peer peer) { return NewUploadReactor(exchange, gate, std::move(peer)); });
  service->AddStream("Download", [=](Peer peer) { return NewDownloadReactor(exchange, gate, std::move(peer)); });
  return service;
}

}  // namespace causeway::server
