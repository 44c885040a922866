// transport_alone: takes contributions as the coordinator does and drops them. The ceiling of an ingest.
//
//   chunk ─► gRPC, protobuf ─► Contribution::Add: expanded, hashed, validated, spooled ─► whole: verdict, dropped
//
// Upload is the coordinator's method with the same messages, read one at a time; nothing is journaled, merged or sent
// back. The other methods say as little as light sites (light_site.h) need: an update "is there", without chunks, once
// --sites sites have contributed.
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <cstdio>
#include <deque>
#include <map>

#include "absl/flags/flag.h"
#include "causeway/v1/coordinator.grpc.pb.h"
#include "codecs/chunk_plan.h"
#include "core/mutex.h"
#include "ctl/program.h"
#include "formats/run_yaml.h"
#include "server/merge/contribution.h"
#include "tests/bench/ingest_run/light_payloads.h"
#include "transport/channel.h"
#include "transport/messages.h"

ABSL_FLAG(std::string, config, "", "run.yaml");
ABSL_FLAG(size_t, sites, 1, "that contribute to each round");

namespace causeway::bench {
namespace {

using Round = std::pair<int, int64_t>;  // fragment and base

// Who waits for which round.
class Rounds {
 public:
  void Contributed(const Round& round) {
    std::vector<std::function<void()>> waiting;
    {
      core::MutexLock lock(mutex_);
      if (++counts_[round] < absl::GetFlag(FLAGS_sites)) return;
      waiting.swap(waiting_[round]);
    }
    for (const auto& wake : waiting) wake();
  }

  void Await(const Round& round, std::function<void()> wake) {
    {
      core::MutexLock lock(mutex_);
      if (counts_[round] < absl::GetFlag(FLAGS_sites)) return waiting_[round].push_back(std::move(wake));
    }
    wake();
  }

 private:
  core::Mutex mutex_;
  std::map<Round, size_t> counts_ ABSL_GUARDED_BY(mutex_);
  std::map<Round, std::vector<std::function<void()>>> waiting_ ABSL_GUARDED_BY(mutex_);
};

struct Shared {
  core::RunConfig config;
  core::FragmentMap map;
  Rounds rounds;
};

class UploadReactor final : public grpc::ServerBidiReactor<v1::UploadMessage, v1::UploadReply> {
 public:
  explicit UploadReactor(Shared& shared) : shared_(shared) { StartRead(&incoming_); }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::CANCELLED);
    if (incoming_.has_header()) {
      round_ = {incoming_.header().fragment(), incoming_.header().base_version()};
      const auto plan = codecs::PlanChunks(shared_.map.fragment(round_.first), codecs::UpLeg(shared_.config));
      contribution_ = std::make_unique<server::Contribution>(plan);
      for (int missing : contribution_->Missing()) reply_.mutable_missing()->add_chunks(missing);
      return StartWrite(&reply_);
    }
    if (!contribution_->Add(std::move(*incoming_.mutable_chunk())).ok()) return Finish(grpc::Status::CANCELLED);
    if (!contribution_->complete()) return StartRead(&incoming_);
    contribution_.reset();
    shared_.rounds.Contributed(round_);
    reply_.mutable_verdict()->set_admitted(true);
    StartWriteAndFinish(&reply_, grpc::WriteOptions(), grpc::Status::OK);
  }

  void OnWriteDone(bool ok) override {
    if (ok) StartRead(&incoming_);
  }

  void OnDone() override { delete this; }

  Shared& shared_;
  Round round_;
  std::unique_ptr<server::Contribution> contribution_;
  v1::UploadMessage incoming_;
  v1::UploadReply reply_;
};

