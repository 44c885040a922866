// causeway-worker: trains one site's replica and keeps it in step through the coordinator. Reads flags and wires the
// trainer (worker/train), the site (worker/site) and the loop between them (worker/loop).
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/host_limits.h"
#include "core/text.h"
#include "ctl/client_flags.h"
#include "ctl/program.h"
#include "ctl/standard_streams.h"
#include "formats/run_yaml.h"
#include "offload/calibration.h"
#include "transport/first_address.h"
#include "transport/grpc_link.h"
#include "transport/sharded_link.h"
#include "worker/data/evaluation.h"
#include "worker/device/blas_kernels.h"
#include "worker/loop/exports.h"
#include "worker/loop/ranked_trainer.h"
#include "worker/loop/site_loop.h"
#include "worker/loop/site_ranks.h"
#include "worker/loop/site_trainer.h"
#include "worker/loop/training_log.h"
#include "worker/model/stage_profile.h"
#include "worker/parallel/trainer.h"
#include "worker/ranks/rank_launcher.h"
#include "worker/ranks/rank_place.h"
#include "worker/site/checkpoint_store.h"
#include "worker/site/site.h"

ABSL_FLAG(std::string, coordinator, "127.0.0.1:7077",
          "HOST:PORT of the coordinator, with a standby A|B; of several the list A,B,… in the order of their shards");
ABSL_FLAG(std::string, site, "", "this site's name, unique in the run");
ABSL_FLAG(std::string, data, "",
          "text file, .bin token shard, .jsonl file or folder of one of them (not for a synthetic model)");
ABSL_FLAG(std::string, held_out, "",
          "evaluate on FILE, the same in all sites, instead of the tail of --data (data.mode: own)");
ABSL_FLAG(std::string, device, "auto", "cpu, cuda, cuda:INDEX or auto, the best");
ABSL_FLAG(std::string, compute_dtype, "auto", "on a device: float32, bfloat16; auto: bfloat16 on a GPU, else float32");
ABSL_FLAG(std::string, recompute, "auto", "on a device, in backward: none, norm_swiglu, block; auto: the first to fit");
ABSL_FLAG(std::string, attention, "auto", "on a GPU: cudnn, or own, which needs no cuDNN; auto: cudnn where it can be");
ABSL_FLAG(std::string, products, "auto",
          "on a GPU, algorithms of matrix products: timed or first; auto: timed in one rank");
ABSL_FLAG(std::string, encode, "auto", "on a device, contributions: mapped or copied (encoded there), host, auto");
ABSL_FLAG(std::string, offload_k, "", "on a device, overrules the run's offload.k: auto, resident, cpu, 1, 2, …");
ABSL_FLAG(std::string, resident_share, "", "on a device, overrules the run's offload.resident_share: auto, 0 to 1");
ABSL_FLAG(std::string, cuda_libs, "", "with --device=cuda: the folder where CUDA's libraries are looked for first");
ABSL_FLAG(std::string, dump_local, "", "at the end, write this site's own parameters to FILE.safetensors");
ABSL_FLAG(std::string, checkpoint_dir, "",
          "directory of this site's checkpoints: a worker that starts again there goes on with its session");
ABSL_FLAG(std::string, metrics_file, "", "append what training does, as JSON lines: steps, evaluations, files");
ABSL_FLAG(double, metrics_every_s, 1, "with --metrics_file: the least time between two lines of steps; 0 = each step");
ABSL_FLAG(std::string, export_dir, "", "write the global parameters there, every --export_every_rounds and at the end");
ABSL_FLAG(int64_t, export_every_rounds, 0, "with --export_dir: of all fragments; 0 = at the end alone");
ABSL_FLAG(int, export_keep, 3, "with --export_dir: how many of the newest exports stay");
ABSL_FLAG(std::string, export_assets, "",
          "with --export_dir: a Hugging Face folder of the same model, whose tokenizer and generation_config.json are "
          "copied");
ABSL_FLAG(std::string, export_dtype, "float32",
          "with --export_dir: float32, or bfloat16, rounded to nearest, ties to even");
ABSL_FLAG(double, max_up_mbit, 0, "limit on sending payload, in Mbit/s; 0 = as fast as it goes");
ABSL_FLAG(double, max_down_mbit, 0, "limit on receiving payload, in Mbit/s; 0 = as fast as it goes");
ABSL_FLAG(int64_t, connect_timeout_s, 0, "give up after N seconds without the coordinator; 0 = never");
ABSL_FLAG(
    double, rank_timeout_s, 600,
    "seconds without an inner step, or a word from a rank, after which training stands still: the lease ends, and "
    "rounds go on");
