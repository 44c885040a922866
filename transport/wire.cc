#include "transport/wire.h"

#include <grpcpp/alarm.h>
#include <grpcpp/generic/generic_stub.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "causeway/v1/coordinator.grpc.pb.h"
#include "core/mutex.h"
#include "transport/control_session.h"
#include "transport/first_address.h"

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

// Asks other addresses, again and again, whether one leads in a later epoch: the coordinator here may have been deposed
// and not know. Thread-safe.
class LaterLeader : public std::enable_shared_from_this<LaterLeader> {
 public:
  static constexpr auto kEvery = std::chrono::seconds(10);

  // Ends an earlier watch.
  void Begin(std::vector<Address> others, const ChannelOptions& options, core::RunId run, uint64_t epoch,
             std::function<void()> later) {
    core::MutexLock lock(mutex_);
    epoch_ = epoch;
    later_ = std::move(later);
    ask_ = [others = std::move(others), options, run = std::move(run), weak = weak_from_this()] {
      AskWhoLeads(others, options, run, [weak](uint64_t leads) {
        if (const auto self = weak.lock()) self->Leads(leads);
      });
    };
    if (timer_ == nullptr) Wait();  // to replace one that waits would bring its call forward
  }
  void End() {
    std::unique_ptr<AlarmTimer> timer;
    core::MutexLock lock(mutex_);
    later_ = nullptr;
    timer.swap(timer_);
  }

 private:
  void Wait() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    timer_ = std::make_unique<AlarmTimer>(kEvery, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->Ask();
    });
  }
  void Ask() {
    std::function<void()> ask;
    {
      core::MutexLock lock(mutex_);
      if (later_ == nullptr) return timer_.reset();
      ask = ask_;
      Wait();
    }
    ask();
  }
  // With the lock, so that `later` is not called after End.
  void Leads(uint64_t epoch) {
    core::MutexLock lock(mutex_);
    if (later_ != nullptr && epoch > epoch_) std::exchange(later_, nullptr)();
  }

  core::Mutex mutex_;
  uint64_t epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  std::function<void()> later_ ABSL_GUARDED_BY(mutex_), ask_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<AlarmTimer> timer_ ABSL_GUARDED_BY(mutex_);
};

class GrpcWire final : public Wire {
 public:
  GrpcWire(const Address& coordinator, const ChannelOptions& options, std::vector<Address> addresses)
      : given_(std::move(addresses)),
        coordinator_(coordinator),
        options_(options),
        at_(options.proxy ? std::nullopt : FirstThatAnswers(coordinator, "")),
        control_(MakeControl(at_)) {}
  ~GrpcWire() override { later_->End(); }

  grpc::Status Describe(const core::SiteId& site, absl::FunctionRef<bool()> cancelled,
                        v1::RunDescription& description) override {
    Dial();
    const grpc::Status status = AskForDescription(*Control()->stub, site, cancelled, description);
    if (status.ok()) {
      core::MutexLock lock(mutex_);
      run_ = description.run_id();
    }
    if (!description.standby_of().empty()) description.add_standbys(description.standby_of());
    Learn(description.standbys());
    return status;
  }

  bool AwaitConnected(core::Clock::TimePoint until) override {
    const core::Clock& clock = core::SystemClock();
    const std::shared_ptr<ControlChannel> control = Control();
    const bool connected = control->channel->WaitForConnected(clock.Calendar() + (until - clock.Now()));
    if (connected) control->worked = true;
    return connected;
  }

