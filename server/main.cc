// causeway-coordinator: serves one run. Reads flags, wires the objects, and lives until SIGTERM.
#include <spdlog/spdlog.h>

#include <csignal>
#include <filesystem>
#include <optional>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/limits.h"
#include "ctl/program.h"
#include "ctl/program_log.h"
#include "ctl/standard_streams.h"
#include "formats/run_advice.h"
#include "formats/run_yaml.h"
#include "formats/settings.h"
#include "server/calls/grpc_service.h"
#include "server/calls/listening_server.h"
#include "server/rebuild/lost_state.h"
#include "server/run/membership_follower.h"
#include "server/run/run_exchange.h"
#include "server/standby/standby.h"
#include "server/status/http_server.h"
#include "server/status/status_board.h"
#include "server/store/journal.h"
#include "server/store/state_directory.h"
#include "transport/channel.h"
#include "transport/messages.h"

ABSL_FLAG(std::string, config, "", "run.yaml: what the run is");
ABSL_FLAG(std::string, listen, "127.0.0.1:7077", "HOST:PORT for sites and causewayctl; port 0 takes a free one");
ABSL_FLAG(std::string, http, "127.0.0.1:7078",
          "HOST:PORT of the status page, /status and /metrics; port 0 takes a free one");
ABSL_FLAG(std::vector<std::string>, http_hosts, {},
          "names by which browsers and scrapers may call --http, besides addresses, localhost and this machine's");
ABSL_FLAG(std::string, health, "",
          "HOST:PORT that answers /healthz and /readyz alone, on threads of its own; empty: none");
ABSL_FLAG(std::string, state_dir, "", "directory that holds the run's state; one coordinator each");
ABSL_FLAG(
    bool, new_lineage, false,
    "for one start, when the state directory was restored from a backup: sites that are ahead take the anchors anew");
ABSL_FLAG(int32_t, scrub_mb_per_s, 8,
          "how fast what lies in the state directory is read again, once a day or all the time; 0: never");
ABSL_FLAG(bool, new_run, false,
          "begin another run though sites hold parameters of one that this state directory does not know: those sites "
          "are refused");
ABSL_FLAG(bool, rebuild_from_sites, false,
          "with a state directory that has no state: take W and v from the sites, of each fragment the newest version "
          "that two of them hold with equal digests");
ABSL_FLAG(std::string, accept, "",
          "with --rebuild_from_sites, and after a loss of power: the one site that is believed, instead of two");
ABSL_FLAG(std::string, copy_to, "",
          "folder for copies of the state, each a consistent set of files, made after each snapshot; no commit waits");
ABSL_FLAG(
    std::string, copy_hook, "",
    "command for bash after each set in --copy_to, whose folder is $CAUSEWAY_COPY_DIR: takes files/ elsewhere, then "
    "sets/, such as with rclone copy");
ABSL_FLAG(int32_t, copy_keep, 3, "number of sets that stay in --copy_to");
ABSL_FLAG(std::string, restore_from, "",
          "with a state directory that has no state: a folder that --copy_to has filled, whose newest set is restored, "
          "or one of its sets/NAME.json");
ABSL_FLAG(std::string, shard, "0/1",
          "i/n: one of n coordinators of the run, which owns the fragments f with f mod n = i; 0/n decides who is in");
ABSL_FLAG(std::string, membership, "", "HOST:PORT of the coordinator with --shard=0/n; the others follow it");
ABSL_FLAG(std::string, standby_of, "",
          "HOST:PORT of the run's coordinator: this one keeps a copy of its state, and leads once causewayctl promote "
          "says so");
ABSL_FLAG(std::string, advertise, "", "HOST:PORT by which others reach this coordinator; empty: --listen");
ABSL_FLAG(std::string, membership_token_file, "", "file with the operator's token, where --membership asks for one");
ABSL_FLAG(std::string, membership_tls_cert, "", "TLS: the operator's certificate, to show at --membership");
ABSL_FLAG(std::string, membership_tls_key, "", "TLS: that certificate's private key");
ABSL_FLAG(bool, exit_when_done, false, "end when all sites have done all their steps");
ABSL_FLAG(bool, insecure, false, "allow plaintext on addresses beyond loopback");
ABSL_FLAG(bool, insecure_http, false, "allow --http beyond loopback: the status page has no password");
ABSL_FLAG(std::string, tls_ca, "", "TLS: PEM certificates of the CA that signs the sites'; give all three or none");
ABSL_FLAG(std::string, tls_cert, "", "TLS: this coordinator's certificate in PEM; read again when it changes");
ABSL_FLAG(std::string, tls_key, "", "TLS: the certificate's private key in PEM");
ABSL_FLAG(std::string, tls_revoked, "", "TLS: file of the serials, in hexadecimal digits, of revoked certificates");
ABSL_FLAG(std::string, site_tokens, "", "file of lines `name role sha256` or `site sha256`: ask everybody for a token");