ABSL_FLAG(int, nproc, 0,
          "start N ranks of this site on this machine, each with its share of the cores; 0 = be one rank, which the "
          "environment of torchrun, Slurm or Open MPI may say more of");
ABSL_FLAG(int, rank, -1, "with --world and --rendezvous: which rank of the site this is; rank 0 takes part in the run");
ABSL_FLAG(int, world, -1, "with --rank: how many ranks the site has");
ABSL_FLAG(std::string, rendezvous_key_file, "", "file with the key of the site's ranks, not CAUSEWAY_RENDEZVOUS_KEY");
ABSL_FLAG(std::string, rendezvous, "", "HOST:PORT of rank 0, or unix:PATH, where the ranks of the site meet");
ABSL_FLAG(std::string, pipeline, "",
          "train by this schedule of causewayctl plan pipeline, whose devices are the ranks");
ABSL_FLAG(std::string, trace, "", "with --pipeline or inner.partition: write operations' times as Chrome trace events");
ABSL_FLAG(std::string, levels, "", "the site's link levels, which inner.partition names; without, one of all ranks");
ABSL_FLAG(int, threads, 0, "of a rank's optimizer and initial values; 0: as many as its cores, and its cgroup's quota");
ABSL_FLAG(std::string, bind, "auto", "with --nproc: auto binds each rank to its share of the cores, none does not");
ABSL_FLAG(std::string, evaluate, "", "evaluate the exported model in DIR on --data, print JSON and end");
ABSL_FLAG(std::string, profile_stages, "", "print what the parts of this run.yaml's model cost here, and end");
ABSL_FLAG(int64_t, sample_bytes, 200, "with --evaluate: how much text to sample");
ABSL_FLAG(uint64_t, seed, 1, "with --evaluate: random seed for the text that is sampled");
ABSL_FLAG(int64_t, token_bytes, 2,
          "with --evaluate: of a token in a .bin without a header, 2 or 4; a run has data.token_bytes");
ABSL_FLAG(int64_t, sequence_length, 0,
          "with --evaluate: tokens of a window; 0 = max_position_embeddings; a run has inner.sequence_length");

namespace causeway {
namespace {

constexpr int kOwnThreads = 10;  // steps, copies, arithmetic, signals, log, ranks
constexpr char kUsage[] =
    "causeway-worker --coordinator=HOST:PORT[,…] --site=NAME --data=PATH     trains one site\n"
    "causeway-worker --nproc=N …                                            trains one site in N ranks\n"
    "causeway-worker --evaluate=DIR --data=PATH                              evaluates an export\n"
    "causeway-worker --profile_stages=RUN.yaml                               costs of the model's parts, as JSON\n";

// As ctl::Fail, but what another rank of the same launcher has said already is not said again.
int EndWith(ctl::ExitCode code, const absl::Status& status) {
  const bool said = worker::AnotherRankSays(absl::GetFlag(FLAGS_rendezvous), std::string(status.message()));
  return said ? code : ctl::Fail(code, status);
}

int BadInput(const std::string& why) { return EndWith(ctl::kBadInput, absl::InvalidArgumentError(why)); }

int FailWith(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated: return EndWith(ctl::kRefused, status);
    case absl::StatusCode::kDataLoss: return EndWith(ctl::kNonFinite, status);
    case absl::StatusCode::kUnavailable: return EndWith(ctl::kUnreachable, status);
    case absl::StatusCode::kInvalidArgument: return EndWith(ctl::kBadInput, status);
    default: return EndWith(ctl::kFailed, status);
  }
}

// The target of SIGTERM, which passes it to the site, once there is one.
class StopRequest {
 public:
  void Stop() {
    core::MutexLock lock(mutex_);
    stopped_ = true;
    if (site_ != nullptr) site_->RequestStop();
  }
  void Attach(worker::Site* site) {
    core::MutexLock lock(mutex_);
    site_ = site;
    if (stopped_ && site_ != nullptr) site_->RequestStop();
  }
  bool stopped() {
    core::MutexLock lock(mutex_);
    return stopped_;
  }

