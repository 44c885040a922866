#include "transport/describe_call.h"

#include <chrono>
#include <optional>

#include "core/clock.h"
#include "core/mutex.h"
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

}  // namespace causeway::transport
