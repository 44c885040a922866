#include "transport/wire.h"

#include <grpcpp/alarm.h>
#include <grpcpp/generic/generic_stub.h>

#include <utility>
#include <vector>

#include "causeway/v1/coordinator.grpc.pb.h"
#include "core/mutex.h"
#include "transport/describe_call.h"

namespace causeway::transport {
namespace {

class AlarmTimer final : public Wire::Timer {
 public:
  AlarmTimer(core::Clock::Duration time, std::function<void()> call) {
    alarm_.Set(core::SystemClock().Calendar() + time, [call = std::move(call)](bool) { call(); });
  }
  void Cancel() override { alarm_.Cancel(); }

 private:
  grpc::Alarm alarm_;
};

class GrpcWire final : public Wire {
 public:
  GrpcWire(const Address& coordinator, const ChannelOptions& options)
      : coordinator_(coordinator),
        options_(options),
        control_channel_(MakeChannel(coordinator, options, Traffic::kControl)),
        control_stub_(v1::Coordinator::NewStub(control_channel_)) {}

  grpc::Status Describe(const core::SiteId& site, absl::FunctionRef<bool()> cancelled,
                        v1::RunDescription& description) override {
    return AskForDescription(*control_stub_, site, cancelled, description);
  }

  bool AwaitConnected(core::Clock::TimePoint until) override {
    const core::Clock& clock = core::SystemClock();
    return control_channel_->WaitForConnected(clock.Calendar() + (until - clock.Now()));
  }

  void Prepare(grpc::ClientContext& context, ControlCall& call) override {
    control_stub_->async()->Control(&context, &call);
  }

  void Prepare(int channel, const std::string& method, grpc::ClientContext& context, BulkCall& call) override {
    BulkStub(channel)->PrepareBidiStreamingCall(&context, method, {}, &call);
  }

  std::unique_ptr<FollowCall> Follow(grpc::ClientContext& context) override { return control_stub_->Follow(&context); }

  void Cancel(grpc::ClientContext& context) override { context.TryCancel(); }

  void Redial(int channel) override {
    std::shared_ptr<grpc::GenericStub> replaced;
    core::MutexLock lock(mutex_);
    if (static_cast<size_t>(channel) >= bulk_stubs_.size()) return;
    replaced = std::exchange(bulk_stubs_[channel], NewStub());
  }

  std::unique_ptr<Timer> After(core::Clock::Duration time, std::function<void()> call) override {
    return std::make_unique<AlarmTimer>(time, std::move(call));
  }

 private:
  std::shared_ptr<grpc::GenericStub> NewStub() const {
    return std::make_shared<grpc::GenericStub>(MakeChannel(coordinator_, options_, Traffic::kBulk));
  }

  std::shared_ptr<grpc::GenericStub> BulkStub(int channel) {
    core::MutexLock lock(mutex_);
    while (bulk_stubs_.size() <= static_cast<size_t>(channel)) bulk_stubs_.push_back(NewStub());
    return bulk_stubs_[channel];
  }

  const Address coordinator_;
  const ChannelOptions options_;
  const std::shared_ptr<grpc::Channel> control_channel_;
  const std::unique_ptr<v1::Coordinator::Stub> control_stub_;
  core::Mutex mutex_;
  std::vector<std::shared_ptr<grpc::GenericStub>> bulk_stubs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<Wire> MakeGrpcWire(const Address& coordinator, const ChannelOptions& options) {
  return std::make_unique<GrpcWire>(coordinator, options);
}

}  // namespace causeway::transport
