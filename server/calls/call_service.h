// All calls. gRPC's own handlers read a call's first message, and parse it with protobuf, before ours are called: up to
// 8 MiB from any peer. Here a call is let in by its headers, or ended unread, and its messages stay bytes until
// transport/read_message.h has checked them.
//
// Added functions are called on gRPC's threads, and those that take long, like History's, one after the other on a
// thread of their own, so that gRPC's threads go on with the sites meanwhile.
#pragma once

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server_builder.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "core/limits.h"
#include "core/mutex.h"
#include "core/thread.h"
#include "server/calls/gate.h"
#include "transport/read_message.h"

namespace causeway::server {

class CallService final : public grpc::CallbackGenericService {
 public:
  // The answer to a message, whose bytes are consumed.
  using Answer = std::function<absl::StatusOr<grpc::ByteBuffer>(const Peer& peer, grpc::ByteBuffer& message)>;
  using Stream = std::function<grpc::ServerGenericBidiReactor*(Peer peer)>;

  // `gate` outlives it. Each call's end carries the lineage of the coordinator's state; empty: it has none now.
  // `otherwise`: how a call ends that was not added.
  CallService(Gate* gate, std::string lineage,
              absl::Status otherwise = absl::UnimplementedError("this coordinator has no such call now"));
  ~CallService() override;

  // Adds a unary call: `answer(peer, request, response)` returns a Status. A longer request is refused.
  template <typename Request, typename Response, typename Function>
  void Add(const std::string& method, Function answer, int64_t most_bytes = core::kMaxQuestionBytes) {
    answers_[Path(method)] = [answer, most_bytes](const Peer& peer,
                                                  grpc::ByteBuffer& message) -> absl::StatusOr<grpc::ByteBuffer> {
      Request request;
      absl::Status status = transport::ReadMessage(message, &request, most_bytes);
      Response response;
      if (status.ok()) status = answer(peer, request, response);
      if (!status.ok()) return status;
      return transport::ToBytes(response);
    };
  }
  void AnswerAside(const std::string& method) { aside_.insert(Path(method)); }
  void AddStream(const std::string& method, Stream stream) { streams_[Path(method)] = std::move(stream); }

  void Register(grpc::ServerBuilder& builder);
  grpc::ServerGenericBidiReactor* Begin(const std::string& path, Peer peer);  // of a call
  static std::string Path(const std::string& method);

 private:
  Peer Receive(grpc::CallbackServerContext& context, const std::string& call) const;
  static std::string CallOf(const grpc::GenericCallbackServerContext& context);
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override;
  void Defer(std::function<void()> answer);
  void AnswerWaiting();

  Gate* const gate_;
  const std::string lineage_;
  const absl::Status otherwise_;
  const std::unique_ptr<grpc::Service> listed_;  // describes the methods to gRPC's reflection
  std::map<std::string, Answer> answers_;
  std::map<std::string, Stream> streams_;
  std::set<std::string> aside_;  // the paths of answers_ that thread_ answers
  core::Mutex mutex_;
  core::Condition changed_;
  std::deque<std::function<void()>> waiting_ ABSL_GUARDED_BY(mutex_);
  bool ends_ ABSL_GUARDED_BY(mutex_) = false;
  core::Thread thread_;  // uses everything above
};

}  // namespace causeway::server
