#include "ctl/client.h"

#include <chrono>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/clock.h"
#include "formats/model_directory.h"
#include "replica/replica.h"
#include "transport/first_address.h"
#include "transport/messages.h"
#include "transport/tls_probe.h"

namespace causeway::ctl {
namespace {

constexpr auto kTimeout = std::chrono::seconds(10);  // for one answer

v1::Context MakeContext() {
  v1::Context context;
  context.set_protocol(transport::kProtocol);
  return context;
}

void SetDeadline(grpc::ClientContext& context) { context.set_deadline(core::SystemClock().Calendar() + kTimeout); }

}  // namespace

Client::Client(const transport::Address& coordinator, const transport::ChannelOptions& options)
    : coordinator_(coordinator),
      options_(options),
      stub_(v1::Coordinator::NewStub(
          transport::MakeChannel(coordinator, options, transport::Traffic::kBulk,
                                 options.proxy ? std::nullopt : transport::FirstThatAnswers(coordinator, "")))) {}

absl::Status Client::Wrong(const grpc::Status& status) const {
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  const char* prefix = code == absl::StatusCode::kUnavailable ? "no coordinator at " : "coordinator at ";
  const std::string why = code == absl::StatusCode::kUnavailable
                              ? transport::ExplainFailure(status.error_message(), coordinator_, options_)
                              : status.error_message();
  absl::Status wrong(code, absl::StrCat(prefix, coordinator_.Text(), ": ", why));
  wrong.SetPayload(kSaidByCoordinator, absl::Cord());
  return wrong;
}

absl::StatusOr<std::string> Client::StatusJson() {
  grpc::ClientContext context;
  SetDeadline(context);
  v1::StatusRequest request;
  *request.mutable_context() = MakeContext();
  v1::StatusResponse response;
  const grpc::Status status = stub_->GetStatus(&context, request, &response);
  if (!status.ok()) return Wrong(status);
  return response.json();
}

absl::StatusOr<v1::RunDescription> Client::Describe() {
  grpc::ClientContext context;
  SetDeadline(context);
  v1::DescribeRequest request;
  *request.mutable_context() = MakeContext();
  v1::RunDescription description;
  const grpc::Status status = stub_->Describe(&context, request, &description);
  if (!status.ok()) return Wrong(status);
  return description;
}

absl::Status Client::Drain(const std::string& site) {
  grpc::ClientContext context;
  SetDeadline(context);
  v1::DrainRequest request;
  *request.mutable_context() = MakeContext();
  request.set_site(site);
  v1::DrainResponse response;
  const grpc::Status status = stub_->DrainSite(&context, request, &response);
  return status.ok() ? absl::OkStatus() : Wrong(status);
}

absl::Status Client::ChangeRun(v1::ChangeRunRequest::Change change) {
  grpc::ClientContext context;
  SetDeadline(context);
  v1::ChangeRunRequest request;
  *request.mutable_context() = MakeContext();
  request.set_change(change);
  v1::ChangeRunResponse response;
  const grpc::Status status = stub_->ChangeRun(&context, request, &response);
  return status.ok() ? absl::OkStatus() : Wrong(status);
}

absl::StatusOr<v1::ChangeSettingsResponse> Client::ChangeSettings(v1::ChangeSettingsRequest request) {
  grpc::ClientContext context;
  SetDeadline(context);
  *request.mutable_context() = MakeContext();
  v1::ChangeSettingsResponse response;
  const grpc::Status status = stub_->ChangeSettings(&context, request, &response);
  if (!status.ok()) return Wrong(status);
  return response;
}

absl::Status Client::Release(const std::string& site) {
  grpc::ClientContext context;
  SetDeadline(context);
  v1::ReleaseRequest request;
  *request.mutable_context() = MakeContext();
  request.set_site(site);
  v1::ReleaseResponse response;
  const grpc::Status status = stub_->ReleaseSite(&context, request, &response);
  return status.ok() ? absl::OkStatus() : Wrong(status);
}

absl::StatusOr<std::vector<core::Version>> Client::RollBack(core::Version version) {
  grpc::ClientContext context;  // it reads every snapshot of that version before it answers
  v1::RollbackRequest request;
  *request.mutable_context() = MakeContext();
  request.set_version(version);
  v1::RollbackResponse response;
  const grpc::Status status = stub_->Rollback(&context, request, &response);
  if (!status.ok()) return Wrong(status);
  return std::vector<core::Version>(response.versions().begin(), response.versions().end());
}

absl::StatusOr<std::string> Client::Promote(bool leader_is_stopped) {
  grpc::ClientContext context;
  v1::PromoteRequest request;
  *request.mutable_context() = MakeContext();
  request.set_leader_is_stopped(leader_is_stopped);
  v1::PromoteResponse response;
  const grpc::Status status = stub_->Promote(&context, request, &response);
  if (!status.ok()) return Wrong(status);
  return response.said();
}

absl::Status Client::ForEachEvent(const std::string& kind, int64_t* after_id,
                                  const std::function<void(const v1::HistoryEvent&)>& use) {
  while (true) {
    ASSIGN_OR_RETURN(const v1::HistoryResponse page, HistoryAfter(*after_id, kind));
    if (page.events().empty()) return absl::OkStatus();
    for (const v1::HistoryEvent& event : page.events()) use(event);
    *after_id = page.events().rbegin()->id();
  }
}

absl::StatusOr<v1::HistoryResponse> Client::HistoryAfter(int64_t after_id, const std::string& kind) {
  grpc::ClientContext context;
  SetDeadline(context);
  v1::HistoryRequest request;
  *request.mutable_context() = MakeContext();
  request.set_after_id(after_id);
  request.set_kind(kind);
  v1::HistoryResponse response;
  const grpc::Status status = stub_->GetHistory(&context, request, &response);
  if (!status.ok()) return Wrong(status);
  return response;
}

absl::StatusOr<std::string> Client::DownloadFile(const v1::ModelFile& file) {
  RETURN_IF_ERROR(formats::CheckModelFileName(file.name()));
  grpc::ClientContext context;
  v1::GetFileRequest request;
  *request.mutable_context() = MakeContext();
  request.set_name(file.name());
  v1::FileContents response;
  const grpc::Status status = stub_->GetFile(&context, request, &response);
  if (!status.ok()) return Wrong(status);
  return formats::ExpandModelFile(
      {.name = file.name(), .bytes = file.bytes(), .digest = file.digest(), .compressed = response.contents()});
}

// The anchor's chunks come first; the momentum's are read and ignored, because the digest comes after them.
absl::StatusOr<Client::Anchor> Client::DownloadAnchor(const core::Fragment& fragment, core::Version at_least) {
  grpc::ClientContext context;
  v1::DownloadRequest request;
  *request.mutable_context() = MakeContext();
  request.set_fragment(fragment.id);
  request.set_anchor_version(at_least);
  const auto stream = stub_->Download(&context, request);
  Anchor anchor{.values = std::vector<float>(fragment.padded_values())};
  replica::AnchorReader reader(fragment, anchor.values, /*momentum=*/{});
  v1::DownloadMessage message;
  while (stream->Read(&message)) {
    if (message.has_header()) {
      anchor.version = message.header().version();
    } else if (message.has_chunk()) {
      RETURN_IF_ERROR(reader.Add(message.chunk()));
    } else if (message.has_end()) {
      RETURN_IF_ERROR(reader.Finish(message.end().digest()));
    }
  }
  const grpc::Status status = stream->Finish();
  if (!status.ok()) return Wrong(status);
  return anchor;
}

}  // namespace causeway::ctl
