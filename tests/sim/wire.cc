// The caller's end of a simulated call under gRPC's stream interfaces, and the wire that a site's link and a shard's
// follower call through.
#include <algorithm>
#include <optional>
#include <set>

#include "core/mutex.h"
#include "core/thread.h"
#include "tests/sim/network.h"
#include "tests/sim/segments.h"
#include "transport/messages.h"

namespace causeway::sim {
namespace {

const grpc::Status kCancelled(grpc::StatusCode::CANCELLED, "cancelled");

template <typename Request, typename Response>
class ClientEnd final : public End, public grpc::ClientCallbackReaderWriter<Request, Response> {
 public:
  using Reactor = grpc::ClientBidiReactor<Request, Response>;

  ClientEnd(std::shared_ptr<Process> process, std::function<void(const std::shared_ptr<End>&)> open, Reactor* reactor,
            std::function<void()> over)
      : End(std::move(process), /*is_client=*/true),
        open_(std::move(open)),
        reactor_(reactor),
        on_over_(std::move(over)) {
    this->BindReactor(reactor);
  }

  void StartCall() override {
    open_(shared_from_this());
    started_ = true;
    for (const auto& operation : std::exchange(before_, {})) operation();
  }
  void Write(const Request* request, grpc::WriteOptions options) override {
    WhenStarted([this, text = Text(*request), last = options.is_last_message()] {
      Send(MessageOf(text), [this](bool ok) { reactor_->OnWriteDone(ok); });
      if (last) Send(HalfClose(), nullptr);
    });
  }
  void WritesDone() override {
    WhenStarted([this] { Send(HalfClose(), [this](bool ok) { reactor_->OnWritesDoneDone(ok); }); });
  }
  void Read(Response* response) override {
    WhenStarted([this, response] {
      End::Read([this, response](const std::string* text) {
        if (text != nullptr) Parse(*text, response);
        reactor_->OnReadDone(text != nullptr);
      });
    });
  }
  void AddHold(int holds) override { holds_ += holds; }
  void RemoveHold() override {
    --holds_;
    if (started_) Progress();
  }

 private:
  void WhenStarted(std::function<void()> operation) {
    started_ ? operation() : before_.push_back(std::move(operation));
  }
  bool MayEnd() const override { return holds_ == 0; }
  void OnOver(const grpc::Status& status) override {
    on_over_();
    reactor_->OnDone(status);
  }

  const std::function<void(const std::shared_ptr<End>&)> open_;
  Reactor* const reactor_;
  const std::function<void()> on_over_;
  bool started_ = false;
  std::vector<std::function<void()>> before_;
  int holds_ = 0;
};

// Calls that block, of a shard's follower and of Describe.
template <typename Request, typename Response>
class BlockingEnd final : public End {
 public:
  explicit BlockingEnd(std::shared_ptr<Process> process) : End(std::move(process), /*is_client=*/true) {}

  bool Write(const Request& request) {
    return Await<bool>([&](auto answer) { Send(MessageOf(Text(request)), answer); });
  }
  bool Read(Response* response) {
    return Await<bool>([&](auto answer) {
      End::Read([answer, response](const std::string* text) {
        if (text != nullptr) Parse(*text, response);
        answer(text != nullptr);
      });
    });
  }
  grpc::Status Finish() {
    finishing_ = true;
    Progress();
    core::MutexLock lock(mutex_);
    lock.Wait(changed_, [&] { return finished_.has_value(); });
    return *finished_;
  }

 private:
  template <typename Answer, typename Begin>
  Answer Await(Begin begin) {
    auto answer = std::make_shared<std::optional<Answer>>();
    begin([this, self = shared_from_this(), answer](Answer value) {
      core::MutexLock lock(mutex_);
      *answer = value;
      changed_.NotifyAll();
    });
    core::MutexLock lock(mutex_);
    lock.Wait(changed_, [&] { return answer->has_value(); });
    return **answer;
  }
  bool MayEnd() const override { return finishing_; }
  void OnOver(const grpc::Status& status) override {
    core::MutexLock lock(mutex_);
    finished_ = status;
    changed_.NotifyAll();
  }