  void Welcomed(const v1::Welcome& welcome, std::function<void()> later) override {
    Learn(welcome.standbys());
    std::vector<Address> others = given_;
    core::MutexLock lock(mutex_);
    others.insert(others.end(), learned_.begin(), learned_.end());
    std::erase_if(others, [this](const Address& address)
                              ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return address.Text() == coordinator_.Text(); });
    if (!others.empty()) later_->Begin(std::move(others), options_, run_, welcome.epoch(), std::move(later));
  }

  // At the first of the name's addresses that answers, the present one before the others if it has worked. One that
  // takes connections and is no coordinator's is left to gRPC, which tries the next.
  void Dial() override {
    std::vector<Address> addresses = given_;
    core::RunId run;
    {
      core::MutexLock lock(mutex_);
      run = run_;
      addresses.insert(addresses.end(), learned_.begin(), learned_.end());
    }
    if (addresses.size() > 1) {
      const Asked asked = FindLeader(addresses, options_, run);
      TurnTo(asked.leader ? asked.leader : NextOf(addresses, asked.unreached));
    }
    if (options_.proxy) return;
    const std::shared_ptr<ControlChannel> control = Control();
    if (control->channel->GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_READY) {
      control->worked = true;
      return;
    }
    std::optional<Address> before, at;
    Address coordinator;
    {
      core::MutexLock lock(mutex_);
      before = at_;
      coordinator = coordinator_;
    }
    const bool misled = before && control->tried.exchange(true) && !control->worked;
    if (!misled) at = FirstThatAnswers(coordinator, before && control->worked ? before->host : "");
    if ((at ? at->host : "") == (before ? before->host : "")) return;
    std::vector<std::shared_ptr<grpc::GenericStub>> replaced;
    core::MutexLock lock(mutex_);
    at_ = at;
    control_ = MakeControl(at_);
    replaced.swap(bulk_stubs_);
  }

  void Prepare(grpc::ClientContext& context, ControlCall& call) override {
    Control()->stub->async()->Control(&context, &call);
  }

  void Prepare(int channel, const std::string& method, grpc::ClientContext& context, BulkCall& call) override {
    BulkStub(channel)->PrepareBidiStreamingCall(&context, method, {}, &call);
  }

  std::unique_ptr<FollowCall> Follow(grpc::ClientContext& context) override {
    Dial();
    return Control()->stub->Follow(&context);
  }

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
  struct ControlChannel {
    ControlChannel(std::shared_ptr<grpc::Channel> its_channel, std::unique_ptr<v1::Coordinator::Stub> its_stub)
        : channel(std::move(its_channel)), stub(std::move(its_stub)) {}

    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<v1::Coordinator::Stub> stub;
    std::atomic<bool> tried = false, worked = false;
  };

  // Those that the user gave stay first, and are never dropped.
  void Learn(const google::protobuf::RepeatedPtrField<std::string>& standbys) {
    core::MutexLock lock(mutex_);
    if (given_.empty() && learned_.empty() && !standbys.empty()) learned_.push_back(coordinator_);
    for (const std::string& text : standbys) {
      const absl::StatusOr<Address> address = core::ParseAddress("standbys", text);
      const auto is_it = [&](const Address& known) { return known.Text() == text; };
      if (!address.ok() || learned_.size() > kMostLearned) continue;
      if (std::ranges::none_of(given_, is_it) && std::ranges::none_of(learned_, is_it)) learned_.push_back(*address);
    }
  }

  // The next after the present one that answers: where none leads, one may wait for the run's sites.
  std::optional<Address> NextOf(const std::vector<Address>& addresses, const std::vector<Address>& unreached) {
    core::MutexLock lock(mutex_);
    const auto at = std::ranges::find(addresses, coordinator_.Text(), &Address::Text) - addresses.begin();
    for (size_t i = 1; i <= addresses.size(); ++i) {
      const Address& next = addresses[(static_cast<size_t>(at) + i) % addresses.size()];
      if (std::ranges::count(unreached, next.Text(), &Address::Text) == 0) return next;
    }
    return std::nullopt;
  }

  void TurnTo(const std::optional<Address>& leader) {
    std::vector<std::shared_ptr<grpc::GenericStub>> replaced;
    core::MutexLock lock(mutex_);
    if (!leader || leader->Text() == coordinator_.Text()) return;
    coordinator_ = *leader;
    at_.reset();
    control_ = MakeControl(at_);
    replaced.swap(bulk_stubs_);
  }

  std::shared_ptr<ControlChannel> MakeControl(const std::optional<Address>& at) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    auto channel = MakeChannel(coordinator_, options_, Traffic::kControl, at);
    auto stub = v1::Coordinator::NewStub(channel);
    return std::make_shared<ControlChannel>(std::move(channel), std::move(stub));
  }

  std::shared_ptr<ControlChannel> Control() {
    core::MutexLock lock(mutex_);
    return control_;
  }

  std::shared_ptr<grpc::GenericStub> NewStub() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return std::make_shared<grpc::GenericStub>(MakeChannel(coordinator_, options_, Traffic::kBulk, at_));
  }

  std::shared_ptr<grpc::GenericStub> BulkStub(int channel) {
    core::MutexLock lock(mutex_);
    while (bulk_stubs_.size() <= static_cast<size_t>(channel)) bulk_stubs_.push_back(NewStub());
    return bulk_stubs_[channel];
  }

  static constexpr size_t kMostLearned = 16;

  const std::vector<Address> given_;  // it and its standbys, as the user has said
  core::Mutex mutex_;
  core::RunId run_ ABSL_GUARDED_BY(mutex_);  // empty: not yet described
  std::vector<Address> learned_ ABSL_GUARDED_BY(mutex_);
  Address coordinator_ ABSL_GUARDED_BY(mutex_);
  const ChannelOptions options_;
  std::optional<Address> at_ ABSL_GUARDED_BY(mutex_);  // none: gRPC finds it
  std::shared_ptr<ControlChannel> control_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<grpc::GenericStub>> bulk_stubs_ ABSL_GUARDED_BY(mutex_);
  const std::shared_ptr<LaterLeader> later_ = std::make_shared<LaterLeader>();
};

}  // namespace

std::unique_ptr<Wire> MakeGrpcWire(const Address& coordinator, const ChannelOptions& options,
                                   const std::vector<Address>& all) {
  return std::make_unique<GrpcWire>(coordinator, options, all);
}

}  // namespace causeway::transport
