// A coordinator behind gRPC on a free port, and raw clients that may say anything.
#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "server/service/grpc_service.h"
#include "tests/core/fake_clock.h"
#include "tests/formats/temporary_folder.h"
#include "transport/channel.h"
#include "transport/messages.h"

namespace causeway::server {

inline core::Manifest ManifestForTest() {
  return {{"a", {5000}, core::TensorKind::kMatrix, 0},
          {"b", {300}, core::TensorKind::kMatrix, 0},
          {"c", {10, 10}, core::TensorKind::kMatrix, 0},
          {"d", {700}, core::TensorKind::kMatrix, 1}};
}

inline core::RunConfig ConfigForTest() {
  core::RunConfig config;
  config.run_id = "test";
  config.sync = {.sync_every = 4, .num_fragments = 2, .fragment_sync_delay = 0};
  config.membership.min_sites = 2;
  config.checkpoint.every_rounds = 0;
  return config;
}

// A fragment's chunks, all values alike.
inline std::vector<std::string> ChunksOf(const core::Fragment& fragment, core::CodecId codec, float value) {
  std::vector<std::string> chunks;
  for (const codecs::ChunkSpan& span : codecs::PlanChunks(fragment, {codec})) {
    chunks.push_back(*codecs::EncodeChunk(span, std::vector<float>(span.values, value), {}));
  }
  return chunks;
}

inline v1::Context ContextForTest(const std::string& site) {
  v1::Context context;
  context.set_protocol(transport::kProtocol);
  context.set_run_id("test");
  context.set_site(site);
  context.set_session(site + "-1");
  return context;
}

inline v1::Join JoinOf(const std::string& site, const core::Manifest& manifest = ManifestForTest()) {
  v1::Join join;
  *join.mutable_context() = ContextForTest(site);
  transport::ToProto(manifest, join.mutable_manifest());
  for (core::CodecId codec : core::kAllCodecs) join.add_codecs(static_cast<uint32_t>(codec));
  return join;
}

struct UploadOutcome {
  std::vector<int> missing;
  std::optional<v1::Verdict> verdict;
  grpc::Status status;

  bool admitted() const { return verdict && verdict->admitted(); }
};

class CoordinatorForTest {
 public:
  static constexpr auto kHang = std::chrono::seconds(10);  // a stream that is open for longer

  using ControlStream = grpc::ClientReaderWriter<v1::SiteMessage, v1::CoordinatorMessage>;

  explicit CoordinatorForTest(Gate* gate = Gate::Open(), const core::Shard& shard = {},
                              core::RunConfig config = ConfigForTest(),
                              const core::Manifest& manifest = ManifestForTest())
      : map(*core::BuildFragmentMap(manifest, config.sync)), gate_(gate), shard_(shard), config_(std::move(config)) {
    StartLife();
  }
  ~CoordinatorForTest() { EndLife(); }

  // Another process on the same state directory, at another port.
  void Restart() {
    EndLife();
    StartLife();
  }

  // The time of the coordinator's clock; leases end by then.
  void TickAt(int64_t ms) {
    clock_.Set(ms);
    coordinator->Tick();
    journal_->Flush();
  }

  static v1::Context ContextOf(const std::string& site) { return ContextForTest(site); }

  // The same, when these sites have reported.
  void HearAt(int64_t ms, const std::vector<std::string>& sites) {
    clock_.Set(ms);
    v1::SiteMessage report, ping;
    report.mutable_progress();
    ping.mutable_ping();
    for (const std::string& site : sites) {
      controls_[site].stream->Write(report);
      controls_[site].stream->Write(ping);
      while (!Read(site).has_pong()) continue;  // it has been heard
    }
    TickAt(ms);
  }

  // Sends Join; the first answer.
  v1::CoordinatorMessage Join(const std::string& site, const core::Manifest& manifest = ManifestForTest(),
                              const std::function<void(v1::Context&)>& change = nullptr) {
    if (const auto earlier = controls_.find(site); earlier != controls_.end()) {
      earlier->second.context.TryCancel();
      controls_.erase(earlier);
    }
    Control& call = controls_[site];
    call.context.set_deadline(std::chrono::system_clock::now() + kHang);
    call.stream = stub->Control(&call.context);
    v1::SiteMessage message;
    *message.mutable_join() = JoinOf(site, manifest);
    if (change) change(*message.mutable_join()->mutable_context());
    call.stream->Write(message);
    return Read(site);
  }

  // Returns when the coordinator has ended the stream.
  void Leave(const std::string& site) {
    v1::SiteMessage message;
    message.mutable_leave();
    controls_[site].stream->Write(message);
    for (v1::CoordinatorMessage ignored; controls_[site].stream->Read(&ignored);) continue;
  }

