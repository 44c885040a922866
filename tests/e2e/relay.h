// Stands between sites and a coordinator, passes on what they say, and lets a watcher see and change it.
#pragma once

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <string>

namespace causeway {

// Called from gRPC's threads, those of one call's direction one after the other. Calls count from 0.
class RelayWatcher {
 public:
  virtual ~RelayWatcher() = default;
  virtual void Opened(int call, const std::string& method) = 0;
  virtual void Sent(int call, grpc::ByteBuffer& message) = 0;      // by a site
  virtual void Received(int call, grpc::ByteBuffer& message) = 0;  // by it; what it is changed to is passed on
  virtual void HalfClosed(int call) = 0;
  virtual void Ended(int call, const grpc::Status& status) = 0;
};

class Relay : public grpc::CallbackGenericService {
 public:
  Relay(const std::string& coordinator, RelayWatcher* watcher);  // which outlives it

  // Prints the address to give to the sites, and relays until the standard input ends.
  void Run();

 private:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override;

  RelayWatcher* const watcher_;
  grpc::GenericStub stub_;
  std::atomic<int> next_call_ = 0;
};

}  // namespace causeway
