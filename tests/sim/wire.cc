// gRPC's stream interfaces over the ends of a simulated call, and the wire that a site's link and a shard's follower
// call through.
#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/mutex.h"
#include "core/thread.h"
#include "tests/sim/network.h"
#include "transport/bulk_message.h"
#include "transport/messages.h"

namespace causeway::sim {
namespace {

const grpc::Status kCancelled(grpc::StatusCode::CANCELLED, "cancelled");

std::string Text(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  CHECK(buffer.Dump(&slices).ok());
  std::string text;
  for (const grpc::Slice& slice : slices) text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return text;
}
template <typename Message>
std::string Text(const Message& message) {
  return message.SerializeAsString();
}
void Parse(const std::string& text, grpc::ByteBuffer* buffer) { *buffer = BytesOf(text); }
template <typename Message>
void Parse(const std::string& text, Message* message) {
  CHECK(message->ParseFromString(text));
}

Segment MessageOf(std::string text) {
  return {.kind = Segment::Kind::kMessage, .message = std::move(text), .status = {}};
}
Segment StatusOf(const grpc::Status& status) {
  return {.kind = Segment::Kind::kStatus, .message = {}, .status = status};
}
Segment HalfClose() { return {.kind = Segment::Kind::kHalfClose, .message = {}, .status = {}}; }

// ---- Clients ----

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

using FollowEnd = BlockingEnd<v1::FollowMessage, v1::MembershipUpdate>;

class BlockingFollow final : public transport::FollowCall {
 public:
  explicit BlockingFollow(std::shared_ptr<FollowEnd> end) : end_(std::move(end)) {}

  void WaitForInitialMetadata() override {}
  bool WritesDone() override { return true; }
  grpc::Status Finish() override { return end_->Finish(); }
  bool Write(const v1::FollowMessage& message, grpc::WriteOptions) override { return end_->Write(message); }
  bool NextMessageSize(uint32_t*) override { return false; }
  bool Read(v1::MembershipUpdate* update) override { return end_->Read(update); }

 private:
  const std::shared_ptr<FollowEnd> end_;
};

// ---- Servers ----

template <typename Base, typename Response, typename Reactor>
class ServerEnd : public End, public Base {
 public:
  explicit ServerEnd(std::shared_ptr<Process> process) : End(std::move(process), /*is_client=*/false) {}

  void Bind(Reactor* reactor) {
    reactor_ = reactor;
    this->BindReactor(reactor);
    if (broken_) OnBroken();
  }

  void Finish(grpc::Status status) override {
    finished_ = true;
    Send(StatusOf(status), nullptr);
  }
  void SendInitialMetadata() override {}
  void Write(const Response* response, grpc::WriteOptions) override {
    Send(MessageOf(Text(*response)), [this](bool ok) { reactor_->OnWriteDone(ok); });
  }
  void WriteAndFinish(const Response* response, grpc::WriteOptions, grpc::Status status) override {
    Send(MessageOf(Text(*response)), nullptr);
    Finish(status);
  }

 protected:
  Reactor* reactor_ = nullptr;

 private:
  grpc::internal::ServerReactor* reactor() override { return reactor_; }
  void CallOnDone() override {}
  bool MayEnd() const override { return finished_; }
  void OnBroken() override {
    if (!finished_ && reactor_ != nullptr) {
      Complete([this] { reactor_->OnCancel(); });
    }
  }
  void OnOver(const grpc::Status&) override {
    if (reactor_ != nullptr) reactor_->OnDone();
  }

  bool finished_ = false;
};

template <typename Request, typename Response>
class BidiServerEnd final : public ServerEnd<grpc::ServerCallbackReaderWriter<Request, Response>, Response,
                                             grpc::ServerBidiReactor<Request, Response>> {
 public:
  using ServerEnd<grpc::ServerCallbackReaderWriter<Request, Response>, Response,
                  grpc::ServerBidiReactor<Request, Response>>::ServerEnd;

  void Read(Request* request) override {
    End::Read([this, request](const std::string* text) {
      if (text != nullptr) Parse(*text, request);
      this->reactor_->OnReadDone(text != nullptr);
    });
  }
};

class WriterServerEnd final : public ServerEnd<grpc::ServerCallbackWriter<grpc::ByteBuffer>, grpc::ByteBuffer,
                                               grpc::ServerWriteReactor<grpc::ByteBuffer>> {
 public:
  using ServerEnd::ServerEnd;

  // gRPC makes the reactor when the only message of the client is here.
  void AwaitRequest(std::function<void(const grpc::ByteBuffer&)> take) {
    End::Read([this, take = std::move(take)](const std::string* text) {
      if (text == nullptr) return Finish(kCancelled);
      take(BytesOf(*text));
    });
  }
};

class DescribeServerEnd final : public End {
 public:
  DescribeServerEnd(std::shared_ptr<Process> process, std::shared_ptr<Server> server)
      : End(std::move(process), /*is_client=*/false), server_(std::move(server)) {}
  void Answer() {
    End::Read([this](const std::string* text) {
      v1::DescribeRequest request;
      if (text != nullptr) Parse(*text, &request);
      v1::RunDescription description;
      const grpc::Status status = server_->Describe(request, &description);
      if (status.ok()) Send(MessageOf(description.SerializeAsString()), nullptr);
      Send(StatusOf(status), nullptr);
    });
  }

