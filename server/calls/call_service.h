// All calls. gRPC's own handlers read a call's first message, and parse it with protobuf, before ours are called: up to
// 8 MiB from any peer. Here a call is let in by its headers, or ended unread, and its messages stay bytes until
// transport/read_message.h has checked them.
//
// Added functions are called on gRPC's threads.
#pragma once

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server_builder.h>

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "core/limits.h"
#include "server/calls/gate.h"
#include "transport/read_message.h"

namespace causeway::server {

class CallService final : public grpc::CallbackGenericService {
 public:
  // The answer to a message, whose bytes are consumed.
  using Answer = std::function<absl::StatusOr<grpc::ByteBuffer>(const Peer& peer, grpc::ByteBuffer& message)>;
  using Stream = std::function<grpc::ServerGenericBidiReactor*(Peer peer)>;

  explicit CallService(Gate* gate);  // outlives it

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
  void AddStream(const std::string& method, Stream stream) { streams_[Path(method)] = std::move(stream); }

  void Register(grpc::ServerBuilder& builder);

 private:
  static std::string Path(const std::string& method);
  static std::string CallOf(const grpc::GenericCallbackServerContext& context);
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override;
  grpc::ServerGenericBidiReactor* Begin(const std::string& path, Peer peer);

  Gate* const gate_;
  const std::unique_ptr<grpc::Service> listed_;  // for reflection
  std::map<std::string, Answer> answers_;
  std::map<std::string, Stream> streams_;
};

}  // namespace causeway::server
