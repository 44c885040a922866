// The calls of one message: a question and its answer, and the streams that one message begins (Download). gRPC's own
// handlers for them are called when that message is here, which may be 8 MiB from anybody; here a call is let in by its
// headers first, and one that is not is ended unread. Everything that a grpc::Service marks as generic comes here.
//
// Threads: what is added is called on gRPC's.
#pragma once

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server_builder.h>

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/service/gate.h"
#include "transport/bulk_message.h"

namespace causeway::server {

class UnaryService final : public grpc::CallbackGenericService {
 public:
  // Its answer to a message, of which the bytes are used up.
  using Answer = std::function<absl::StatusOr<grpc::ByteBuffer>(const Peer& peer, grpc::ByteBuffer& message)>;
  using Stream = std::function<grpc::ServerGenericBidiReactor*(Peer peer)>;

  explicit UnaryService(Gate* gate) : gate_(gate) {}

  // `answer(peer, request, response)` is a Status.
  template <typename Request, typename Response, typename Function>
  void Add(const std::string& method, Function answer) {
    answers_[Path(method)] = [method, answer](const Peer& peer,
                                              grpc::ByteBuffer& message) -> absl::StatusOr<grpc::ByteBuffer> {
      Request request;
      if (!transport::FromBytes(message, &request)) {
        return absl::InvalidArgumentError(absl::StrCat("expected the request of ", method, ", got something else"));
      }
      Response response;
      const absl::Status status = answer(peer, request, response);
      if (!status.ok()) return status;
      return transport::ToBytes(response);
    };
  }
  void AddStream(const std::string& method, Stream stream) { streams_[Path(method)] = std::move(stream); }

 private:
  static std::string Path(const std::string& method);
  static std::string CallOf(const grpc::GenericCallbackServerContext& context);
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override;

  Gate* const gate_;
  std::map<std::string, Answer> answers_;
  std::map<std::string, Stream> streams_;
};

// All that one server answers.
struct Services {
  std::unique_ptr<grpc::Service> streams;
  std::unique_ptr<UnaryService> unary;

  void Register(grpc::ServerBuilder& builder) const {
    builder.RegisterService(streams.get());
    builder.RegisterCallbackGenericService(unary.get());
  }
};

}  // namespace causeway::server