 private:
  bool MayEnd() const override { return has_status_; }
  void OnBroken() override { has_status_ = true; }
  void OnOver(const grpc::Status&) override {}

  const std::shared_ptr<Server> server_;
};

// ---- The wire ----

class SimulatedWire final : public transport::Wire {
 public:
  SimulatedWire(Network* network, std::shared_ptr<Process> process, Node from, Node to)
      : network_(*network), process_(std::move(process)), from_(std::move(from)), to_(std::move(to)) {}

  grpc::Status Describe(const core::SiteId& site, absl::FunctionRef<bool()>, v1::RunDescription& description) override {
    auto end = std::make_shared<BlockingEnd<v1::DescribeRequest, v1::RunDescription>>(process_);
    Open(Method::kDescribe, end);
    v1::DescribeRequest request;
    request.mutable_context()->set_protocol(transport::kProtocol);
    request.mutable_context()->set_site(site);
    end->Write(request);
    if (end->Read(&description)) {
      v1::RunDescription more;
      end->Read(&more);
    }
    return end->Finish();
  }

  bool AwaitConnected(Clock::TimePoint until) override {
    core::SleepUntil(until);
    return false;
  }

  void Prepare(grpc::ClientContext& context, transport::ControlCall& call) override {
    Bind<v1::SiteMessage, v1::CoordinatorMessage>(Method::kControl, context, call);
  }
  void Prepare(int, const std::string& method, grpc::ClientContext& context, transport::BulkCall& call) override {
    Bind<grpc::ByteBuffer, grpc::ByteBuffer>(method.ends_with("/Upload") ? Method::kUpload : Method::kDownload, context,
                                             call);
  }
  std::unique_ptr<transport::FollowCall> Follow(grpc::ClientContext& context) override {
    auto end = std::make_shared<FollowEnd>(process_);
    ends_[&context] = end;
    Open(Method::kFollow, end);
    return std::make_unique<BlockingFollow>(end);
  }
  void Cancel(grpc::ClientContext& context) override {
    const auto found = ends_.find(&context);
    if (found == ends_.end()) return;
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

  void Open(Method method, const std::shared_ptr<End>& end) {
    auto call = std::make_shared<Call>(&network_, method, from_, to_);
    network_.Open(call, end);
  }
  template <typename Request, typename Response>
  void Bind(Method method, grpc::ClientContext& context, grpc::ClientBidiReactor<Request, Response>& reactor) {
    auto end = std::make_shared<ClientEnd<Request, Response>>(
        process_, [this, method](const std::shared_ptr<End>& self) { Open(method, self); }, &reactor,
        [this, key = &context] { ends_.erase(key); });
    ends_[&context] = end;
  }

  Network& network_;
  const std::shared_ptr<Process> process_;
  const Node from_, to_;
  std::map<const grpc::ClientContext*, std::shared_ptr<End>> ends_;  // until the call is over
};

}  // namespace

std::unique_ptr<transport::Wire> Network::MakeWire(const std::shared_ptr<Process>& process, const Node& from,
                                                   const Node& to) {
  return std::make_unique<SimulatedWire>(this, process, from, to);
}

// The connection has come to the node that it is to.
void Network::Accept(const std::shared_ptr<Call>& call) {
  if (call->client->over() || call->server != nullptr) return;
  const auto found = listeners_.find(call->server_node);
  if (found == listeners_.end() || !found->second.process->alive()) {
    machine_.After(microseconds(DelayUs()), [this, call] {
      Carry({call->server_node, call->client_node},
            [call] { call->client->Break(grpc::Status(grpc::StatusCode::UNAVAILABLE, "connection refused")); });
    });
    return;
  }
  const Listener listener = found->second;
  const auto serve = [&](auto end, auto begin) {
    end->call_ = call;
    call->server = end;
    if (std::ranges::count(calls_, call) == 0) calls_.push_back(call);  // the client has ended meanwhile
    end->Complete([end, begin] { begin(*end); });
    Connected(*call);
  };
  switch (call->method) {
    case Method::kControl:
      return serve(std::make_shared<BidiServerEnd<v1::SiteMessage, v1::CoordinatorMessage>>(listener.process),
                   [listener](auto& end) { end.Bind(listener.server->NewControl()); });
    case Method::kUpload:
      return serve(std::make_shared<BidiServerEnd<grpc::ByteBuffer, grpc::ByteBuffer>>(listener.process),
                   [listener](auto& end) { end.Bind(listener.server->NewUpload()); });
    case Method::kFollow:
      return serve(std::make_shared<BidiServerEnd<v1::FollowMessage, v1::MembershipUpdate>>(listener.process),
                   [listener](auto& end) { end.Bind(listener.server->NewFollow()); });
    case Method::kDescribe:
      return serve(std::make_shared<DescribeServerEnd>(listener.process, listener.server),
                   [](auto& end) { end.Answer(); });
    case Method::kDownload:
      return serve(std::make_shared<WriterServerEnd>(listener.process), [listener](auto& end) {
        end.AwaitRequest(
            [listener, &end](const grpc::ByteBuffer& request) { end.Bind(listener.server->NewDownload(request)); });
      });
  }
}

}  // namespace causeway::sim
