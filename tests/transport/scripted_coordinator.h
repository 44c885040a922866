// A coordinator as far as transport sees it, on the simulated machine: it takes chunks, says which it lacks, gives out
// payloads, and does everything else as a test tells it to.
//
//   site's link ── calls over the simulated network ──► ScriptedCoordinator ──► what came, for the test to look at
//
// A payload's chunks are named by what they are of (PayloadOf), so that each can be told from all others. It runs on
// fibers that switch at locks alone, and has none.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "tests/sim/network.h"
#include "transport/coordinator_link.h"

namespace causeway::transport {

using Payload = std::vector<std::string>;

// `salt` tells versions apart.
Payload PayloadOf(core::FragmentId fragment, core::Version salt, int chunks, size_t chunk_bytes = 40);

class ScriptedCoordinator final : public sim::Server {
 public:
  ~ScriptedCoordinator() override;

  // ---- Its script ----
  std::optional<v1::Refused> refuses;      // each Join
  std::optional<grpc::Status> ends_joins;  // each Join ends so
  bool answers_pings = true;
  bool hears_leaves = true;
  v1::Welcome welcome;                    // as a test changes it
  std::optional<grpc::Status> ends_bulk;  // each upload and download, when its header is here
  std::string refuses_contributions;      // the reason of its verdict; "": it admits them
  std::map<std::pair<core::FragmentId, bool>, std::pair<core::Version, Payload>> downloads;  // bool: an anchor
  std::optional<uint64_t> header_generation;  // in the headers of downloads
  v1::RunDescription description;
  grpc::Status describe_status;

  // On every control stream that is open.
  void Say(const v1::CoordinatorMessage& message);
  void EndControl(const grpc::Status& status);

  // ---- For tests to look at ----
  struct Upload {
    size_t chunks = 0;               // of the payload; the test says it before the first one comes
    std::map<int, int> arrived;      // how often each chunk was taken
    std::vector<std::string> wrong;  // chunks that are none of the payload's, or on a stream of another stripe
    int verdicts = 0;                // sent
    bool whole() const { return arrived.size() == chunks; }
  };
  using UploadKey = std::tuple<bool, core::FragmentId, core::Version>;  // initial, fragment, base
  std::map<UploadKey, Upload> uploads;
  std::map<UploadKey, Payload> expected;  // what the uploads are to bring
  std::vector<v1::UploadHeader> headers;
  std::vector<v1::DownloadRequest> requests;
  std::vector<v1::Join> joins;
  std::vector<v1::SiteMessage> said;   // on control, but for joins
  std::vector<UploadKey> chunk_order;  // of which upload each chunk was, as they came

  static uint64_t DigestOf(core::FragmentId fragment, core::Version version) { return 1000 * fragment + version + 1; }
  size_t open_calls() const { return open_.size(); }

  // ---- sim::Server ----
  grpc::Status Describe(const v1::DescribeRequest& request, v1::RunDescription* answer) override;
  sim::CallReactor* NewControl() override;
  sim::CallReactor* NewFollow() override { return nullptr; }
  sim::CallReactor* NewUpload() override;
  sim::CallReactor* NewDownload() override;

 private:
  // A reactor, which lives until its call is over, or as long as the coordinator.
  struct OpenCall {
    virtual ~OpenCall() = default;
  };
  class Control;
  class Upstream;
  class Downstream;

  template <typename Reactor>
  Reactor* Keep(std::unique_ptr<Reactor> reactor);

  std::set<Control*> controls_;
  std::map<OpenCall*, std::unique_ptr<OpenCall>> open_;
};

}  // namespace causeway::transport