namespace causeway {
namespace {

constexpr char kUsage[] =
    "causeway-coordinator --config=run.yaml --state_dir=DIR [--listen=HOST:PORT] [--http=HOST:PORT]\n"
    "                     [--shard=i/n --membership=HOST:PORT] [--rebuild_from_sites [--accept=SITE]]\n"
    "                     [--copy_to=DIR [--copy_hook=COMMAND]] [--restore_from=DIR]\n"
    "Keeps one model in step across sites. SIGTERM saves the state; started again, it goes on from there.\n";

constexpr int kOwnThreads =
    17;  // journal, merges, scrubber, copies, signals, log, followers, connections, long answers, watch
constexpr int64_t kStandbyTickMs = 100;
constexpr int64_t kHandOverMs = 10'000;
constexpr int kTriesToComplete = 3;  // where no two sites agree
constexpr int64_t kTickMs = 25;      // leases, graces, the end of the run

// The config of the stored run, if run.yaml describes that run.
absl::StatusOr<core::RunConfig> ConfigOfStoredRun(const std::string& run_yaml, int shards, const std::string& stored,
                                                  bool started) {
  const formats::FileOfRun file{run_yaml, absl::GetFlag(FLAGS_config), shards};
  absl::StatusOr<core::RunConfig> config = formats::ContinuedConfig(stored, started, file);
  if (!absl::IsFailedPrecondition(config.status())) return config;
  return absl::FailedPreconditionError(absl::StrCat("--state_dir=", absl::GetFlag(FLAGS_state_dir),
                                                    " holds the state of another run: ", config.status().message()));
}

void TellDifferences(const std::string& run_yaml, const core::RunConfig& first, const server::StoredRun& stored) {
  if (!stored.rounds.started) return;
  const std::string newest = stored.settings.revisions.empty() ? "" : stored.settings.revisions.back().run_config;
  const std::string path = absl::GetFlag(FLAGS_config);
  for (const std::string& difference : formats::FileDifferences(first, newest, run_yaml, path)) {
    spdlog::warn("{} differs from the run in {}", path, difference);
  }
}

absl::Status CheckCopyFlags() {
  if (absl::GetFlag(FLAGS_copy_keep) < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--copy_keep: expected 1 or more, got ", absl::GetFlag(FLAGS_copy_keep)));
  }
  if (absl::GetFlag(FLAGS_copy_to).empty()) {
    if (absl::GetFlag(FLAGS_copy_hook).empty()) return absl::OkStatus();
    return absl::InvalidArgumentError("--copy_hook: expected --copy_to=DIR with it, got none");
  }
  std::error_code error;  // a path that cannot be followed is refused where it is used
  const auto state = std::filesystem::weakly_canonical(absl::GetFlag(FLAGS_state_dir), error);
  const auto copies = std::filesystem::weakly_canonical(absl::GetFlag(FLAGS_copy_to), error);
  for (const char* folder : {"copying", "snapshots", "segments", "log", "set_aside"}) {
    const auto inside = copies.lexically_relative(state / folder);
    if (error || inside.empty() || *inside.begin() == "..") continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--copy_to: expected a folder of its own, got one in ", (state / folder).string()));
  }
  return absl::OkStatus();
}

absl::StatusOr<server::Listening> ReadListening() {
  return server::ReadListening({.listen = absl::GetFlag(FLAGS_listen),
                                .http = absl::GetFlag(FLAGS_http),
                                .health = absl::GetFlag(FLAGS_health),
                                .shard = absl::GetFlag(FLAGS_shard),
                                .membership = absl::GetFlag(FLAGS_membership),
                                .standby_of = absl::GetFlag(FLAGS_standby_of),
                                .advertise = absl::GetFlag(FLAGS_advertise),
                                .insecure = absl::GetFlag(FLAGS_insecure),
                                .insecure_http = absl::GetFlag(FLAGS_insecure_http),
                                .tls_ca = absl::GetFlag(FLAGS_tls_ca),
                                .tls_cert = absl::GetFlag(FLAGS_tls_cert),
                                .tls_key = absl::GetFlag(FLAGS_tls_key),
                                .membership_token_file = absl::GetFlag(FLAGS_membership_token_file),
                                .membership_tls_cert = absl::GetFlag(FLAGS_membership_tls_cert),
                                .membership_tls_key = absl::GetFlag(FLAGS_membership_tls_key)});
}

enum class Ended { kStopped, kLacksItsEnd };

// Runs until SIGTERM, SIGINT, the end of the run, a failure that the coordinator's status reports, or a site that
// proves more than its state holds, which may have lost its end with the machine's power.
Ended Serve(server::RunExchange& coordinator, server::Gate& gate) {
  const bool exit_when_done = absl::GetFlag(FLAGS_exit_when_done);
  while (!ctl::WaitForStopSignal(kTickMs)) {
    coordinator.Tick();
    gate.Tick();
    const std::string deposed =
        coordinator.View([](const server::RunParts& run) { return run.admission.strangers.WhyDeposed(); });
    if (!deposed.empty()) coordinator.Fail(absl::FailedPreconditionError(deposed));
    if (!coordinator.status().ok()) return Ended::kStopped;
    if (coordinator.View([](const server::RunParts& run) {  // not where an operator goes on without it
          return run.admission.LacksItsEnd() && run.rules->doubted();
        })) {
      spdlog::warn("sites hold more than this state, whose end was lost: it is completed from what they hold");
      return Ended::kLacksItsEnd;
    }
    if (exit_when_done && coordinator.done()) {
      spdlog::info("the run is done");
      return Ended::kStopped;
    }
  }
  spdlog::info("stopping: saves snapshots");
  return Ended::kStopped;
}

// If a run continues, `config` becomes the one that run.yaml gives for it.
server::JournalOptions OptionsOfJournal(const std::string& run_yaml, core::RunConfig& config,
                                        const core::Shard& shard) {
  return {.directory = absl::GetFlag(FLAGS_state_dir),
          .run_config = formats::SerializeRunConfig(config),
          .keep = config.checkpoint.keep,
          .max_update_log_bytes = config.checkpoint.max_update_log_bytes,
          .min_free_bytes = config.checkpoint.min_free_bytes,
          .new_lineage = absl::GetFlag(FLAGS_new_lineage),
          .copy = {.directory = absl::GetFlag(FLAGS_copy_to),
                   .hook = absl::GetFlag(FLAGS_copy_hook),
                   .keep = absl::GetFlag(FLAGS_copy_keep),
                   .run_id = config.run_id,
                   .restore_from = absl::GetFlag(FLAGS_restore_from)},
          .progress = [](const std::string& text) { spdlog::info("{}", text); },
          .shard = shard,
          .relaxed = config.durability.journal == core::JournalMode::kRelaxed,
          .accept = [&](const std::string& stored, bool started) -> absl::StatusOr<std::string> {
            ASSIGN_OR_RETURN(config, ConfigOfStoredRun(run_yaml, shard.count, stored, started));
            return formats::SerializeRunConfig(config);
          },
          .failed = nullptr,
          .scrub_bytes_per_s = int64_t{absl::GetFlag(FLAGS_scrub_mb_per_s)} * 1'000'000,
          .damaged = [](const server::DiskDamage& damage) { spdlog::error("{}", damage.Text()); }};
}

absl::StatusOr<std::unique_ptr<server::RunExchange>> MakeCoordinator(
    const std::string& run_yaml, const core::RunConfig& config, const server::Listening& addresses,
    server::Journal* journal, server::StatusBoard* board, const std::optional<std::string>& completed,
    bool asks_again) {
  ASSIGN_OR_RETURN(server::StoredRun stored, journal->Load());
  if (stored.rounds.seeded) spdlog::info("goes on with the stored state of run {}", config.run_id);
  TellDifferences(run_yaml, config, stored);
  return server::RunExchange::Create({.config = config,
                                      .run_config = formats::SerializeRunConfig(config),
                                      .config_json = formats::RunConfigJson(config),
                                      .grpc = addresses.grpc.Text(),
                                      .http = addresses.http.Text(),
                                      .board = board,
                                      .shard = addresses.shard,
                                      .lead = addresses.lead.Text(),
                                      .bounds = server::BoundsOf(config, addresses.shard),
                                      .new_run = absl::GetFlag(FLAGS_new_run),
                                      .completed = completed,
                                      .asks_again = asks_again && completed && completed->empty()},
                                     journal, std::move(stored));
}

server::StatusBoard MakeBoard(const core::RunConfig& config) {
  return server::StatusBoard({.version = CAUSEWAY_VERSION,
                              .host = {.state_dir = absl::GetFlag(FLAGS_state_dir),
                                       .reserved_bytes = config.checkpoint.min_free_bytes,
                                       .certificate = absl::GetFlag(FLAGS_tls_cert),
                                       .log = &ctl::ProgramLogFigures}});
}

// None if no address is given.
absl::StatusOr<std::unique_ptr<server::HttpServer>> StartProbeServer(const std::optional<transport::Address>& address,
                                                                     server::StatusBoard* board) {
  if (!address) return nullptr;
  ASSIGN_OR_RETURN(auto probe_server,
                   server::HttpServer::Start(address->host, address->port, board, server::Serves::kProbes));
  spdlog::info("probes at http://{}/healthz and /readyz", core::Address{address->host, probe_server->port()}.Text());
  return probe_server;
}

// A run as it is served here, from one life of its state to the next.
struct Serving {
  const std::string& run_yaml;
  core::RunConfig config;
  server::Listening addresses;
  server::Gate& gate;
  server::StatusBoard& board;
  server::CoordinatorCalls& others;
  server::LostState lost{
      config,
      addresses,
      gate,
      board,
      absl::GetFlag(FLAGS_state_dir),
      absl::GetFlag(FLAGS_accept),
      [this] { return server::Journal::Open(OptionsOfJournal(run_yaml, config, addresses.shard)); },
      ctl::WaitForStopSignal,
  };
};

absl::Status TellAddresses(const core::RunConfig& config, const server::Listening& addresses) {
  RETURN_IF_ERROR(server::WriteAddresses(absl::GetFlag(FLAGS_state_dir), addresses.grpc.Text(), addresses.http.Text()));
  if (!addresses.tls.given() && absl::GetFlag(FLAGS_site_tokens).empty() && !addresses.grpc.IsLoopback()) {
    spdlog::warn("--insecure: every peer that reaches {} is trusted, and nothing is encrypted", addresses.grpc.Text());
  }
  spdlog::info("run {}, {}: sites at {}, status at http://{}/", config.run_id, addresses.shard.Text(),
               addresses.grpc.Text(), addresses.http.Text());
  return absl::OkStatus();
}

// The standby has heard all, or had the time for it. True: the run is the standby's.
bool HandedOver(const server::Journal& journal) {
  if (!absl::IsAborted(journal.status())) return false;
  const int64_t until_ms = core::SystemClock().NowMs() + kHandOverMs;
  while (!journal.mirrors().all().empty() && core::SystemClock().NowMs() < until_ms) {
    if (ctl::WaitForStopSignal(kTickMs)) break;
  }
  spdlog::info("{}", std::string(journal.status().message()));
  return true;
}

// Ends a run properly: decided rounds are merged, snapshots saved.
int Finish(server::RunExchange& coordinator) {
  absl::Status status = coordinator.status();
  if (status.ok()) status = coordinator.Finish();
  if (status.ok()) return ctl::kDone;
  return ctl::Fail(absl::IsFailedPrecondition(status) ? ctl::kRefused : ctl::kFailed,
                   absl::Status(status.code(), absl::StrCat(std::string(status.message()), "; ",
                                                            server::AfterFailure(absl::GetFlag(FLAGS_state_dir)))));
}

// From the state on the disk until the end. True: the sites hold its end, which the disk has lost. `completed`: what
// was done about that before; nothing: the first life of this process. `asks_again`: where that was in vain.
absl::StatusOr<bool> RunFromStored(Serving& serving, const std::optional<std::string>& completed, bool asks_again,
                                   int& result) {
  ASSIGN_OR_RETURN(const auto journal,
                   absl::GetFlag(FLAGS_rebuild_from_sites) ? OpenOrRebuild(serving.lost) : serving.lost.open());
  if (completed && completed->empty()) journal->EndsInDoubt();  // the next start may find two that agree
  const core::RunConfig& config = serving.config;
  server::Listening& addresses = serving.addresses;
  server::StatusBoard& board = serving.board;
  ASSIGN_OR_RETURN(const auto coordinator,
                   MakeCoordinator(serving.run_yaml, config, addresses, journal.get(), &board, completed, asks_again));
  server::ModelFiles files(absl::GetFlag(FLAGS_state_dir));
  const auto service = server::NewGrpcService(
      coordinator.get(), [&board] { return *board.Status(); }, &serving.gate, &files);
  ASSIGN_OR_RETURN(auto grpc_server, server::ListeningServer::Start(*service, config.sync.map_fragments(),
                                                                    addresses.grpc, addresses.tls));
  RETURN_IF_ERROR(TellAddresses(config, addresses));
  std::optional<server::MembershipFollower> follower;
  if (!addresses.shard.leads()) {
    follower.emplace(
        server::MembershipFollowerOptions{.lead = addresses.lead, .shard = addresses.shard, .run_id = config.run_id},
        transport::MakeGrpcWire(addresses.lead, addresses.lead_channel, addresses.leads), coordinator.get());
  }
  const server::LeaderWatch watch(*journal, serving.others,
                                  [&](const absl::Status& deposed) { coordinator->Fail(deposed); });
  board.SetReady();
  journal->BeginCopies();
  const bool lacks_its_end = Serve(*coordinator, serving.gate) == Ended::kLacksItsEnd;
  if (lacks_its_end) {
    journal->EndsInDoubt();
    board.Publish(coordinator->Status());  // paused, with the alarm, until that is done
  }
  board.SetNotReady(lacks_its_end ? "completes its state from the sites'" : "stops");
  follower.reset();
  const bool handed_over = HandedOver(*journal);
  grpc_server.reset();
  result = handed_over ? ctl::kDone : Finish(*coordinator);
  return lacks_its_end && result == ctl::kDone;
}

// Keeps a copy of the leader's state until it is promoted. CANCELLED: a stop was requested.
absl::Status StandBy(Serving& serving, const server::Elsewhere& leader) {
  server::Listening& addresses = serving.addresses;
  const auto start = [&serving] {  // each with a config of its own: two may be tried at a time
    const auto tried = std::make_shared<core::RunConfig>(serving.config);
    server::JournalOptions options = OptionsOfJournal(serving.run_yaml, *tried, serving.addresses.shard);
    options.accept = [tried, accept = options.accept](const std::string& stored, bool started) {
      return accept(stored, started);
    };
    return options;
  };
  ASSIGN_OR_RETURN(const auto standby, server::Standby::Open({.state_dir = absl::GetFlag(FLAGS_state_dir),
                                                              .leader = leader.address,
                                                              .later_leads = leader.is_later,
                                                              .others = &serving.others,
                                                              .run_id = serving.config.run_id,
                                                              .run_config = formats::SerializeRunConfig(serving.config),
                                                              .shard = addresses.shard,
                                                              .start = start}));
  const auto service = server::NewStandbyService(
      standby.get(), [&serving] { return *serving.board.Status(); }, &serving.gate);
  ASSIGN_OR_RETURN(const auto grpc_server, server::ListeningServer::Start(*service, serving.config.sync.map_fragments(),
                                                                          addresses.grpc, addresses.tls));
  if (addresses.advertised.ends_with(":0")) addresses.advertised = addresses.grpc.Text();  // --listen took a free port
  RETURN_IF_ERROR(standby->Follow(addresses.advertised, addresses.grpc.Text(), addresses.http.Text()));
  spdlog::info("run {}, {}: a standby of {}, at {}", serving.config.run_id, addresses.shard.Text(),
               leader.address.Text(), addresses.grpc.Text());
  const std::string config_json = formats::RunConfigJson(serving.config);
  while (!standby->promoted()) {
    if (ctl::WaitForStopSignal(kStandbyTickMs)) {
      standby->Interrupt();  // before its calls are waited for
      return absl::CancelledError("stops");
    }
    serving.gate.Tick();
    RETURN_IF_ERROR(standby->status());
    serving.board.SetNotReady(standby->Progress());
    serving.board.Publish({.run_id = serving.config.run_id,
                           .protocol = transport::kProtocol,
                           .epoch = standby->epoch(),
                           .shard = addresses.shard,
                           .state = "standby",
                           .reason = standby->Progress(),
                           .grpc = addresses.grpc.Text(),
                           .config_json = config_json,
                           .unix_ms = core::SystemClock().UnixMs(),
                           .others = {.standby_of = leader.address.Text()}});
  }
  serving.board.SetNotReady("was promoted: restores the run's state");
  return absl::OkStatus();
}

int Run(const std::string& run_yaml, core::RunConfig config, server::Listening addresses) {
  for (const std::string& advice : formats::RunAdvice(config)) spdlog::warn("{}", advice);
  auto gate = server::Gate::Create(
      {.authorizer = {.mutual_tls = addresses.tls.given(),
                      .site_tokens = absl::GetFlag(FLAGS_site_tokens),
                      .tls_revoked = absl::GetFlag(FLAGS_tls_revoked)},
       .limits = {.control_message_bytes = core::MaxControlBytes(static_cast<int>(config.sync.map_fragments())),
                  .bulk_streams_at_once = core::MaxBulkStreams(static_cast<int>(config.sync.map_fragments()))}});
  if (!gate.ok()) return ctl::Fail(ctl::kBadInput, gate.status());
  // Started before the state is restored, which may take minutes, so that probes are answered meanwhile.
  server::StatusBoard board = MakeBoard(config);
  board.SetNotReady("restores the run's state");
  const auto http_server = server::HttpServer::Start(addresses.http.host, addresses.http.port, &board,
                                                     server::Serves::kAll, absl::GetFlag(FLAGS_http_hosts));
  if (!http_server.ok()) return ctl::Fail(ctl::kBadInput, http_server.status());
  addresses.http.port = (*http_server)->port();
  const auto probe_server = StartProbeServer(addresses.health, &board);
  if (!probe_server.ok()) return ctl::Fail(ctl::kBadInput, probe_server.status());
  const auto others = server::NewCoordinatorCalls(addresses.client, config.run_id);
  Serving serving{run_yaml, std::move(config), std::move(addresses), **gate, board, *others};
  int result = ctl::kDone;
  server::Listening& own = serving.addresses;
  if (own.advertised.empty()) own.advertised = own.grpc.Text();
  const auto leader = server::LeaderElsewhere(absl::GetFlag(FLAGS_state_dir), own.advertised, own.leader, *others);
  absl::Status promoted = leader.status();
  if (leader.ok() && *leader) promoted = StandBy(serving, **leader);
  absl::StatusOr<bool> again = false;
  again = promoted.ok() ? RunFromStored(serving, std::nullopt, true, result) : promoted;
  for (int tries = 1; again.ok() && *again; ++tries) {
    const absl::StatusOr<std::string> completed = CompleteFromSites(serving.lost);
    again = completed.ok() ? RunFromStored(serving, *completed, tries < kTriesToComplete, result) : completed.status();
  }
  if (absl::IsCancelled(again.status())) {
    spdlog::info("{}", std::string(again.status().message()));
    return ctl::kDone;
  }
  return again.ok() ? result : ctl::Fail(ctl::kBadInput, again.status());
}

}  // namespace
}  // namespace causeway

