// Takes contributions as the coordinator does and drops them: the ceiling of an ingest.
//
//   chunk ─► gRPC, raw bytes ─► Contribution::Add: expanded, hashed, validated, spooled ─► whole: verdict, dropped
//                            └► --check=false: dropped
//
// Upload is the coordinator's method with the same messages, in as many stripes as the site likes, each read one
// message at a time; nothing is journaled, merged or sent back. The other methods say as little as light sites
// (sites.cc) need: every update "is there", without chunks.
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <map>
#include <tuple>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "causeway/v1/coordinator.grpc.pb.h"
#include "codecs/chunk_plan.h"
#include "core/check.h"
#include "core/mutex.h"
#include "formats/run_yaml.h"
#include "server/merge/contribution.h"
#include "tests/bench/bench_run/bench_run.h"
#include "tests/bench/bench_run/wire.h"
#include "transport/bulk_message.h"
#include "transport/channel.h"
#include "transport/messages.h"

ABSL_DECLARE_FLAG(std::string, tls_ca);
ABSL_DECLARE_FLAG(std::string, tls_cert);
ABSL_DECLARE_FLAG(std::string, tls_key);

namespace causeway::bench {
namespace {

// A contribution that is on its way, in one stripe or several.
struct Arriving {
  explicit Arriving(const std::vector<codecs::ChunkSpan>& plan) : contribution(plan), missing(plan.size()) {}

  server::Contribution contribution;  // empty without --check
  std::atomic<size_t> missing;
};

class Shared {
 public:
  using Key = std::tuple<std::string, core::FragmentId, core::Version>;  // site, base

  std::shared_ptr<Arriving> Get(const Key& key, const std::vector<codecs::ChunkSpan>& plan) {
    core::MutexLock lock(mutex_);
    std::shared_ptr<Arriving>& arriving = arriving_[key];
    if (arriving == nullptr) arriving = std::make_shared<Arriving>(plan);
    return arriving;
  }

  void Forget(const Key& key) {
    core::MutexLock lock(mutex_);
    arriving_.erase(key);
  }

  DescribedRun run;

 private:
  core::Mutex mutex_;
  std::map<Key, std::shared_ptr<Arriving>> arriving_ ABSL_GUARDED_BY(mutex_);
};

class UploadReactor final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  explicit UploadReactor(Shared& shared) : shared_(shared) { StartRead(&incoming_); }

 private:
  void OnReadDone(bool ok) override {
    // The end of a stripe, of which another one completes the contribution.
    if (!ok) return Finish(arriving_ == nullptr ? grpc::Status::CANCELLED : grpc::Status::OK);
    if (arriving_ == nullptr) return TakeHeader();
    if (!TakeChunk()) return Finish(grpc::Status::CANCELLED);
    if (--arriving_->missing > 0) return StartRead(&incoming_);
    shared_.Forget(key_);
    v1::UploadReply reply;
    reply.mutable_verdict()->set_admitted(true);
    outgoing_ = transport::ToBytes(reply);
    StartWriteAndFinish(&outgoing_, grpc::WriteOptions(), grpc::Status::OK);
  }

  void TakeHeader() {
    v1::UploadMessage message;
    if (!transport::FromBytes(incoming_, &message) || !message.has_header()) return Finish(grpc::Status::CANCELLED);
    const v1::UploadHeader& header = message.header();
    key_ = {header.context().site(), header.fragment(), header.base_version()};
    const auto plan =
        codecs::PlanChunks(shared_.run.map.fragment(header.fragment()), codecs::UpLeg(shared_.run.config));
    arriving_ = shared_.Get(key_, plan);
    if (header.sends_all()) return StartRead(&incoming_);
    v1::UploadReply reply;
    const int stripes = std::max(1, header.num_stripes());
    for (int i = header.stripe(); i < static_cast<int>(plan.size()); i += stripes) {
      reply.mutable_missing()->add_chunks(i);
    }
    outgoing_ = transport::ToBytes(reply);
    StartWrite(&outgoing_);
  }