  v1::CoordinatorMessage Read(const std::string& site) {
    v1::CoordinatorMessage message;
    controls_[site].stream->Read(&message);
    return message;
  }

  // Whether the coordinator asks the site for the initial parameters, within kHang.
  bool AwaitSeedRequest(const std::string& site) {
    for (v1::CoordinatorMessage message; controls_[site].stream->Read(&message);) {
      if (message.has_seed_request()) return true;
    }
    return false;
  }

  // Sites a and b join, a seeds with zeros, both enter.
  void Start() {
    Join("a");
    Join("b");
    Seed("a");
    v1::SiteMessage ready;
    ready.mutable_ready();
    for (const char* site : {"a", "b"}) controls_[site].stream->Write(ready);
    for (const char* site : {"a", "b"}) {
      while (!Read(site).has_entry()) continue;
    }
  }

  static v1::UploadHeader HeaderOf(const std::string& site, int fragment, int64_t base = 0) {
    v1::UploadHeader header;
    *header.mutable_context() = ContextOf(site);
    header.set_fragment(fragment);
    header.set_base_version(base);
    return header;
  }

  // Sends the first `limit` of the chunks that are missing, and gives up then.
  UploadOutcome Upload(const v1::UploadHeader& header, const std::vector<std::string>& chunks, size_t limit = 1000) {
    grpc::ClientContext context;
    auto stream = stub->Upload(&context);
    v1::UploadMessage message;
    *message.mutable_header() = header;
    stream->Write(message);
    UploadOutcome outcome;
    v1::UploadReply reply;
    while (stream->Read(&reply)) {
      if (reply.has_verdict()) outcome.verdict = reply.verdict();
      if (!reply.has_missing()) continue;
      outcome.missing = {reply.missing().chunks().begin(), reply.missing().chunks().end()};
      for (size_t i = 0; i < outcome.missing.size() && i < limit; ++i) {
        message.set_chunk(chunks[outcome.missing[i]]);
        stream->Write(message);
      }
      if (outcome.missing.size() > limit || header.num_stripes() > 1) stream->WritesDone();
    }
    outcome.status = stream->Finish();
    return outcome;
  }

  // Every fragment's initial parameters, all zeros.
  void Seed(const std::string& site) {
    for (int p = 0; p < map.num_fragments(); ++p) {
      if (!shard_.Owns(p)) continue;
      EXPECT_TRUE(UploadSeed(site, p).admitted()) << "fragment " << p;
    }
  }
  UploadOutcome UploadSeed(const std::string& site, int fragment) {
    v1::UploadHeader header = HeaderOf(site, fragment);
    header.set_initial(true);
    return Upload(header, ChunksOf(map.fragment(fragment), core::CodecId::kFloat32, 0));
  }

  UploadOutcome Contribute(const std::string& site, int fragment, int64_t base = 0) {
    return Upload(HeaderOf(site, fragment, base), ChunksOf(map.fragment(fragment), core::CodecId::kInt4, 1));
  }

 private:
  struct Control {
    grpc::ClientContext context;
    std::unique_ptr<ControlStream> stream;
  };

  void StartLife() {
    journal_ = *Journal::Open({.directory = folder_.path(), .shard = shard_, .failed = nullptr});
    coordinator = *Coordinator::Create({.config = config_, .clock = &clock_, .shard = shard_, .lead = "lead:1"},
                                       journal_.get(), *journal_->Load());
    service_ = std::make_unique<GrpcService>(
        coordinator.get(), [] { return std::string("{}"); }, gate_);
    grpc::ServerBuilder builder;
    transport::ConfigureServer(builder);
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    stub = v1::Coordinator::NewStub(transport::MakeChannel({"127.0.0.1", port}, {}, transport::Traffic::kBulk));
  }

  void EndLife() {
    for (auto& [site, call] : controls_) call.context.TryCancel();
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
    server_.reset();
    controls_.clear();
    service_.reset();
    coordinator.reset();
    journal_.reset();
  }

  const TemporaryFolder folder_;

 public:
  const core::FragmentMap map;

 private:
  Gate* const gate_;
  const core::Shard shard_;
  const core::RunConfig config_;
  core::FakeClock clock_;
  std::unique_ptr<Journal> journal_;

 public:
  std::unique_ptr<Coordinator> coordinator;
  std::unique_ptr<v1::Coordinator::Stub> stub;
  int port = 0;

 private:
  std::unique_ptr<GrpcService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::map<std::string, Control> controls_;
};

}  // namespace causeway::server
