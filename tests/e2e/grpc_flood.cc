// grpc_flood HOST:PORT METHOD --connections=N --streams=N --messages=N --bytes=N --seconds=N [--token=TEXT]
// Opens calls of METHOD of causeway.v1.Coordinator, sends messages of that size in each of them and reads no
// answer, until the time is over. Prints {"opened": N, "ended": N, "error": "…"}: how many calls the coordinator ended,
// and what it said of one of them.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdio>
#include <deque>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "tests/transport/byte_buffer.h"

ABSL_FLAG(int, connections, 1, "TCP connections");
ABSL_FLAG(int, streams, 1, "calls on each of them");
ABSL_FLAG(int, messages, 1, "in each call");
ABSL_FLAG(int64_t, bytes, 0, "of a message");
ABSL_FLAG(int, seconds, 10, "how long");
ABSL_FLAG(std::string, token, "", "to show");

namespace {

struct Call {
  grpc::ClientContext context;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream;
  int to_send = 0;
  bool over = false;
  grpc::Status status;
};

// The queue gives back a call whose start or last write is done, or one that has ended.
struct Tag {
  Call* call;
  bool ended;
};

}  // namespace

int main(int argc, char** argv) {
  const std::vector<char*> arguments = absl::ParseCommandLine(argc, argv);
  const std::string method = std::string("/causeway.v1.Coordinator/") + arguments.at(2);
  const grpc::ByteBuffer message = causeway::BufferOf(std::string(absl::GetFlag(FLAGS_bytes), '\x7f'));
  grpc::CompletionQueue queue;
  std::deque<Call> calls;
  std::deque<Tag> tags;
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs;
  const auto tag = [&tags](Call* call, bool ended) { return &tags.emplace_back(Tag{call, ended}); };
  for (int c = 0; c < absl::GetFlag(FLAGS_connections); ++c) {
    grpc::ChannelArguments options;
    options.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
    options.SetMaxSendMessageSize(-1);
    stubs.push_back(std::make_unique<grpc::GenericStub>(
        grpc::CreateCustomChannel(arguments.at(1), grpc::InsecureChannelCredentials(), options)));
    for (int s = 0; s < absl::GetFlag(FLAGS_streams); ++s) {
      Call& call = calls.emplace_back();
      call.to_send = absl::GetFlag(FLAGS_messages);
      if (!absl::GetFlag(FLAGS_token).empty()) {
        call.context.AddMetadata("authorization", "Bearer " + absl::GetFlag(FLAGS_token));
      }
      call.stream = stubs.back()->PrepareCall(&call.context, method, &queue);
      call.stream->StartCall(tag(&call, false));
      call.stream->Finish(&call.status, tag(&call, true));
    }
  }
  const auto until = std::chrono::system_clock::now() + std::chrono::seconds(absl::GetFlag(FLAGS_seconds));
  void* got = nullptr;
  bool ok = false;
  while (queue.AsyncNext(&got, &ok, until) == grpc::CompletionQueue::GOT_EVENT) {
    const auto& [call, ended] = *static_cast<Tag*>(got);
    if (ended) {
      call->over = true;
    } else if (ok && call->to_send-- > 0) {
      call->stream->Write(message, tag(call, false));
    }
  }
  int over = 0;
  std::string error;
  for (const Call& call : calls) {
    over += call.over;
    if (call.over) error = call.status.error_message();
  }
  std::printf("%s\n", nlohmann::json{{"opened", calls.size()}, {"ended", over}, {"error", error}}.dump().c_str());
  std::fflush(stdout);
  std::_Exit(0);  // calls are open
}
