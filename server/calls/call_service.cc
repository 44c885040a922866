#include "server/calls/call_service.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "causeway/v1/coordinator.grpc.pb.h"
#include "server/calls/reactors.h"
#include "transport/answers.h"

namespace causeway::server {
namespace {

// All methods except one are answered as generic ones: reflection lists no service that has only generic methods.
using Generic = v1::Coordinator::WithGenericMethod_Describe<
    v1::Coordinator::WithGenericMethod_Control<v1::Coordinator::WithRawCallbackMethod_Upload<
        v1::Coordinator::WithGenericMethod_Download<v1::Coordinator::WithGenericMethod_GetStatus<
            v1::Coordinator::WithGenericMethod_DrainSite<v1::Coordinator::WithGenericMethod_ChangeRun<
                v1::Coordinator::WithGenericMethod_ChangeSettings<v1::Coordinator::WithGenericMethod_ReleaseSite<
                    v1::Coordinator::WithGenericMethod_Rollback<v1::Coordinator::WithGenericMethod_GetHistory<
                        v1::Coordinator::WithGenericMethod_Follow<v1::Coordinator::WithGenericMethod_Show<
                            v1::Coordinator::WithGenericMethod_KeepFile<v1::Coordinator::WithGenericMethod_GetFile<
                                v1::Coordinator::WithGenericMethod_Replicate<v1::Coordinator::WithGenericMethod_Promote<
                                    v1::Coordinator::WithGenericMethod_ForgetStandby<
                                        v1::Coordinator::Service>>>>>>>>>>>>>>>>>>;

class Listed final : public Generic {
 public:
  using BeginUpload = std::function<grpc::ServerGenericBidiReactor*(grpc::CallbackServerContext& context)>;
  explicit Listed(BeginUpload begin_upload) : begin_upload_(std::move(begin_upload)) {}

 private:
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Upload(grpc::CallbackServerContext* context) override {
    return begin_upload_(*context);
  }

  const BeginUpload begin_upload_;
};

class UnaryCall final : public GatedCall {
 public:
  using Defer = std::function<void(std::function<void()>)>;

  // `defer` is called with what answers; null: it is answered at once. Without an answer it ends with `otherwise`.
  UnaryCall(Gate* gate, Peer peer, const CallService::Answer* answer, Defer defer, const absl::Status& otherwise)
      : GatedCall(gate, std::move(peer)), answer_(answer), defer_(std::move(defer)), otherwise_(otherwise) {}

 private:
  absl::Status Exists() const override { return answer_ != nullptr ? absl::OkStatus() : otherwise_; }

  void OnReadDone(bool ok) override {
    if (!ok) return End(absl::InvalidArgumentError("expected one message, got none"));
    Spoke();
    if (defer_ != nullptr) return defer_([this, self = self()] { Answer(); });
    Answer();
  }

  void Answer() {
    absl::StatusOr<grpc::ByteBuffer> answer = (*answer_)(peer_, incoming_);
    if (!answer.ok()) return End(answer.status());
    incoming_ = *std::move(answer);
    core::MutexLock lock(mutex_);
    FinishWith(incoming_);
  }

  const CallService::Answer* const answer_;
  const Defer defer_;
  const absl::Status& otherwise_;
};

}  // namespace

CallService::CallService(Gate* gate, std::string lineage, absl::Status otherwise)
    : gate_(gate),
      lineage_(std::move(lineage)),
      otherwise_(std::move(otherwise)),
      listed_(std::make_unique<Listed>(
          [this](grpc::CallbackServerContext& context) { return Begin(Path("Upload"), Receive(context, "Upload")); })),
      thread_([this] { AnswerWaiting(); }) {}

CallService::~CallService() {
  {
    const core::MutexLock lock(mutex_);
    ends_ = true;
  }
  changed_.NotifyAll();
  thread_.Join();
}

void CallService::Defer(std::function<void()> answer) {
  {
    const core::MutexLock lock(mutex_);
    waiting_.push_back(std::move(answer));
  }
  changed_.NotifyAll();
}

void CallService::AnswerWaiting() {
  while (true) {
    std::function<void()> next;
    {
      core::MutexLock lock(mutex_);
      lock.Wait(changed_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ends_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      next = std::move(waiting_.front());
      waiting_.pop_front();
    }
    next();
  }
}

void CallService::Register(grpc::ServerBuilder& builder) {
  builder.RegisterService(listed_.get());
  builder.RegisterCallbackGenericService(this);
}

std::string CallService::Path(const std::string& method) {
  return absl::StrCat("/", v1::Coordinator::service_full_name(), "/", method);
}

std::string CallService::CallOf(const grpc::GenericCallbackServerContext& context) {
  return context.method().substr(std::min(Path("").size(), context.method().size()));
}

Peer CallService::Receive(grpc::CallbackServerContext& context, const std::string& call) const {
  context.AddTrailingMetadata(transport::kAnswerTrailer, lineage_);
  return PeerOf(context, call);
}

grpc::ServerGenericBidiReactor* CallService::CreateReactor(grpc::GenericCallbackServerContext* context) {
  return Begin(context->method(), Receive(*context, CallOf(*context)));
}

grpc::ServerGenericBidiReactor* CallService::Begin(const std::string& path, Peer peer) {
  const auto stream = streams_.find(path);
  if (stream != streams_.end()) return stream->second(std::move(peer));
  const auto answer = answers_.find(path);
  UnaryCall::Defer defer;
  if (aside_.contains(path)) defer = [this](std::function<void()> then) { Defer(std::move(then)); };
  return GatedCall::Begin(std::make_shared<UnaryCall>(
      gate_, std::move(peer), answer == answers_.end() ? nullptr : &answer->second, std::move(defer), otherwise_));
}

}  // namespace causeway::server
