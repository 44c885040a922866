// quality_run: trains one setup in this process and prints one line of JSON: its config, losses, bytes, codec errors.
//
//   quality_run --config=run.yaml --data=corpus.txt                      as many sites as membership.min_sites
//   quality_run --config=run.yaml --data=corpus.txt --data_parallel      one model on all sites' batches
//   quality_run --config=run.yaml --data=corpus.txt --record=DIR         also some outer gradients, as safetensors
//
// Uses one core: its figures need no quiet machine, but for wall_s. tests/bench/quality runs many of them.
#include <cblas.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "ctl/program.h"
#include "formats/run_yaml.h"
#include "tests/bench/quality_run/quality_run.h"
#include "worker/device/blas_kernels.h"

ABSL_FLAG(std::string, config, "", "run.yaml; membership.min_sites is the number of sites, run.steps is needed");
ABSL_FLAG(std::string, data, "", "text file, .bin token shard or directory of them");
ABSL_FLAG(bool, data_parallel, false, "one model that trains on the batches of all sites at every step");
ABSL_FLAG(int64_t, eval_windows, 2048, "held-out sequences that a loss is measured over, a multiple of 32");
ABSL_FLAG(int64_t, tail_rounds, 4, "rounds at the end that loss_tail is the mean of");
ABSL_FLAG(std::string, record, "", "write outer gradients of one site to DIR/round_N.safetensors");
ABSL_FLAG(int64_t, curve_rounds, 0, "the loss after each that number of rounds, too; 0: not");
ABSL_FLAG(bool, codecs, false, "print the names of all codecs and end");
ABSL_FLAG(int64_t, link_phase_rounds, 0, "with codec auto: links are fast for that many rounds, slow for as many");
ABSL_FLAG(int64_t, record_rounds, 4, "with --record: how many rounds, spread over the run");

namespace causeway::bench {
namespace {

constexpr char kUsage[] = "quality_run --config=run.yaml --data=PATH [--data_parallel] [--record=DIR]";

// A number, or null where there is none.
nlohmann::ordered_json Number(double value) { return std::isfinite(value) ? nlohmann::ordered_json(value) : nullptr; }

nlohmann::ordered_json ResultJson(const QualityOptions& options, const QualityResult& result) {
  const bool ended = !result.diverged;
  return {{"sites", options.config.membership.min_sites},
          {"parameters", result.parameters},
          {"eval_windows", options.eval_windows},
          {"rounds", result.rounds},
          {"diverged", result.diverged},
          {"reason", result.reason},
          {"loss_start", Number(result.loss_start)},
          {"loss_half", ended ? Number(result.loss_half) : nullptr},
          {"loss", ended ? Number(result.loss) : nullptr},
          {"loss_tail", ended ? Number(result.loss_tail) : nullptr},
          {"train_loss_end", ended ? Number(result.train_loss_end) : nullptr},
          {"curve", result.curve},
          {"bytes_up", result.up_bytes},
          {"bytes_down", result.down_bytes},
          {"error_up", Number(result.up.MeanError())},
          {"norm_ratio_up", Number(result.up.MeanNormRatio())},
          {"error_down", Number(result.down.MeanError())},
          {"norm_ratio_down", Number(result.down.MeanNormRatio())},
          {"residual_norm_up", Number(result.residual_norm)},
          {"correlation", Number(result.correlation)},
          {"amplification", Number(result.amplification)},
          {"digests", result.digests},
          {"config", nlohmann::ordered_json::parse(formats::RunConfigJson(options.config))}};
}

absl::StatusOr<QualityOptions> ReadOptions() {
  QualityOptions options{.data_path = absl::GetFlag(FLAGS_data),
                         .eval_windows = absl::GetFlag(FLAGS_eval_windows),
                         .tail_rounds = absl::GetFlag(FLAGS_tail_rounds),
                         .curve_rounds = absl::GetFlag(FLAGS_curve_rounds),
                         .record_dir = absl::GetFlag(FLAGS_record),
                         .record_rounds = absl::GetFlag(FLAGS_record_rounds),
                         .link_phase_rounds = absl::GetFlag(FLAGS_link_phase_rounds)};
  auto config = formats::ReadRunYaml(absl::GetFlag(FLAGS_config));
  if (!config.ok()) return config.status();
  options.config = *std::move(config);
  if (options.config.model_kind != core::ModelKind::kLlama) {
    return absl::InvalidArgumentError("model.kind: expected llama, which has a loss");
  }
  const core::SyncConfig& sync = options.config.sync;
  if (options.config.steps < 2 * sync.sync_every + sync.fragment_sync_delay) {
    return absl::InvalidArgumentError(
        absl::StrCat("run.steps: expected enough for one round of each fragment, got ", options.config.steps));
  }
  if (options.eval_windows < kEvalRows || options.eval_windows % kEvalRows != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--eval_windows: expected a multiple of ", kEvalRows, ", got ", options.eval_windows));
  }
  if (options.tail_rounds < 1 || options.record_rounds < 1 || options.curve_rounds < 0) {
    return absl::InvalidArgumentError("--tail_rounds, --record_rounds: expected at least 1; --curve_rounds: 0 or more");
  }
  std::error_code error;
  if (!options.record_dir.empty()) std::filesystem::create_directories(options.record_dir, error);
  if (error) return absl::InvalidArgumentError(absl::StrCat("--record: cannot make the folder: ", error.message()));
  return options;
}

int ListCodecs() {
  for (core::CodecId codec : core::kAllCodecs) std::printf("%s\n", core::CodecName(codec));
  return ctl::kDone;
}

int Main() {
  if (absl::GetFlag(FLAGS_codecs)) return ListCodecs();
  const auto options = ReadOptions();
  if (!options.ok()) return ctl::Fail(ctl::kBadInput, options.status());
  openblas_set_num_threads(1);
  const auto begin = std::chrono::steady_clock::now();
  const auto result = absl::GetFlag(FLAGS_data_parallel) ? RunDataParallel(*options) : RunSites(*options);
  if (!result.ok()) return ctl::Fail(ctl::kFailed, result.status());
  nlohmann::ordered_json json = ResultJson(*options, *result);
  json["data_parallel"] = absl::GetFlag(FLAGS_data_parallel);
  json["wall_s"] = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  json["cpu_s"] = static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
  std::printf("%s\n", json.dump().c_str());
  return ctl::kDone;
}

}  // namespace
}  // namespace causeway::bench

int main(int argc, char** argv) {
  causeway::worker::StartAgainWithBestBlasKernels(argv);  // as causeway-worker does, for its bits
  using namespace causeway;
  const std::vector<std::string> arguments = ctl::StartProgram(argc, argv, bench::kUsage);
  if (!arguments.empty()) {
    return ctl::Fail(ctl::kBadInput, absl::InvalidArgumentError("expected flags alone, got '" + arguments[0] + "'"));
  }
  spdlog::set_level(spdlog::level::warn);  // the sites' joining and leaving says nothing here
  return bench::Main();
}
