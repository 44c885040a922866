// quality: trains one setup in this process and prints its config, losses, bytes and codec errors: as many sites as
// membership.min_sites, or (data_parallel) one model on the batches of all; with `record`, also some outer gradients.
//
// Uses one core: its figures need no quiet machine, but for wall_s. tests/bench/quality runs many of them.
#include "tests/bench/bench_run/quality.h"

#include <cblas.h>
#include <spdlog/spdlog.h>

#include <cmath>
#include <cstdio>
#include <ctime>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "formats/run_yaml.h"
#include "tests/bench/bench_run/bench_run.h"

namespace causeway::bench {
namespace {

// A number, or null where there is none.
Json Number(double value) { return std::isfinite(value) ? Json(value) : nullptr; }

Json ResultJson(const QualityOptions& options, const QualityResult& result) {
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
          {"config", Json::parse(formats::RunConfigJson(options.config))}};
}

absl::StatusOr<QualityOptions> ReadOptions() {
  QualityOptions options{.data_path = Given<std::string>("data"),
                         .eval_windows = Given<int64_t>("eval_windows"),
                         .tail_rounds = Given<int64_t>("tail_rounds"),
                         .curve_rounds = Given<int64_t>("curve_rounds"),
                         .record_dir = Given<std::string>("record"),
                         .record_rounds = Given<int64_t>("record_rounds"),
                         .link_phase_rounds = Given<int64_t>("link_phase_rounds")};
  auto config = formats::ReadRunYaml(Given<std::string>("config"));
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

}  // namespace

absl::Status Quality() {
  if (Given<bool>("codecs")) {
    for (core::CodecId codec : core::kAllCodecs) std::printf("%s\n", core::CodecName(codec));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const QualityOptions options, ReadOptions());
  spdlog::set_level(spdlog::level::warn);  // the sites' joining and leaving says nothing here
  openblas_set_num_threads(1);
  const Clock::time_point begin = Clock::now();
  ASSIGN_OR_RETURN(const QualityResult result,
                   Given<bool>("data_parallel") ? RunDataParallel(options) : RunSites(options));
  Json json = ResultJson(options, result);
  json["data_parallel"] = Given<bool>("data_parallel");
  json["wall_s"] = SecondsSince(begin);
  json["cpu_s"] = static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
  Print(json);
  return absl::OkStatus();
}

}  // namespace causeway::bench
