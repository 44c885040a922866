#include "server/calls/grpc_service.h"

#include <google/protobuf/util/json_util.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "causeway/v1/coordinator.pb.h"
#include "core/check.h"
#include "core/limits.h"
#include "core/text.h"
#include "formats/atomic_file.h"
#include "formats/model_directory.h"
#include "formats/posix_file.h"
#include "server/calls/call_service.h"
#include "server/calls/gate.h"
#include "server/calls/reactors.h"
#include "server/run/run_exchange.h"
#include "transport/messages.h"

namespace causeway::server {

// A requested command.
struct AskedCommand {
  std::string call;  // its row in CallTable
  std::string arguments;
};

constexpr auto kCopyTime = std::chrono::seconds(2);

// Asks the gate, performs the command if it is allowed, records it, and answers once the standbys have it, or kCopyTime
// later.
absl::Status RunCommand(RunExchange* exchange, Gate* gate, const Peer& peer, const AskedCommand& asked,
                        const std::function<absl::Status()>& perform);

// `asked(request)` returns an AskedCommand, `perform(request, response)` a Status. The request has a context.
template <typename Request, typename Response, typename Asked, typename Perform>
void AddCommand(CallService& service, RunExchange* exchange, Gate* gate, const std::string& method, Asked asked,
                Perform perform) {
  service.Add<Request, Response>(
      method, [=](const Peer& peer, const Request& request, Response& response) -> absl::Status {
        RETURN_IF_ERROR(RunCommand(exchange, gate, peer, asked(request), [&]() -> absl::Status {
          const absl::Status of_this_run = exchange->admission().CheckContext(request.context());
          return of_this_run.ok() ? perform(request, response) : of_this_run;
        }));
        exchange->journal().Flush();
        for (const std::string& standby : exchange->journal().mirrors().AwaitCopies(kCopyTime)) {
          response.add_not_copied_to(standby);
        }
        return absl::OkStatus();
      });
  service.AnswerAside(method);
}

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

// A question of a site or an operator about this run.
template <typename Request, typename Response, typename Function>
void AddQuestion(CallService& service, RunExchange* exchange, Gate* gate, const std::string& method, Function answer,
                 int64_t most_bytes = core::kMaxQuestionBytes) {
  service.Add<Request, Response>(
      method,
      [=](const Peer& peer, const Request& request, Response& response) -> absl::Status {
        RETURN_IF_ERROR(gate->Question(peer, request.context().site()));
        RETURN_IF_ERROR(exchange->admission().CheckContext(request.context()));
        return answer(request, response);
      },
      most_bytes);
}

void AddFiles(RunExchange* exchange, Gate* gate, ModelFiles* files, CallService& service) {
  AddQuestion<v1::KeepFileRequest, v1::KeptFiles>(
      service, exchange, gate, "KeepFile",
      [=](const v1::KeepFileRequest& request, v1::KeptFiles& response) -> absl::Status {
        if (!exchange->View([](const RunParts& run) { return run.model.fact().stays(); })) {
          return absl::UnavailableError("the run has no initial parameters yet; retry");
        }
        ASSIGN_OR_RETURN(response, files->Keep(request));
        return absl::OkStatus();
      },
      core::kMaxControlMessageBytes);
  AddQuestion<v1::GetFileRequest, v1::FileContents>(
      service, exchange, gate, "GetFile",
      [=](const v1::GetFileRequest& request, v1::FileContents& response) -> absl::Status {
        ASSIGN_OR_RETURN(*response.mutable_contents(), files->Read(request.name()));
        return absl::OkStatus();
      });
  service.AnswerAside("KeepFile");
  service.AnswerAside("GetFile");
}

void AddQuestions(RunExchange* exchange, std::function<std::string()> status_json, Gate* gate, ModelFiles* files,
                  CallService& service) {
  AddQuestion<v1::DescribeRequest, v1::RunDescription>(
      service, exchange, gate, "Describe", [=](const v1::DescribeRequest&, v1::RunDescription& response) {
        response = exchange->Describe();
        const v1::KeptFiles kept = files == nullptr ? v1::KeptFiles() : files->List();
        for (const v1::ModelFile& file : kept.files()) {
          if (std::ranges::find(kept.missing(), file.name()) == kept.missing().end()) *response.add_files() = file;
        }
        return absl::OkStatus();
      });
  AddQuestion<v1::HistoryRequest, v1::HistoryResponse>(
      service, exchange, gate, "GetHistory", [=](const v1::HistoryRequest& request, v1::HistoryResponse& response) {
        return History(*exchange, request, response);
      });
  service.AnswerAside("GetHistory");
  service.Add<v1::StatusRequest, v1::StatusResponse>(
      "GetStatus", [=](const Peer& peer, const v1::StatusRequest&, v1::StatusResponse& response) {
        absl::Status status = gate->Question(peer, /*site=*/"");
        if (status.ok()) response.set_json(status_json());
        return status;
      });
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
  AddCommand<v1::ForgetStandbyRequest, v1::ForgetStandbyResponse>(
      service, exchange, gate, "ForgetStandby",
      [](const v1::ForgetStandbyRequest& request) {
        return AskedCommand{"ForgetStandby", absl::StrCat("forget=", request.address())};
      },
      [=](const v1::ForgetStandbyRequest& request, v1::ForgetStandbyResponse&) -> absl::Status {
        RETURN_IF_ERROR(exchange->journal().mirrors().CheckMayForget(request.address()));
        exchange->journal().Commit({.forgotten = request.address()});
        return absl::OkStatus();
      });
  AddCommand<v1::PromoteRequest, v1::PromoteResponse>(
      service, exchange, gate, "Promote",
      [](const v1::PromoteRequest&) {
        return AskedCommand{"Promote", ""};
      },
      [](const v1::PromoteRequest&, v1::PromoteResponse&) {
        return absl::FailedPreconditionError("this coordinator leads already: --at names a standby");
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
  service->AddStream("Replicate", [=](Peer peer) { return NewReplicateReactor(exchange, gate, std::move(peer)); });
  service->AddStream("Upload", [=](Peer peer) { return NewUploadReactor(exchange, gate, std::move(peer)); });
  service->AddStream("Download", [=](Peer peer) { return NewDownloadReactor(exchange, gate, std::move(peer)); });
  return service;
}

namespace {

constexpr char kList[] = "/files.json", kContents[] = "/files/";

absl::Status CheckList(const v1::KeepFileRequest& request) {
  int64_t bytes = 0;
  std::set<std::string> names;
  for (const v1::ModelFile& file : request.files()) {
    RETURN_IF_ERROR(formats::CheckModelFileName(file.name()));
    names.insert(file.name());
    bytes += file.bytes();
  }
  if (std::ssize(names) == request.files_size() && names.size() <= formats::kMaxModelFiles &&
      bytes <= formats::kMaxModelFilesBytes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("files of the model: expected up to ", formats::kMaxModelFiles, " of ",
                                                 formats::kMaxModelFilesBytes, " bytes in all, got ",
                                                 request.files_size(), " of ", bytes));
}

}  // namespace

ModelFiles::ModelFiles(const std::string& state_dir) : state_dir_(state_dir) {
  core::MutexLock lock(mutex_);
  const absl::StatusOr<std::string> text = formats::ReadFile(state_dir_ + kList, 1 << 20);
  if (!text.ok()) return;
  if (!google::protobuf::util::JsonStringToMessage(*text, &kept_).ok()) {
    spdlog::warn("{}{} is damaged: the sites are to say again which files belong to the model", state_dir_, kList);
    kept_.Clear();
  }
  LookForMissing();
}

std::string ModelFiles::PathOf(const std::string& name) const {
  return absl::StrCat(state_dir_, kContents, name, ".zst");
}

void ModelFiles::LookForMissing() {
  kept_.clear_missing();
  for (const v1::ModelFile& file : kept_.files()) {
    std::error_code error;
    if (!std::filesystem::is_regular_file(PathOf(file.name()), error)) kept_.add_missing(file.name());
  }
}

absl::Status ModelFiles::Begin(const v1::KeepFileRequest& request) {
  RETURN_IF_ERROR(CheckList(request));
  v1::KeptFiles list;
  *list.mutable_files() = request.files();
  list.set_site(request.context().site());
  std::string text;
  CHECK(google::protobuf::util::MessageToJsonString(list, &text).ok());
  RETURN_IF_ERROR(formats::MakePrivateFolder(state_dir_ + kContents));
  RETURN_IF_ERROR(formats::WriteFileAtomically(state_dir_ + kList, text));
  kept_ = std::move(list);
  LookForMissing();
  return absl::OkStatus();
}

absl::Status ModelFiles::Write(const v1::KeepFileRequest& request) {
  const auto listed = std::ranges::find(kept_.files(), request.name(), &v1::ModelFile::name);
  if (listed == kept_.files().end()) {
    return absl::InvalidArgumentError(absl::StrCat("expected a file of the run's model, got ", request.name()));
  }
  RETURN_IF_ERROR(formats::ExpandModelFile({.name = listed->name(),
                                            .bytes = listed->bytes(),
                                            .digest = listed->digest(),
                                            .compressed = request.contents()})
                      .status());
  RETURN_IF_ERROR(formats::WriteFileAtomically(PathOf(listed->name()), request.contents()));
  LookForMissing();
  if (kept_.missing().empty()) {
    spdlog::info("the model's files are here, from site {}: {}", request.context().site(), kept_.files_size());
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::KeptFiles> ModelFiles::Keep(const v1::KeepFileRequest& request) {
  core::MutexLock lock(mutex_);
  if (kept_.files().empty() && !request.files().empty()) RETURN_IF_ERROR(Begin(request));
  if (!request.name().empty()) RETURN_IF_ERROR(Write(request));
  return kept_;
}

v1::KeptFiles ModelFiles::List() const {
  core::MutexLock lock(mutex_);
  return kept_;
}

absl::StatusOr<std::string> ModelFiles::Read(const std::string& name) const {
  core::MutexLock lock(mutex_);
  const auto listed = std::ranges::find(kept_.files(), name, &v1::ModelFile::name);
  if (listed == kept_.files().end()) return absl::NotFoundError(absl::StrCat("the run's model has no file ", name));
  return formats::ReadFile(PathOf(name), formats::kMaxCompressedFileBytes);
}

namespace {

constexpr size_t kMaxWordsBytes = 512;  // of arguments, and of a result

// The fields by their names in the journal and on the wire.
template <typename Record, typename Function>
void ForEachField(Record& record, Function function) {
  function("name", record.name);
  function("role", record.role);
  function("address", record.address);
  function("command", record.command);
  function("arguments", record.arguments);
  function("result", record.result);
}

}  // namespace

std::string CommandRecord::Text() const {
  const std::string who = name.empty() ? absl::StrCat("from ", address, ", not identified")
                                       : absl::StrCat(name, " (", role, ") from ", address);
  return absl::StrCat(who, ": ", command, arguments.empty() ? "" : " ", arguments, ": ", result);
}

std::string CommandRecord::EventText() const {
  nlohmann::ordered_json json;
  ForEachField(*this, [&](const char* key, const std::string& value) { json[key] = value; });
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::optional<CommandRecord> CommandRecord::FromEventText(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  CommandRecord record;
  bool whole = true;
  ForEachField(record, [&](const char* key, std::string& value) {
    const auto found = json.find(key);
    whole = whole && found != json.end() && found->is_string();
    if (whole) value = found->get<std::string>();
  });
  return whole ? std::optional(std::move(record)) : std::nullopt;
}

v1::CommandRecord CommandRecord::ToProto() const {
  v1::CommandRecord message;
  message.set_name(name);
  message.set_role(role);
  message.set_address(address);
  message.set_command(command);
  message.set_arguments(arguments);
  message.set_result(result);
  return message;
}

absl::Status RunCommand(RunExchange* exchange, Gate* gate, const Peer& peer, const AskedCommand& asked,
                        const std::function<absl::Status()>& perform) {
  const std::optional<Identity> who = gate->Who(peer);
  const absl::Status allowed = gate->Command(peer, asked.call);
  const absl::Status done = allowed.ok() ? perform() : allowed;
  if (!allowed.ok() && !gate->TakeRecordOfRefusal()) return done;
  const CallRow* const row = RowOf(asked.call);
  const CommandRecord record{
      .name = who ? who->name : "",
      .role = who ? std::string(RoleName(who->role)) : "",
      .address = peer.Address(),
      .command = row == nullptr ? asked.call : std::string(row->command),
      .arguments = core::Clipped(asked.arguments, kMaxWordsBytes),
      .result = done.ok() ? "done" : core::Clipped(absl::StrCat("refused: ", done.message()), kMaxWordsBytes)};
  const absl::Status recorded = exchange->Ask(input::Command{record.EventText()}).status();
  return done.ok() ? recorded : done;
}

}  // namespace causeway::server
