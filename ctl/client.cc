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

template <typename Request, typename Response>
absl::StatusOr<Response> Client::Call(Unary<Request, Response> method, Request request, Deadline deadline) {
  grpc::ClientContext context;
  if (deadline == Deadline::kSoon) context.set_deadline(core::SystemClock().Calendar() + kTimeout);
  request.mutable_context()->set_protocol(transport::kProtocol);
  Response response;
  if (const grpc::Status status = (*stub_.*method)(&context, request, &response); !status.ok()) return Wrong(status);
  if constexpr (requires { response.not_copied_to(); }) {
    not_copied_to_.assign(response.not_copied_to().begin(), response.not_copied_to().end());
  }
  return response;
}

absl::StatusOr<std::string> Client::StatusJson() {
  ASSIGN_OR_RETURN(v1::StatusResponse response, Call(&Stub::GetStatus, v1::StatusRequest()));
  return std::move(*response.mutable_json());
}

absl::StatusOr<v1::RunDescription> Client::Describe() { return Call(&Stub::Describe, v1::DescribeRequest()); }

absl::Status Client::Drain(const std::string& site) {
  v1::DrainRequest request;
  request.set_site(site);
  return Call(&Stub::DrainSite, request).status();
}

absl::Status Client::ChangeRun(v1::ChangeRunRequest::Change change) {
  v1::ChangeRunRequest request;
  request.set_change(change);
  return Call(&Stub::ChangeRun, request).status();
}

absl::StatusOr<v1::ChangeSettingsResponse> Client::ChangeSettings(const v1::ChangeSettingsRequest& request) {
  return Call(&Stub::ChangeSettings, request);
}

absl::Status Client::Release(const std::string& site) {
  v1::ReleaseRequest request;
  request.set_site(site);
  return Call(&Stub::ReleaseSite, request).status();
}

absl::Status Client::ForgetStandby(const std::string& address) {
  v1::ForgetStandbyRequest request;
  request.set_address(address);
  return Call(&Stub::ForgetStandby, request).status();
}

absl::StatusOr<std::vector<core::Version>> Client::RollBack(core::Version version) {
  v1::RollbackRequest request;
  request.set_version(version);
  // It reads every snapshot of that version before it answers.
  ASSIGN_OR_RETURN(const v1::RollbackResponse response, Call(&Stub::Rollback, request, Deadline::kNone));
  return std::vector<core::Version>(response.versions().begin(), response.versions().end());
}

absl::StatusOr<std::string> Client::Promote(bool leader_is_stopped) {
  v1::PromoteRequest request;
  request.set_leader_is_stopped(leader_is_stopped);
  ASSIGN_OR_RETURN(const v1::PromoteResponse response, Call(&Stub::Promote, request, Deadline::kNone));
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
  v1::HistoryRequest request;
  request.set_after_id(after_id);
  request.set_kind(kind);
  return Call(&Stub::GetHistory, request);
}

absl::StatusOr<std::string> Client::DownloadFile(const v1::ModelFile& file) {
  RETURN_IF_ERROR(formats::CheckModelFileName(file.name()));
  v1::GetFileRequest request;
  request.set_name(file.name());
  ASSIGN_OR_RETURN(const v1::FileContents response, Call(&Stub::GetFile, request, Deadline::kNone));
  return formats::ExpandModelFile(
      {.name = file.name(), .bytes = file.bytes(), .digest = file.digest(), .compressed = response.contents()});
}

// The anchor's chunks come first; the momentum's are read and ignored, because the digest comes after them.
absl::StatusOr<Client::Anchor> Client::DownloadAnchor(const core::Fragment& fragment, core::Version at_least) {
  grpc::ClientContext context;
  v1::DownloadRequest request;
  request.mutable_context()->set_protocol(transport::kProtocol);
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
