// grpc_flood HOST:PORT METHOD --connections=N --streams=N --messages=N --bytes=N --seconds=N [--token=TEXT,…]
//            [--first=FILE,…] [--message=FILE] [--reads] [--again]
// Opens calls of METHOD of causeway.v1.Coordinator, or of Rendezvous/Meet, and sends messages in each of them, until
// the time is over. Prints
// {"opened": N, "ended": N, "sent": N, "errors": {"…": N}}: how many calls the coordinator ended, and what it said of
// them.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "tests/transport/byte_buffer.h"

ABSL_FLAG(int, connections, 1, "TCP connections");
ABSL_FLAG(int, streams, 1, "calls on each of them");
ABSL_FLAG(int64_t, messages, 1, "in each call, besides the first; -1: no end");
ABSL_FLAG(int64_t, bytes, 0, "of a message that is no file's");
ABSL_FLAG(int, seconds, 10, "how long");
ABSL_FLAG(bool, early, false, "ends when all calls have");
ABSL_FLAG(std::vector<std::string>, token, {}, "to show; of several each call takes the next");
ABSL_FLAG(std::vector<std::string>, first, {}, "file of a call's first message; of several each call takes the next");
ABSL_FLAG(std::string, message, "", "file of the messages after it");
ABSL_FLAG(bool, reads, false, "reads the answers");
ABSL_FLAG(bool, again, false, "opens a call anew when it ends");

namespace {

std::string ContentsOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file.good()) {
    std::fprintf(stderr, "grpc_flood: cannot read %s\n", path.c_str());
    std::exit(2);
  }
  return {std::istreambuf_iterator<char>(file), {}};
}

// That which each call sends.
struct Plan {
  std::string method;
  std::vector<std::string> tokens = absl::GetFlag(FLAGS_token);
  std::vector<grpc::ByteBuffer> firsts;
  grpc::ByteBuffer message;
};

struct Call;

// The queue gives it back: a call's operation that is done.
struct Tag {
  enum Operation { kWrite, kRead, kEnd };  // kWrite: its start, too
  Call* call;
  Operation operation;
};

// In one place from its start to its last tag; a call that begins again is another one.
struct Call {
  Call(const Plan& plan, int64_t index, grpc::GenericStub* stub, grpc::CompletionQueue* queue)
      : index(index), stub(stub), left(absl::GetFlag(FLAGS_messages)) {
    if (!plan.tokens.empty()) {
      context.AddMetadata("authorization", "Bearer " + plan.tokens[static_cast<size_t>(index) % plan.tokens.size()]);
    }
    if (!plan.firsts.empty()) first = &plan.firsts[static_cast<size_t>(index) % plan.firsts.size()];
    stream = stub->PrepareCall(&context, plan.method, queue);
    open = absl::GetFlag(FLAGS_reads) ? 3 : 2;
    stream->StartCall(&write);
    if (absl::GetFlag(FLAGS_reads)) stream->Read(&answer, &read);
    stream->Finish(&status, &end);
  }

  // Whether there was a message to send.
  bool Write(const Plan& plan) {
    const grpc::ByteBuffer* next = std::exchange(first, nullptr);
    if (next == nullptr && left == 0) return false;
    if (next == nullptr) {
      next = &plan.message;
      left -= left > 0;
    }
    stream->Write(*next, &write);
    return true;
  }

  int64_t index;
  grpc::GenericStub* stub;
  int64_t left;
  int open = 0;  // operations
  const grpc::ByteBuffer* first = nullptr;
  grpc::ByteBuffer answer;
  grpc::ClientContext context;
  grpc::Status status;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream;
  Tag write{this, Tag::kWrite}, read{this, Tag::kRead}, end{this, Tag::kEnd};
};

}  // namespace

int main(int argc, char** argv) {
  const std::vector<char*> arguments = absl::ParseCommandLine(argc, argv);
  const std::string method = arguments.at(2);
  const bool of_coordinator = method.find('/') == std::string::npos;
  Plan plan{
      .method = (of_coordinator ? "/causeway.v1.Coordinator/" : "/causeway.v1.") + method, .firsts = {}, .message = {}};
  for (const std::string& path : absl::GetFlag(FLAGS_first))
    plan.firsts.push_back(causeway::BufferOf(ContentsOf(path)));
  const std::string path = absl::GetFlag(FLAGS_message);
  plan.message = causeway::BufferOf(path.empty() ? std::string(absl::GetFlag(FLAGS_bytes), '\x7f') : ContentsOf(path));
  grpc::CompletionQueue queue;
  std::map<int64_t, std::unique_ptr<Call>> calls;
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs;
  int64_t opened = 0, ended = 0, sent = 0;
  const auto open = [&](grpc::GenericStub* stub) {
    calls[opened] = std::make_unique<Call>(plan, opened, stub, &queue);
    ++opened;
  };
  for (int c = 0; c < absl::GetFlag(FLAGS_connections); ++c) {
    grpc::ChannelArguments options;
    options.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
    options.SetMaxSendMessageSize(-1);
    options.SetMaxReceiveMessageSize(-1);
    stubs.push_back(std::make_unique<grpc::GenericStub>(
        grpc::CreateCustomChannel(arguments.at(1), grpc::InsecureChannelCredentials(), options)));
    for (int s = 0; s < absl::GetFlag(FLAGS_streams); ++s) open(stubs.back().get());
  }
  const auto until = std::chrono::system_clock::now() + std::chrono::seconds(absl::GetFlag(FLAGS_seconds));
  std::map<std::string, int64_t> errors;
  void* got = nullptr;
  bool ok = false;
  while (!(absl::GetFlag(FLAGS_early) && calls.empty()) &&
         queue.AsyncNext(&got, &ok, until) == grpc::CompletionQueue::GOT_EVENT) {
    auto& [call, operation] = *static_cast<Tag*>(got);
    bool goes_on = false;
    if (operation == Tag::kEnd) {
      ++ended;
      ++errors[call->status.error_message()];
    } else if (operation == Tag::kRead && ok) {
      call->stream->Read(&call->answer, &call->read);
      goes_on = true;
    } else if (operation == Tag::kWrite && ok) {
      goes_on = call->Write(plan);
      sent += goes_on;
    }
    if (goes_on || --call->open > 0) continue;
    grpc::GenericStub* stub = call->stub;
    calls.erase(call->index);
    if (absl::GetFlag(FLAGS_again)) open(stub);
  }
  const nlohmann::json told{{"opened", opened}, {"ended", ended}, {"sent", sent}, {"errors", errors}};
  std::printf("%s\n", told.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  std::fflush(stdout);
  std::_Exit(0);  // calls are open
}
