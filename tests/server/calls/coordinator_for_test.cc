#include "tests/server/calls/coordinator_for_test.h"

#include <gtest/gtest.h>

#include <chrono>
#include <utility>

#include "server/calls/gate.h"
#include "server/calls/grpc_service.h"
#include "transport/channel.h"

namespace causeway::server {

CoordinatorForTest::CoordinatorForTest(Gate* gate, const core::Shard& shard, core::RunConfig config,
                                       const core::Manifest& manifest)
    : DirectCoordinator(std::move(config), shard, manifest), gate_(gate) {
  Serve();
}

void CoordinatorForTest::Restart() {
  Close();
  DirectCoordinator::Restart();
  Serve();
}

void CoordinatorForTest::HearAt(int64_t ms, const std::vector<std::string>& sites) {
  TickAt(ms);
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

v1::CoordinatorMessage CoordinatorForTest::Join(const std::string& site, const core::Manifest& manifest,
                                                const std::function<void(v1::Context&)>& change) {
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

void CoordinatorForTest::Leave(const std::string& site) {
  v1::SiteMessage message;
  message.mutable_leave();
  controls_[site].stream->Write(message);
  for (v1::CoordinatorMessage ignored; controls_[site].stream->Read(&ignored);) continue;
}

v1::CoordinatorMessage CoordinatorForTest::Read(const std::string& site) {
  v1::CoordinatorMessage message;
  controls_[site].stream->Read(&message);
  return message;
}

bool CoordinatorForTest::AwaitSeedRequest(const std::string& site) {
  for (v1::CoordinatorMessage message; controls_[site].stream->Read(&message);) {
    if (message.has_seed_request()) return true;
  }
  return false;
}

void CoordinatorForTest::Start() {
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

UploadOutcome CoordinatorForTest::Upload(const v1::UploadHeader& header, const std::vector<std::string>& chunks,
                                         size_t limit) {
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

void CoordinatorForTest::Seed(const std::string& site) {
  for (int p = 0; p < map.num_fragments(); ++p) {
    if (!shard_.Owns(p)) continue;
    EXPECT_TRUE(UploadSeed(site, p).admitted()) << "fragment " << p;
  }
}

UploadOutcome CoordinatorForTest::UploadSeed(const std::string& site, int fragment) {
  v1::UploadHeader header = HeaderOf(site, fragment);
  header.set_initial(true);
  return Upload(header, ChunksOf(map.fragment(fragment), core::CodecId::kFloat32, 0));
}

UploadOutcome CoordinatorForTest::Contribute(const std::string& site, int fragment, int64_t base) {
  return Upload(HeaderOf(site, fragment, base), ChunksOf(map.fragment(fragment), core::CodecId::kInt4, 1));
}

void CoordinatorForTest::Serve() {
  service_ = NewGrpcService(
      coordinator.get(), [] { return std::string("{}"); }, gate_);
  grpc::ServerBuilder builder;
  transport::ConfigureServer(builder);
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  service_->Register(builder);
  server_ = builder.BuildAndStart();
  stub = v1::Coordinator::NewStub(transport::MakeChannel({"127.0.0.1", port}, {}, transport::Traffic::kBulk));
}

void CoordinatorForTest::Close() {
  for (auto& [site, call] : controls_) call.context.TryCancel();
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
  server_.reset();
  controls_.clear();
  service_.reset();
}

}  // namespace causeway::server