  bool TakeChunk() {
    if (!Given<bool>("check")) {
      incoming_.Clear();
      return true;
    }
    std::optional<std::string> chunk = transport::TakeChunk(incoming_);
    incoming_.Clear();
    return chunk && arriving_->contribution.Add(*std::move(chunk)).ok();
  }

  void OnWriteDone(bool ok) override {
    if (ok) StartRead(&incoming_);
  }

  void OnDone() override { delete this; }

  Shared& shared_;
  Shared::Key key_;
  std::shared_ptr<Arriving> arriving_;  // from the header on
  grpc::ByteBuffer incoming_;
  grpc::ByteBuffer outgoing_;
};

class DownloadReactor final : public grpc::ServerWriteReactor<v1::DownloadMessage> {
 public:
  explicit DownloadReactor(const v1::DownloadRequest& request) {
    const bool update = request.source_case() == v1::DownloadRequest::kUpdateBase;
    message_.mutable_header()->set_already_held(!update);
    if (update) message_.mutable_header()->set_version(request.update_base() + 1);
    StartWrite(&message_);
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
      transport::ToProto(shared_.run.map.manifest(), welcome.mutable_manifest());
      transport::ToProto(shared_.run.map, welcome.mutable_fragments());
      StartWrite(&outgoing_);
    } else if (incoming_.has_ready()) {
      const auto fragments = static_cast<size_t>(shared_.run.map.num_fragments());
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

using RawUpload = v1::Coordinator::WithRawCallbackMethod_Upload<v1::Coordinator::Service>;
using RawUploadService = v1::Coordinator::WithCallbackMethod_Describe<
    v1::Coordinator::WithCallbackMethod_Control<v1::Coordinator::WithCallbackMethod_Download<RawUpload>>>;

class Service final : public RawUploadService {
 public:
  explicit Service(Shared& shared) : shared_(shared) {}

 private:
  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context, const v1::DescribeRequest*,
                                     v1::RunDescription* response) override {
    response->set_protocol(transport::kProtocol);
    response->set_run_id(shared_.run.config.run_id);
    response->set_run_config(formats::SerializeRunConfig(shared_.run.config));
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  grpc::ServerBidiReactor<v1::SiteMessage, v1::CoordinatorMessage>* Control(grpc::CallbackServerContext*) override {
    return new ControlReactor(shared_);
  }
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Upload(grpc::CallbackServerContext*) override {
    return new UploadReactor(shared_);
  }
  grpc::ServerWriteReactor<v1::DownloadMessage>* Download(grpc::CallbackServerContext*,
                                                          const v1::DownloadRequest* request) override {
    return new DownloadReactor(*request);
  }

  Shared& shared_;
};

}  // namespace

absl::Status Receive() {
  Shared shared;
  ASSIGN_OR_RETURN(shared.run.config, formats::ReadRunYaml(Given<std::string>("config")));
  ASSIGN_OR_RETURN(shared.run.map, MapOf(shared.run.config));
  ASSIGN_OR_RETURN(transport::Address address, core::ParseAddress("--listen", Given<std::string>("listen")));
  ASSIGN_OR_RETURN(const transport::TlsFiles tls,
                   transport::ReadTlsFlags(absl::GetFlag(FLAGS_tls_ca), absl::GetFlag(FLAGS_tls_cert),
                                           absl::GetFlag(FLAGS_tls_key)));
  Service service(shared);
  grpc::ServerBuilder builder;
  transport::ConfigureServer(builder);
  builder.AddListeningPort(address.Text(),
                           tls.given() ? transport::TlsServerCredentials(tls) : grpc::InsecureServerCredentials(),
                           &address.port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return absl::UnavailableError(absl::StrCat("--listen: cannot listen on ", address.Text()));
  std::printf("%s\n", address.Text().c_str());
  std::fflush(stdout);
  server->Wait();
  return absl::OkStatus();
}

}  // namespace causeway::bench