class DownloadReactor final : public grpc::ServerWriteReactor<v1::DownloadMessage> {
 public:
  DownloadReactor(Shared& shared, const v1::DownloadRequest& request) {
    if (request.source_case() != v1::DownloadRequest::kUpdateBase) {
      message_.mutable_header()->set_already_held(true);
      StartWrite(&message_);
      return;
    }
    message_.mutable_header()->set_version(request.update_base() + 1);
    shared.rounds.Await({request.fragment(), request.update_base()}, [this] { StartWrite(&message_); });
  }

 private:
  void OnWriteDone(bool) override {
    message_.mutable_end();
    StartWriteAndFinish(&message_, grpc::WriteOptions(), grpc::Status::OK);
  }

  void OnDone() override { delete this; }

  v1::DownloadMessage message_;
};

class ControlReactor final : public grpc::ServerBidiReactor<v1::SiteMessage, v1::CoordinatorMessage> {
 public:
  explicit ControlReactor(Shared& shared) : shared_(shared) { StartRead(&incoming_); }

 private:
  void OnReadDone(bool ok) override {
    if (!ok || incoming_.has_leave()) return Finish(grpc::Status::OK);
    if (incoming_.has_join()) {
      v1::Welcome& welcome = *outgoing_.mutable_welcome();
      welcome.set_epoch(1);
      welcome.set_lineage("none");
      transport::ToProto(shared_.map.manifest(), welcome.mutable_manifest());
      transport::ToProto(shared_.map, welcome.mutable_fragments());
      StartWrite(&outgoing_);
    } else if (incoming_.has_ready()) {
      const auto fragments = static_cast<size_t>(shared_.map.num_fragments());
      const std::vector<core::Version> zero(fragments, 0);
      transport::ToProto(core::Entry{.step = 0, .versions = zero, .first_versions = zero, .sites = {}},
                         outgoing_.mutable_entry());
      StartWrite(&outgoing_);
    }
    StartRead(&incoming_);
  }

  void OnDone() override { delete this; }

  Shared& shared_;
  v1::SiteMessage incoming_;
  v1::CoordinatorMessage outgoing_;
};

class Service final : public v1::Coordinator::CallbackService {
 public:
  explicit Service(Shared& shared) : shared_(shared) {}

 private:
  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context, const v1::DescribeRequest*,
                                     v1::RunDescription* response) override {
    response->set_protocol(transport::kProtocol);
    response->set_run_id(shared_.config.run_id);
    response->set_run_config(formats::SerializeRunConfig(shared_.config));
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  grpc::ServerBidiReactor<v1::SiteMessage, v1::CoordinatorMessage>* Control(grpc::CallbackServerContext*) override {
    return new ControlReactor(shared_);
  }
  grpc::ServerBidiReactor<v1::UploadMessage, v1::UploadReply>* Upload(grpc::CallbackServerContext*) override {
    return new UploadReactor(shared_);
  }
  grpc::ServerWriteReactor<v1::DownloadMessage>* Download(grpc::CallbackServerContext*,
                                                          const v1::DownloadRequest* request) override {
    return new DownloadReactor(shared_, *request);
  }

  Shared& shared_;
};

int Run() {
  Shared shared;
  auto config = formats::ReadRunYaml(absl::GetFlag(FLAGS_config));
  if (!config.ok()) return ctl::Fail(ctl::kBadInput, config.status());
  shared.config = *std::move(config);
  auto map = MapOf(shared.config);
  if (!map.ok()) return ctl::Fail(ctl::kBadInput, map.status());
  shared.map = *std::move(map);
  Service service(shared);
  grpc::ServerBuilder builder;
  transport::ConfigureServer(builder);
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  std::printf("127.0.0.1:%d\n", port);
  std::fflush(stdout);
  while (!ctl::WaitForStopSignal(1000)) {
  }
  std::_Exit(0);  // whoever still waits for a round is of no interest
}

}  // namespace
}  // namespace causeway::bench

int main(int argc, char** argv) {
  using namespace causeway;
  ctl::CatchStopSignals();
  ctl::StartProgram(argc, argv, "transport_alone --config=run.yaml --sites=N\n");
  return bench::Run();
}
