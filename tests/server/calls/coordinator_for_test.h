// A coordinator behind gRPC on a free port, and raw clients that may say anything.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "causeway/v1/coordinator.grpc.pb.h"
#include "server/calls/call_service.h"
#include "server/calls/gate.h"
#include "tests/server/run/direct_coordinator.h"

namespace causeway::server {

struct UploadOutcome {
  std::vector<int> missing;
  std::optional<v1::Verdict> verdict;
  grpc::Status status;

  bool admitted() const { return verdict && verdict->admitted(); }
};

// The coordinator that is called without gRPC (run/direct_coordinator.h), with gRPC before it.
class CoordinatorForTest : public DirectCoordinator {
 public:
  static constexpr auto kHang = std::chrono::seconds(10);  // a stream that is open for longer

  using ControlStream = grpc::ClientReaderWriter<v1::SiteMessage, v1::CoordinatorMessage>;

  explicit CoordinatorForTest(Gate* gate = Gate::Open(), const core::Shard& shard = {},
                              core::RunConfig config = ConfigForTest(),
                              const core::Manifest& manifest = ManifestForTest());
  ~CoordinatorForTest() { Close(); }

  // Another process on the same state directory, at another port.
  void Restart();

  // The time of the coordinator's clock, when these sites have reported; leases end by then.
  void HearAt(int64_t ms, const std::vector<std::string>& sites);

  // Sends Join; the first answer.
  v1::CoordinatorMessage Join(const std::string& site, const core::Manifest& manifest = ManifestForTest(),
                              const std::function<void(v1::Context&)>& change = nullptr);

  // Returns when the coordinator has ended the stream.
  void Leave(const std::string& site);

  v1::CoordinatorMessage Read(const std::string& site);

  // Whether the coordinator asks the site for the initial parameters, within kHang.
  bool AwaitSeedRequest(const std::string& site);

  // Sites a and b join, a seeds with zeros, both enter.
  void Start();

  // Sends the first `limit` of the chunks that are missing, and gives up then.
  UploadOutcome Upload(const v1::UploadHeader& header, const std::vector<std::string>& chunks, size_t limit = 1000);

  // Every fragment's initial parameters, all zeros.
  void Seed(const std::string& site);
  UploadOutcome UploadSeed(const std::string& site, int fragment);
  UploadOutcome Contribute(const std::string& site, int fragment, int64_t base = 0);

  std::unique_ptr<v1::Coordinator::Stub> stub;
  int port = 0;

 private:
  struct Control {
    grpc::ClientContext context;
    std::unique_ptr<ControlStream> stream;
  };

  void Serve();
  void Close();

  Gate* const gate_;
  std::unique_ptr<CallService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::map<std::string, Control> controls_;
};

}  // namespace causeway::server
