// causeway-coordinator: serves one run. Reads flags, wires the objects, and lives until SIGTERM.
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <malloc.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/limits.h"
#include "ctl/program.h"
#include "formats/codec_advice.h"
#include "formats/run_yaml.h"
#include "server/service/coordinator.h"
#include "server/service/grpc_service.h"
#include "server/status/http_server.h"
#include "server/store/journal.h"
#include "transport/channel.h"

ABSL_FLAG(std::string, config, "", "run.yaml: what the run is");
ABSL_FLAG(std::string, listen, "127.0.0.1:7077", "HOST:PORT for sites and causewayctl; port 0 takes a free one");
ABSL_FLAG(std::string, http, "127.0.0.1:7078", "HOST:PORT for GET /status; port 0 takes a free one");
ABSL_FLAG(std::string, state_dir, "", "directory that holds the run's state; one coordinator each");
ABSL_FLAG(
    bool, new_lineage, false,
    "for one start, when the state directory was restored from a backup: sites that are ahead take the anchors anew");
ABSL_FLAG(bool, exit_when_done, false, "end when all sites have done all their steps");
ABSL_FLAG(bool, insecure, false, "allow plaintext on addresses beyond loopback");
ABSL_FLAG(std::string, tls_ca, "", "TLS: PEM certificates of the CA that signs the sites'; give all three or none");
ABSL_FLAG(std::string, tls_cert, "", "TLS: this coordinator's certificate in PEM; read again when it changes");
ABSL_FLAG(std::string, tls_key, "", "TLS: the certificate's private key in PEM");
ABSL_FLAG(std::string, site_tokens, "",
          "file of lines `site sha256` (and `operator sha256`): ask everybody for a token");

namespace causeway {
namespace {

constexpr char kUsage[] =
    "causeway-coordinator --config=run.yaml --state_dir=DIR [--listen=HOST:PORT] [--http=HOST:PORT]\n"
    "Keeps one model in step across sites. SIGTERM saves the state; started again, it goes on from there.\n";

constexpr int64_t kTickMs = 25;                                  // leases, graces, the end of the run
constexpr auto kShutdownGrace = std::chrono::milliseconds(200);  // for answers under way

int64_t NowMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Whether the stored state is of the run that the config describes.
absl::Status CheckSameRun(const std::string& stored, const core::RunConfig& now) {
  ASSIGN_OR_RETURN(const core::RunConfig before, formats::ParseRunConfig(stored));
  const std::string difference = formats::FixedConfigDifference(before, now);
  if (difference.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("--state_dir=", absl::GetFlag(FLAGS_state_dir), " holds the state of another run: ", difference));
}

// A site holds two connections, and others may come as well: what the administrator allows is there for them.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
    spdlog::warn("cannot raise the limit of open files: {}", std::strerror(errno));
}

// Chunks come and go on all of gRPC's threads. With glibc's defaults each thread's arena keeps what was freed there
// (0.4 GB at 250 M parameters), and the rest is returned to the system and faulted in again page by page. Here chunks
// share one arena, which stays, and arrays of parameters are mapped.
void SetUpHeap() {
#if defined(__GLIBC__)
  mallopt(M_ARENA_MAX, 1);
  mallopt(M_MMAP_THRESHOLD, 4 * core::kMaxChunkBytes);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);  // contributions in flight, of most runs
  mallopt(M_TOP_PAD, 16 * core::kMaxChunkBytes);
#endif
}

struct Listening {
  transport::Address grpc;
  transport::Address http;
  transport::TlsFiles tls;
};

absl::StatusOr<Listening> ReadListening() {
  Listening listening;
  ASSIGN_OR_RETURN(listening.grpc, transport::ParseAddress(absl::GetFlag(FLAGS_listen)));
  ASSIGN_OR_RETURN(listening.http, transport::ParseAddress(absl::GetFlag(FLAGS_http)));
  ASSIGN_OR_RETURN(listening.tls, transport::ReadTlsFlags(absl::GetFlag(FLAGS_tls_ca), absl::GetFlag(FLAGS_tls_cert),
                                                          absl::GetFlag(FLAGS_tls_key)));
  if (!listening.tls.given()) {
    RETURN_IF_ERROR(transport::CheckPlaintextAllowed(listening.grpc, absl::GetFlag(FLAGS_insecure)));
  }
  return listening;
}

// Until SIGTERM, SIGINT, the end of the run, or a failure that the coordinator's status tells of.
void Serve(server::Coordinator& coordinator) {
  const bool exit_when_done = absl::GetFlag(FLAGS_exit_when_done);
  while (!ctl::WaitForStopSignal(kTickMs)) {
    coordinator.Tick();
    if (!coordinator.status().ok()) return;
    if (exit_when_done && coordinator.done()) {
      spdlog::info("the run is done");
      return;
    }
  }
  spdlog::info("stopping: saves snapshots");
}

