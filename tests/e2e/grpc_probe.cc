// grpc_probe HOST:PORT [SERVICE]: what gRPC's own tools (grpcurl, grpc_health_probe, Kubernetes' probes) would learn of
// a server, by their wire formats alone (grpc.health.v1, grpc.reflection.v1alpha).
//
// Prints {"serving": true|false, "services": "…"}; ends with 1 and the error if a call fails.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/transport/byte_buffer.h"

namespace {

constexpr char kServing[] = "\x08\x01";  // HealthCheckResponse: status (1) is SERVING (1)

std::string Field(int number, const std::string& text) {
  return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(text.size())} + text;
}

// One message there and the first one back.
std::string Call(grpc::GenericStub& stub, const std::string& method, const std::string& request) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  grpc::CompletionQueue queue;
  const auto stream = stub.PrepareCall(&context, method, &queue);
  const auto wait = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  grpc::ByteBuffer response;
  stream->StartCall(nullptr);
  bool ok = wait();
  if (ok) {
    stream->WriteLast(causeway::BufferOf(request), grpc::WriteOptions(), nullptr);
    ok = wait();
  }
  if (ok) {
    stream->Read(&response, nullptr);
    ok = wait();
  }
  grpc::Status status;
  stream->Finish(&status, nullptr);
  wait();
  if (!ok || !status.ok()) {
    std::fprintf(stderr, "%s: %s\n", method.c_str(), status.error_message().c_str());
    std::exit(1);
  }
  return causeway::TextOf(response);
}

}  // namespace

int main(int argc, char** argv) {
  const auto channel = grpc::CreateChannel(argv[1], grpc::InsecureChannelCredentials());
  grpc::GenericStub stub(channel);
  const std::string service = argc > 2 ? argv[2] : "";
  const bool serving = Call(stub, "/grpc.health.v1.Health/Check", Field(1, service)) == kServing;
  const std::string services =
      Call(stub, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", Field(7, ""));
  std::string names;  // of the answer's bytes, what is text
  for (const char c : services) names += c >= ' ' && c <= '~' ? c : ' ';
  std::printf("%s\n", nlohmann::json{{"serving", serving}, {"services", names}}.dump().c_str());
}