int main(int argc, char** argv) {
  using namespace causeway;
  ctl::PrepareStandardStreams();
  ctl::SetUpHeap();
  ctl::CatchStopSignals();
  std::signal(SIGCHLD, SIG_DFL);  // hooks are waited for
  const absl::Status flags = ctl::FlagsAlone(ctl::StartProgram(argc, argv, kUsage));
  if (!flags.ok()) return ctl::Fail(ctl::kBadInput, flags);
  if (absl::GetFlag(FLAGS_config).empty() || absl::GetFlag(FLAGS_state_dir).empty()) {
    return ctl::Fail(ctl::kBadInput, absl::InvalidArgumentError("expected --config=run.yaml and --state_dir=DIR"));
  }
  const auto run_yaml = formats::ReadRunYamlText(absl::GetFlag(FLAGS_config));
  if (!run_yaml.ok()) return ctl::Fail(ctl::kBadInput, run_yaml.status());
  auto config = formats::ParseRunYaml(*run_yaml, absl::GetFlag(FLAGS_config));
  if (!config.ok()) return ctl::Fail(ctl::kBadInput, config.status());
  if (const absl::Status copies = CheckCopyFlags(); !copies.ok()) return ctl::Fail(ctl::kBadInput, copies);
  auto listening = ReadListening();
  if (!listening.ok()) return ctl::Fail(ctl::kBadInput, listening.status());
  if (const absl::Status placed = formats::PlaceShards(listening->shard.count, &*config); !placed.ok()) {
    return ctl::Fail(ctl::kBadInput, placed);
  }
  ctl::RaiseDescriptorLimit();
  const int probes = listening->health ? server::kProbeThreads : 0;
  const int pages = server::kMaxEventStreams + server::kRequestThreads;
  if (const absl::Status may_start = ctl::CheckThreads(pages + probes + kOwnThreads); !may_start.ok()) {
    return ctl::Fail(ctl::kFailed, may_start);
  }
  return Run(*run_yaml, *config, *std::move(listening));
}