  core::Mutex mutex_;
  core::Condition changed_;
  bool finishing_ = false;
  std::optional<grpc::Status> finished_;
};

template <typename Request, typename Response>
class BlockingStream final : public grpc::ClientReaderWriterInterface<Request, Response> {
 public:
  explicit BlockingStream(std::shared_ptr<BlockingEnd<Request, Response>> end) : end_(std::move(end)) {}

  void WaitForInitialMetadata() override {}
  bool WritesDone() override { return true; }
  grpc::Status Finish() override { return end_->Finish(); }
  bool Write(const Request& message, grpc::WriteOptions) override { return end_->Write(message); }
  bool NextMessageSize(uint32_t*) override { return false; }
  bool Read(Response* message) override { return end_->Read(message); }

 private:
  const std::shared_ptr<BlockingEnd<Request, Response>> end_;
};

using FollowEnd = BlockingEnd<v1::FollowMessage, v1::MembershipUpdate>;
using ReplicateEnd = BlockingEnd<v1::ReplicateMessage, v1::ReplicateReply>;

class SimulatedWire final : public transport::Wire {
 public:
  SimulatedWire(Network* network, std::shared_ptr<Process> process, Node from, std::vector<Node> nodes)
      : network_(*network), process_(std::move(process)), from_(std::move(from)), nodes_(std::move(nodes)) {}

  grpc::Status Describe(const core::SiteId& site, absl::FunctionRef<bool()>, v1::RunDescription& description) override {
    Dial();
    v1::DescribeRequest request;
    request.mutable_context()->set_protocol(transport::kProtocol);
    request.mutable_context()->set_site(site);
    return network_.Describe(process_, from_, to_, request, description);
  }

  // To the one that leads in the latest epoch; where none does, to the next that answers.
  void Dial() override {
    if (nodes_.size() == 1) return;
    std::optional<size_t> leader, next;
    uint64_t epoch = 0;
    const size_t at = std::ranges::find(nodes_, to_) - nodes_.begin();
    for (size_t i = 1; i <= nodes_.size(); ++i) {
      const size_t node = (at + i) % nodes_.size();
      v1::DescribeRequest request;
      request.mutable_context()->set_protocol(transport::kProtocol);
      v1::RunDescription description;
      if (!network_.Describe(process_, from_, nodes_[node], request, description).ok()) continue;
      if (!next) next = node;
      if (!description.standby_of().empty() || description.epoch() <= epoch) continue;
      leader = node;
      epoch = description.epoch();
    }
    if (!leader) leader = next;
    if (!leader || nodes_[*leader] == to_) return;
    to_ = nodes_[*leader];
    connections_.clear();
  }

  bool AwaitConnected(Clock::TimePoint until) override {
    core::SleepUntil(until);
    return false;
  }

  void Prepare(grpc::ClientContext& context, transport::ControlCall& call) override {
    Bind<v1::SiteMessage, v1::CoordinatorMessage>(Method::kControl, context, call);
  }
  void Prepare(int channel, const std::string& method, grpc::ClientContext& context,
               transport::BulkCall& call) override {
    Bind<grpc::ByteBuffer, grpc::ByteBuffer>(method.ends_with("/Upload") ? Method::kUpload : Method::kDownload, context,
                                             call, channel);
  }
  void Redial(int channel) override { connections_.erase(channel); }
  std::unique_ptr<transport::FollowCall> Follow(grpc::ClientContext& context) override {
    Dial();
    auto end = std::make_shared<FollowEnd>(process_);
    ends_[&context] = end;
    Open(Method::kFollow, end);
    if (cancelled_.erase(&context) > 0) end->Break(kCancelled);
    return std::make_unique<BlockingStream<v1::FollowMessage, v1::MembershipUpdate>>(end);
  }
  void Cancel(grpc::ClientContext& context) override {
    const auto found = ends_.find(&context);
    if (found == ends_.end()) {
      cancelled_.insert(&context);  // before its call, which may wait until the leader is found
      return;
    }
    const std::shared_ptr<End> end = found->second;
    end->Break(kCancelled);
  }

