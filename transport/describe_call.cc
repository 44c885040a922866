#include "transport/describe_call.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "absl/strings/str_cat.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "transport/control_session.h"
#include "transport/messages.h"

namespace causeway::transport {
namespace {

constexpr auto kDescribeTimeout = std::chrono::seconds(5);

struct Answer {
  core::Mutex mutex;
  core::Condition changed;
  std::optional<grpc::Status> status;
};

}  // namespace

grpc::Status AskForDescription(v1::Coordinator::Stub& stub, const core::SiteId& site,
                               absl::FunctionRef<bool()> cancelled, v1::RunDescription& description) {
  grpc::ClientContext context;
  context.set_deadline(core::SystemClock().Calendar() + kDescribeTimeout);
  v1::DescribeRequest request;
  request.mutable_context()->set_protocol(kProtocol);
  request.mutable_context()->set_site(site);
  Answer answer;
  stub.async()->Describe(&context, &request, &description, [&](const grpc::Status& status) {
    core::MutexLock lock(answer.mutex);
    answer.status = status;
    answer.changed.NotifyAll();
  });
  core::MutexLock lock(answer.mutex);
  const auto answered = [&] { return answer.status.has_value(); };
  while (!lock.WaitFor(answer.changed, std::chrono::milliseconds(kStopPollMs), answered)) {
    if (cancelled()) context.TryCancel();
  }
  return *answer.status;
}

absl::Status MeaningOf(const grpc::Status& status, const v1::RunDescription& description, const core::Shard& expected,
                       const Address& coordinator) {
  if (status.ok()) {
    const core::Shard there{description.shard(), std::max(1, description.num_shards())};
    if (there == expected) return absl::OkStatus();
    return absl::PermissionDeniedError(absl::StrCat("expected ", expected.Text(), " at ", coordinator.Text(),
                                                    ", this is ", there.Text(),
                                                    ": --coordinator names all shards of the run, in their order"));
  }
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED ||
      status.error_code() == grpc::StatusCode::FAILED_PRECONDITION) {
    return absl::PermissionDeniedError(
        absl::StrCat(coordinator.Text(), " is not a coordinator of this version: ", status.error_message()));
  }
  if (IsRefusal(status)) return absl::PermissionDeniedError(status.error_message());
  return absl::UnavailableError(status.error_message());
}

}  // namespace causeway::transport
