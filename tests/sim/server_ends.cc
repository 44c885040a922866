// The coordinator's end of a simulated call: gRPC's stream interfaces, which its reactors are bound to.
#include <algorithm>

#include "tests/sim/network.h"
#include "tests/sim/segments.h"
#include "tests/transport/byte_buffer.h"

namespace causeway::sim {
namespace {

class ServerEnd final : public End, public grpc::ServerCallbackReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  explicit ServerEnd(std::shared_ptr<Process> process) : End(std::move(process), /*is_client=*/false) {}

  void Bind(CallReactor* reactor) {
    reactor_ = reactor;
    this->BindReactor(reactor);
    if (broken_) OnBroken();
  }

  void Finish(grpc::Status status) override {
    finished_ = true;
    Send(StatusOf(status), nullptr);
  }
  void SendInitialMetadata() override {}
  void Read(grpc::ByteBuffer* request) override {
    End::Read([this, request](const std::string* text) {
      if (text != nullptr) Parse(*text, request);
      reactor_->OnReadDone(text != nullptr);
    });
  }
  void Write(const grpc::ByteBuffer* response, grpc::WriteOptions) override {
    Send(MessageOf(Text(*response)), [this](bool ok) { reactor_->OnWriteDone(ok); });
  }
  void WriteAndFinish(const grpc::ByteBuffer* response, grpc::WriteOptions, grpc::Status status) override {
    Send(MessageOf(Text(*response)), nullptr);
    Finish(status);
  }

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

  CallReactor* reactor_ = nullptr;
  bool finished_ = false;
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

}  // namespace

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
      return serve(std::make_shared<ServerEnd>(listener.process),
                   [listener](auto& end) { end.Bind(listener.server->NewControl()); });
    case Method::kUpload:
      return serve(std::make_shared<ServerEnd>(listener.process),
                   [listener](auto& end) { end.Bind(listener.server->NewUpload()); });
    case Method::kFollow:
      return serve(std::make_shared<ServerEnd>(listener.process),
                   [listener](auto& end) { end.Bind(listener.server->NewFollow()); });
    case Method::kDescribe:
      return serve(std::make_shared<DescribeServerEnd>(listener.process, listener.server),
                   [](auto& end) { end.Answer(); });
    case Method::kReplicate:
      return serve(std::make_shared<ServerEnd>(listener.process),
                   [listener](auto& end) { end.Bind(listener.server->NewReplicate()); });
    case Method::kDownload:
      return serve(std::make_shared<ServerEnd>(listener.process),
                   [listener](auto& end) { end.Bind(listener.server->NewDownload()); });
  }
}

}  // namespace causeway::sim