int Run(const core::RunConfig& config, Listening addresses) {
  for (const std::string& advice : formats::CodecAdvice(config.codec)) spdlog::warn("{}", advice);
  auto gate = server::Gate::Create(
      {.authorizer = {.mutual_tls = addresses.tls.given(), .site_tokens = absl::GetFlag(FLAGS_site_tokens)},
       .limits = {.bulk_streams_at_once = core::MaxBulkStreams(static_cast<int>(config.sync.num_fragments))},
       .now_ms = NowMs});
  if (!gate.ok()) return ctl::Fail(ctl::kBadInput, gate.status());
  const std::string run_config = formats::SerializeRunConfig(config);
  auto journal =
      server::Journal::Open({.directory = absl::GetFlag(FLAGS_state_dir),
                             .run_config = run_config,
                             .keep = config.checkpoint.keep,
                             .max_update_log_bytes = config.checkpoint.max_update_log_bytes,
                             .min_free_bytes = config.checkpoint.min_free_bytes,
                             .new_lineage = absl::GetFlag(FLAGS_new_lineage),
                             .accept = [&](const std::string& stored) { return CheckSameRun(stored, config); },
                             .failed = nullptr});
  if (!journal.ok()) return ctl::Fail(ctl::kBadInput, journal.status());
  auto stored = (*journal)->Load();
  if (!stored.ok()) return ctl::Fail(ctl::kBadInput, stored.status());
  if (stored->rounds.seeded) spdlog::info("goes on with the stored state of run {}", config.run_id);
  auto coordinator = server::Coordinator::Create(
      {.config = config, .run_config = run_config, .config_json = formats::RunConfigJson(config), .now_ms = NowMs},
      journal->get(), *std::move(stored));
  if (!coordinator.ok()) return ctl::Fail(ctl::kBadInput, coordinator.status());

  const auto status_json = [&] { return server::StatusJson((*coordinator)->Status()); };
  server::GrpcService service(coordinator->get(), status_json, gate->get());
  grpc::ServerBuilder builder;
  transport::ConfigureServer(builder);
  int grpc_port = 0;
  builder.AddListeningPort(
      addresses.grpc.Text(),
      addresses.tls.given() ? transport::TlsServerCredentials(addresses.tls) : grpc::InsecureServerCredentials(),
      &grpc_port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> grpc_server = builder.BuildAndStart();
  if (grpc_server == nullptr || grpc_port == 0) {
    return ctl::Fail(ctl::kBadInput,
                     absl::UnavailableError(absl::StrCat("--listen: cannot listen on ", addresses.grpc.Text(),
                                                         "; is the port taken, or not this machine's address?")));
  }
  // However this function ends: open streams would otherwise keep the server from being destroyed.
  const absl::Cleanup stop_server = [&] {
    grpc_server->Shutdown(std::chrono::system_clock::now() + kShutdownGrace);
    grpc_server->Wait();
  };
  auto http_server = server::HttpServer::Start(addresses.http.host, addresses.http.port, status_json);
  if (!http_server.ok()) return ctl::Fail(ctl::kBadInput, http_server.status());
  addresses.grpc.port = grpc_port;
  addresses.http.port = (*http_server)->port();
  absl::Status status = (*journal)->WriteAddresses(addresses.grpc.Text(), addresses.http.Text());
  if (!status.ok()) return ctl::Fail(ctl::kBadInput, status);
  if (!addresses.tls.given() && absl::GetFlag(FLAGS_site_tokens).empty() && !addresses.grpc.IsLoopback()) {
    spdlog::warn("--insecure: whoever reaches {} is trusted, and nothing is encrypted", addresses.grpc.Text());
  }
  spdlog::info("run {}: sites at {}, status at http://{}/status", config.run_id, addresses.grpc.Text(),
               addresses.http.Text());

  Serve(**coordinator);
  grpc_server->Shutdown(std::chrono::system_clock::now() + kShutdownGrace);
  grpc_server->Wait();
  status = (*coordinator)->status();
  if (status.ok()) status = (*coordinator)->Finish();
  if (!status.ok()) {
    return ctl::Fail(ctl::kFailed,
                     absl::Status(status.code(), absl::StrCat(std::string(status.message()),
                                                              "; what was acknowledged before is safe, and the next "
                                                              "start goes on from there")));
  }
  return ctl::kDone;
}

}  // namespace
}  // namespace causeway

int main(int argc, char** argv) {
  using namespace causeway;
  SetUpHeap();
  ctl::CatchStopSignals();
  const std::vector<std::string> arguments = ctl::StartProgram(argc, argv, kUsage);
  if (!arguments.empty()) {
    return ctl::Fail(ctl::kBadInput, absl::InvalidArgumentError("expected flags alone, got '" + arguments[0] + "'"));
  }
  if (absl::GetFlag(FLAGS_config).empty() || absl::GetFlag(FLAGS_state_dir).empty()) {
    return ctl::Fail(ctl::kBadInput, absl::InvalidArgumentError("expected --config=run.yaml and --state_dir=DIR"));
  }
  const auto config = formats::ReadRunYaml(absl::GetFlag(FLAGS_config));
  if (!config.ok()) return ctl::Fail(ctl::kBadInput, config.status());
  auto listening = ReadListening();
  if (!listening.ok()) return ctl::Fail(ctl::kBadInput, listening.status());
  RaiseDescriptorLimit();
  return Run(*config, *std::move(listening));
}