  std::unique_ptr<Timer> After(Clock::Duration time, std::function<void()> call) override {
    return std::make_unique<SimulatedTimer>(network_.machine(), process_, time, std::move(call));
  }

 private:
  class SimulatedTimer final : public Timer {
   public:
    SimulatedTimer(Machine& machine, const std::shared_ptr<Process>& process, Clock::Duration time,
                   std::function<void()> call)
        : machine_(machine), state_(std::make_shared<State>(State{process, std::move(call)})) {
      machine.After(time, [&machine, state = state_] { Fire(machine, *state); });
    }
    void Cancel() override { Fire(machine_, *state_); }

   private:
    struct State {
      std::shared_ptr<Process> process;
      std::function<void()> call;
    };
    static void Fire(Machine& machine, State& state) {
      if (state.call) machine.Spawn(state.process, std::exchange(state.call, nullptr));
    }
    Machine& machine_;
    const std::shared_ptr<State> state_;
  };

  static constexpr int kControlChannel = -1;

  int64_t ConnectionOf(int channel, Method method) {
    const auto found = connections_.find(channel);
    if (found != connections_.end() && !network_.IsClosed(found->second)) return found->second;
    return connections_[channel] = network_.Connect(from_, to_, method);
  }
  void Open(Method method, const std::shared_ptr<End>& end, int channel = kControlChannel) {
    auto call = std::make_shared<Call>(&network_, network_.NextCall(), method, from_, to_);
    call->connection = ConnectionOf(channel, method);
    network_.Open(call, end);
  }
  template <typename Request, typename Response>
  void Bind(Method method, grpc::ClientContext& context, grpc::ClientBidiReactor<Request, Response>& reactor,
            int channel = kControlChannel) {
    auto end = std::make_shared<ClientEnd<Request, Response>>(
        process_, [this, method, channel](const std::shared_ptr<End>& self) { Open(method, self, channel); }, &reactor,
        [this, key = &context] { ends_.erase(key); });
    ends_[&context] = end;
  }

  Network& network_;
  const std::shared_ptr<Process> process_;
  const Node from_;
  const std::vector<Node> nodes_;
  Node to_ = nodes_.front();
  std::map<const grpc::ClientContext*, std::shared_ptr<End>> ends_;  // until the call is over
  std::set<const grpc::ClientContext*> cancelled_;
  std::map<int, int64_t> connections_;  // by channel
};

}  // namespace

std::unique_ptr<transport::Wire> Network::MakeWire(const std::shared_ptr<Process>& process, const Node& from,
                                                   const std::vector<Node>& to) {
  return std::make_unique<SimulatedWire>(this, process, from, to);
}

void Network::Open(Method method, const Node& from, const Node& to, const std::shared_ptr<End>& end) {
  auto call = std::make_shared<Call>(this, NextCall(), method, from, to);
  call->connection = Connect(from, to, method);
  Open(call, end);
}

grpc::Status Network::Describe(const std::shared_ptr<Process>& process, const Node& from, const Node& to,
                               const v1::DescribeRequest& request, v1::RunDescription& description) {
  auto end = std::make_shared<BlockingEnd<v1::DescribeRequest, v1::RunDescription>>(process);
  Open(Method::kDescribe, from, to, end);
  machine_.After(std::chrono::seconds(5), [late = std::weak_ptr(end)] {
    const auto open = late.lock();
    if (open && open->process()->alive()) open->Break({grpc::StatusCode::DEADLINE_EXCEEDED, "no answer within 5 s"});
  });
  end->Write(request);
  if (end->Read(&description)) {
    v1::RunDescription more;
    end->Read(&more);
  }
  return end->Finish();
}

std::unique_ptr<Network::ReplicateCall> Network::Replicate(const std::shared_ptr<Process>& process, const Node& from,
                                                           const Node& to, std::function<void()>& cancel) {
  auto end = std::make_shared<ReplicateEnd>(process);
  Open(Method::kReplicate, from, to, end);
  cancel = [end] { end->Break(kCancelled); };
  return std::make_unique<BlockingStream<v1::ReplicateMessage, v1::ReplicateReply>>(end);
}

}  // namespace causeway::sim
