#include "tests/e2e/relay.h"

#include <chrono>
#include <cstdio>
#include <mutex>

namespace causeway {
namespace {

using Message = grpc::ByteBuffer;

// One call of a site, passed on. Each direction has one message on its way at a time.
class RelayedCall : public grpc::ServerGenericBidiReactor {
 public:
  RelayedCall(grpc::GenericCallbackServerContext* site, grpc::GenericStub* coordinator, RelayWatcher* watcher, int call)
      : watcher_(watcher), call_(call), outgoing_(*this) {
    watcher_->Opened(call_, site->method());
    coordinator->PrepareBidiStreamingCall(&context_, site->method(), grpc::StubOptions(), &outgoing_);
    outgoing_.AddHold();  // until the coordinator has said all
    outgoing_.StartCall();
    StartRead(&request_);
    outgoing_.StartRead(&response_);
  }

  void OnReadDone(bool ok) override {
    std::lock_guard lock(mutex_);
    if (answered_) return;
    if (!ok) {
      watcher_->HalfClosed(call_);
      outgoing_.StartWritesDone();
      return;
    }
    watcher_->Sent(call_, request_);
    outgoing_.StartWrite(&request_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) context_.TryCancel();  // the site is gone
    outgoing_.StartRead(&response_);
  }
  void OnCancel() override { context_.TryCancel(); }
  void OnDone() override { Release(); }

 private:
  class Outgoing : public grpc::ClientBidiReactor<Message, Message> {
   public:
    explicit Outgoing(RelayedCall& call) : call_(call) {}
    void OnReadDone(bool ok) override {
      if (!ok) {
        std::lock_guard lock(call_.mutex_);
        call_.answered_ = true;
        RemoveHold();
        return;
      }
      call_.watcher_->Received(call_.call_, call_.response_);
      call_.StartWrite(&call_.response_);
    }
    void OnWriteDone(bool ok) override {
      if (ok) call_.StartRead(&call_.request_);
    }
    void OnDone(const grpc::Status& status) override {
      call_.watcher_->Ended(call_.call_, status);
      call_.Finish(status);
      call_.Release();
    }

   private:
    RelayedCall& call_;
  };

  void Release() {
    if (--users_ == 0) delete this;
  }

  RelayWatcher* const watcher_;
  const int call_;
  grpc::ClientContext context_;
  Outgoing outgoing_;
  Message request_, response_;
  std::mutex mutex_;
  bool answered_ = false;       // under mutex_: nothing more may be sent
  std::atomic<int> users_ = 2;  // both sides' OnDone
};

}  // namespace

Relay::Relay(const std::string& coordinator, RelayWatcher* watcher)
    : watcher_(watcher), stub_([&] {
        grpc::ChannelArguments options;
        options.SetMaxReceiveMessageSize(-1);
        return grpc::CreateCustomChannel(coordinator, grpc::InsecureChannelCredentials(), options);
      }()) {}

grpc::ServerGenericBidiReactor* Relay::CreateReactor(grpc::GenericCallbackServerContext* context) {
  return new RelayedCall(context, &stub_, watcher_, next_call_++);
}

void Relay::Run() {
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterCallbackGenericService(this);
  builder.SetMaxReceiveMessageSize(-1);
  const auto server = builder.BuildAndStart();
  std::printf("127.0.0.1:%d\n", port);
  std::fflush(stdout);
  while (std::getchar() != EOF) continue;
  server->Shutdown(std::chrono::system_clock::now());
}

}  // namespace causeway