 private:
  core::Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  worker::Site* site_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

int Print(const absl::StatusOr<std::string>& json) {
  if (!json.ok()) return EndWith(ctl::kBadInput, json.status());
  std::printf("%s\n", json->c_str());
  return ctl::EndOutput(ctl::kDone);
}

int Evaluate() {
  const worker::EvaluateOptions options{.token_bytes = absl::GetFlag(FLAGS_token_bytes),
                                        .sequence_length = absl::GetFlag(FLAGS_sequence_length),
                                        .sample_bytes = absl::GetFlag(FLAGS_sample_bytes),
                                        .seed = absl::GetFlag(FLAGS_seed)};
  if (options.token_bytes != 2 && options.token_bytes != 4) {
    return BadInput(absl::StrCat("--token_bytes: expected 2 or 4, got ", options.token_bytes));
  }
  return Print(worker::EvaluateDirectory(absl::GetFlag(FLAGS_evaluate), absl::GetFlag(FLAGS_data), options));
}

struct SavedSite {
  std::unique_ptr<worker::CheckpointStore> store;  // none without --checkpoint_dir
  std::optional<worker::LoadedCheckpoint> checkpoint;
};

// Opens the checkpoints of an earlier process of this site, and gives its session to the link.
absl::StatusOr<SavedSite> OpenCheckpoints(const core::RunConfig& config, transport::SessionLink& link) {
  SavedSite saved;
  const std::string directory = absl::GetFlag(FLAGS_checkpoint_dir);
  if (directory.empty()) return saved;
  const core::SiteId site = absl::GetFlag(FLAGS_site);
  ASSIGN_OR_RETURN(saved.store, worker::CheckpointStore::Open(directory));
  ASSIGN_OR_RETURN(saved.checkpoint, saved.store->Load(config.run_id, site));
  if (saved.checkpoint) {
    const worker::CheckpointIdentity& earlier = saved.checkpoint->identity;
    link.Resume(earlier.session, {earlier.lineage, earlier.proofs});
  } else if (const core::SessionId session = saved.store->LoadSession(config.run_id, site); !session.empty()) {
    link.Resume(session, {});
  }
  const absl::Status kept = saved.store->SaveSession({.run = config.run_id, .site = site, .session = link.session()});
  if (absl::IsPermissionDenied(kept)) return kept;
  if (!kept.ok()) spdlog::warn("{}: goes on without a checkpoint until one can be saved", std::string(kept.message()));
  return saved;
}

worker::DeviceChoice Device() {
  return {.device = absl::GetFlag(FLAGS_device),
          .compute_dtype = absl::GetFlag(FLAGS_compute_dtype),
          .recompute = absl::GetFlag(FLAGS_recompute),
          .attention = absl::GetFlag(FLAGS_attention),
          .products = absl::GetFlag(FLAGS_products),
          .encode = absl::GetFlag(FLAGS_encode),
          .offload_k = absl::GetFlag(FLAGS_offload_k),
          .resident_share = absl::GetFlag(FLAGS_resident_share),
          .cuda_libs = absl::GetFlag(FLAGS_cuda_libs)};
}

worker::TrainerFiles Files() {
  return {.data_path = absl::GetFlag(FLAGS_data),
          .held_out_path = absl::GetFlag(FLAGS_held_out),
          .calibration_path = offload::DefaultCalibrationPath(),
          .pipeline_path = absl::GetFlag(FLAGS_pipeline),
          .trace_path = absl::GetFlag(FLAGS_trace),
          .levels_path = absl::GetFlag(FLAGS_levels)};
}

int Train(transport::SessionLink& link, const core::RunConfig& config, worker::SiteRanks& ranks, StopRequest& stop) {
  const core::SiteId name = absl::GetFlag(FLAGS_site);
  if (config.model_kind == core::ModelKind::kExternal) {
    constexpr char kNotHere[] = "the sites bring this run's model: use the Python package or causeway.h";
    return BadInput(kNotHere);
  }
  for (const auto& [flag, path] :
       {std::pair("--data", absl::GetFlag(FLAGS_data)), std::pair("--held_out", absl::GetFlag(FLAGS_held_out))}) {
    if (config.model_kind != core::ModelKind::kSynthetic || path.empty()) continue;
    return EndWith(ctl::kBadInput,
                   absl::InvalidArgumentError(absl::StrCat(flag, ": the run's model is synthetic and takes none")));
  }
  worker::TrainerFiles files = Files();
  files.ranks = ranks.ForTrainer(nullptr);
  auto own = worker::MakeSiteTrainer(Device(), config, name, files);
  if (!own.ok()) return EndWith(ctl::kBadInput, own.status());
  worker::RankedTrainer trainer(**own, ranks.control(), [&] { stop.Stop(); });
  auto form = formats::MakeExportForm(config, absl::GetFlag(FLAGS_export_dtype), absl::GetFlag(FLAGS_export_assets));
  if (!form.ok()) return EndWith(ctl::kBadInput, form.status());
  if (!absl::GetFlag(FLAGS_export_dir).empty() && !form->note.empty()) spdlog::warn("{}", form->note);
  const auto log =
      worker::TrainingLog::Open(absl::GetFlag(FLAGS_metrics_file), name, absl::GetFlag(FLAGS_metrics_every_s));
  if (!log.ok()) return EndWith(ctl::kBadInput, log.status());
  auto saved = OpenCheckpoints(config, link);
  if (!saved.ok()) return EndWith(ctl::kBadInput, saved.status());
  worker::Site site(config, name, trainer.manifest(), &trainer.store(), &link);
  const core::SiteData data = trainer.data();
  site.SetData(data);
  if (data.training) spdlog::info("data: {}", core::FingerprintText(*data.training));
  if (data.held_out) spdlog::info("held out: {}", core::FingerprintText(*data.held_out));
  if (saved->checkpoint) {
    absl::Status loaded = trainer.Load(saved->checkpoint->trainer_path);
    if (!loaded.ok()) return EndWith(ctl::kBadInput, loaded);
    site.Restore(std::move(saved->checkpoint->site));
  }
  if (const absl::Status alike = trainer.CheckAlike(); !alike.ok()) return EndWith(ctl::kFailed, alike);
  if (const absl::Status initial = trainer.initial_values(); !initial.ok()) {
    spdlog::info("takes the run's parameters: {}", std::string(initial.message()));
    site.HasNoInitialValues(initial);
  }
  stop.Attach(&site);
  worker::Checkpoints checkpoints(saved->store.get(), name, link, config, log->get());
  worker::Exports exports({.directory = absl::GetFlag(FLAGS_export_dir),
                           .site = name,
                           .every_rounds = absl::GetFlag(FLAGS_export_every_rounds),
                           .keep = absl::GetFlag(FLAGS_export_keep),
                           .form = *std::move(form)},
                          trainer.manifest(), [&](const std::string& path, double seconds) {
                            if (*log != nullptr) (*log)->Export(core::SystemClock().UnixMs(), path, seconds);
                          });
  worker::SiteLoop loop(trainer, site, checkpoints, exports, log->get());
  absl::Status status = loop.Run();
  stop.Attach(nullptr);
  if (const absl::Status failure = ranks.failure(); !failure.ok()) status = failure;
  const bool finished = status.ok();
  if (absl::IsCancelled(status)) {
    spdlog::info("stopping: drains what is in flight");
    loop.SaveCheckpoint();
    status = site.DrainUploads();
  }
  if (const std::string path = absl::GetFlag(FLAGS_dump_local); status.ok() && !path.empty()) {
    status = loop.DumpLocal(path);
  }
  site.Leave(finished, finished ? "all steps are done" : status.ok() ? "drained" : std::string(status.message()));
  if (!status.ok()) return FailWith(status);
  spdlog::info("{}", finished ? "all steps are done" : "drained");
  return ctl::kDone;
}

constexpr double kBytesPerMbit = 1e6 / 8;

// A negative or infinite rate is a typo.
absl::Status CheckRate(const char* flag, double mbit) {
  if (mbit >= 0 && std::isfinite(mbit)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(flag, ": expected a finite rate of 0 or more Mbit/s, got ", mbit));
}

// One to the coordinator, or to all shards of the run.
absl::StatusOr<std::unique_ptr<transport::SessionLink>> MakeLink() {
  const std::vector<std::string> texts = absl::StrSplit(absl::GetFlag(FLAGS_coordinator), ',');
  std::vector<transport::LinkOptions> shards;
  for (const std::string& text : texts) {
    ASSIGN_OR_RETURN(const std::vector<transport::Address> addresses, transport::ParseAddresses("--coordinator", text));
    ASSIGN_OR_RETURN(const transport::ChannelOptions channel, ctl::ReadChannelOptions(addresses.front()));
    shards.push_back({.coordinator = addresses.front(),
                      .all = addresses,
                      .channel = channel,
                      .site = absl::GetFlag(FLAGS_site),
                      .connect_timeout_s = absl::GetFlag(FLAGS_connect_timeout_s),
                      .max_up_bytes_per_s = absl::GetFlag(FLAGS_max_up_mbit) * kBytesPerMbit,
                      .max_down_bytes_per_s = absl::GetFlag(FLAGS_max_down_mbit) * kBytesPerMbit});
  }
  return transport::MakeLink(std::move(shards));
}

// A rank that knows no coordinator, and trains under the commands of rank 0: from the arrival of the run's config to the
// end of the run. INVALID_ARGUMENT: this rank's data or flags do not fit; DATA_LOSS: a value is not finite; INTERNAL: a
// rank has failed, and which.
absl::Status FollowRank0(worker::SiteRanks& ranks, StopRequest& stop) {
  worker::RankControl& control = ranks.control();
  ASSIGN_OR_RETURN(const worker::RankCommand run, control.Next());
  if (run.kind != worker::RankCommand::Kind::kRun) return absl::InternalError("rank 0 has ended: " + run.payload);
  worker::TrainerFiles files = Files();
  files.ranks = ranks.ForTrainer([&] { return stop.stopped(); });
  const auto trainer = [&]() -> absl::StatusOr<std::unique_ptr<worker::Trainer>> {
    ASSIGN_OR_RETURN(const core::RunConfig config, formats::ParseRunConfig(run.payload));
    return MakeSiteTrainer(Device(), config, absl::GetFlag(FLAGS_site), files);
  }();
  if (!trainer.ok()) {
    control.group().Abort(std::string(trainer.status().message()));
    return absl::InvalidArgumentError(trainer.status().message());  // whichever it is: a file that is not there, too
  }
  return FollowLeader(**trainer, control);
}

// Rank 0 is the site; the other ranks follow it, and know no coordinator.
int TrainWith(transport::SessionLink& link, worker::SiteRanks& ranks, StopRequest& stop) {
  const auto description = link.Describe([&] { return stop.stopped(); });
  if (absl::IsCancelled(description.status())) return ctl::kDone;
  if (!description.ok()) return FailWith(description.status());
  const auto config = formats::ParseRunConfig(description->run_config);
  if (!config.ok()) return EndWith(ctl::kRefused, config.status());
  spdlog::info("site {} takes part in run {} at {}", absl::GetFlag(FLAGS_site), config->run_id,
               absl::GetFlag(FLAGS_coordinator));
  const absl::Status told =
      ranks.control().Tell({.kind = worker::RankCommand::Kind::kRun, .payload = description->run_config});
  if (!told.ok()) return FailWith(told);
  return Train(link, *config, ranks, stop);
}

absl::StatusOr<std::unique_ptr<worker::SiteRanks>> OpenRanks() {
  ASSIGN_OR_RETURN(const worker::RankPlace place, worker::ReadRankPlace({.rank = absl::GetFlag(FLAGS_rank),
                                                                         .world = absl::GetFlag(FLAGS_world),
                                                                         .rendezvous = absl::GetFlag(FLAGS_rendezvous)},
                                                                        core::ProcessEnvironment));
  ASSIGN_OR_RETURN(worker::RankKey key, worker::ReadRankKey(absl::GetFlag(FLAGS_rendezvous_key_file), place,
                                                            absl::GetFlag(FLAGS_insecure), core::ProcessEnvironment));
  return worker::SiteRanks::Open({.place = place,
                                  .identity = absl::StrCat("site ", absl::GetFlag(FLAGS_site)),
                                  .key = std::move(key),
                                  .timeout_s = absl::GetFlag(FLAGS_rank_timeout_s)});
}

// Runs the ranks of --nproc as separate processes.
int Launch(int argc, char** argv) {
  const int ranks = absl::GetFlag(FLAGS_nproc);
  worker::LaunchOptions options{.ranks = ranks,
                                .bind = absl::GetFlag(FLAGS_bind) == "auto",
                                .grace_s = std::min(10.0, absl::GetFlag(FLAGS_rank_timeout_s))};
  if (ranks < 1 || ranks > worker::kMostRanks) {
    return BadInput(absl::StrCat("--nproc: expected 1 to ", worker::kMostRanks, " ranks, got ", ranks));
  }
  if (!options.bind && absl::GetFlag(FLAGS_bind) != "none") {
    return BadInput(absl::StrCat("--bind: expected auto or none, got ", absl::GetFlag(FLAGS_bind)));
  }
  options.arguments.assign(argv, argv + argc);
  return worker::LaunchRanks(options, ctl::WaitForStopSignal);
}

int Run() {
  for (const auto& [flag, mbit] : {std::pair("--max_up_mbit", absl::GetFlag(FLAGS_max_up_mbit)),
                                   std::pair("--max_down_mbit", absl::GetFlag(FLAGS_max_down_mbit))}) {
    if (const absl::Status status = CheckRate(flag, mbit); !status.ok()) return EndWith(ctl::kBadInput, status);
  }
  if (const int64_t timeout_s = absl::GetFlag(FLAGS_connect_timeout_s); timeout_s < 0) {
    return BadInput(absl::StrCat("--connect_timeout_s: expected 0 or more seconds, got ", timeout_s));
  }
  if (const double timeout_s = absl::GetFlag(FLAGS_rank_timeout_s); !(timeout_s > 0)) {
    return BadInput(absl::StrCat("--rank_timeout_s: expected more than 0 seconds, got ", timeout_s));
  }
  if (const double every_s = absl::GetFlag(FLAGS_metrics_every_s); !(every_s >= 0 && std::isfinite(every_s))) {
    return BadInput(absl::StrCat("--metrics_every_s: expected 0 or more seconds, got ", every_s));
  }
  if (const int threads = absl::GetFlag(FLAGS_threads); threads < 0) {
    return BadInput(absl::StrCat("--threads: expected 1 or more, or 0 for all cores, got ", threads));
  } else if (threads > 0) {
    core::LimitCores(threads);
  }
  const absl::Status exports = worker::CheckExportFlags({.directory = absl::GetFlag(FLAGS_export_dir),
                                                         .every_rounds = absl::GetFlag(FLAGS_export_every_rounds),
                                                         .keep = absl::GetFlag(FLAGS_export_keep),
                                                         .assets = absl::GetFlag(FLAGS_export_assets),
                                                         .dtype = absl::GetFlag(FLAGS_export_dtype)});
  if (!exports.ok()) return EndWith(ctl::kBadInput, exports);
  if (const absl::Status status = worker::CheckDevice(Device()); !status.ok()) {
    return EndWith(ctl::kBadInput, status);
  }
  const absl::Status may_start = ctl::CheckThreads(kOwnThreads + core::UsableCores());
  if (!may_start.ok()) return EndWith(ctl::kFailed, may_start);
  const auto link = MakeLink();
  if (!link.ok()) return EndWith(ctl::kBadInput, link.status());
  const auto ranks = OpenRanks();
  if (!ranks.ok()) return FailWith(ranks.status());
  StopRequest stop;
  const ctl::StopSignals signals([&] { stop.Stop(); });
  if (!(*ranks)->leads()) {
    const absl::Status status = FollowRank0(**ranks, stop);
    return status.ok() ? ctl::kDone : FailWith(status);
  }
  (*ranks)->StayAlive([&] { stop.Stop(); });
  const int code = TrainWith(**link, **ranks, stop);
  (*ranks)->End(code == ctl::kDone, absl::StrCat("exit code ", code, worker::kWhyIsInItsLog));
  return code;
}

}  // namespace
}  // namespace causeway

int main(int argc, char** argv) {
  using namespace causeway;
  ctl::PrepareStandardStreams();
  worker::StartAgainWithBestBlasKernels(argv);
  ctl::SetUpHeap();
  ctl::CatchStopSignals();
  const absl::Status flags = ctl::FlagsAlone(ctl::StartProgram(argc, argv, kUsage));
  if (!flags.ok()) return EndWith(ctl::kBadInput, flags);
  if (!absl::GetFlag(FLAGS_evaluate).empty()) return Evaluate();
  if (const std::string path = absl::GetFlag(FLAGS_profile_stages); !path.empty()) {
    return Print(worker::ProfileRunYaml(path));
  }
  if (!core::IsValidName(absl::GetFlag(FLAGS_site))) {
    return BadInput(absl::StrCat("--site: expected 1 to 64 letters, digits, '.', '_' or '-', got ",
                                 core::Quoted(absl::GetFlag(FLAGS_site))));
  }
  return absl::GetFlag(FLAGS_nproc) != 0 && absl::GetFlag(FLAGS_rank) < 0 ? Launch(argc, argv) : Run();
}
