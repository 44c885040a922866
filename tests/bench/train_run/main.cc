// Steps of the built-in trainer of a Llama, alone and on a device: prints a line of JSON with the median step, one for
// each place of the optimizer's state. The first steps of each are not timed. Every place gives the same digest of θ.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/digest.h"
#include "core/host_limits.h"
#include "core/layout.h"
#include "core/model_manifest.h"
#include "core/thread_team.h"
#include "tests/bench/train_run/profiled_backend.h"
#include "tests/worker/device/fake_backend.h"
#include "worker/device/blas_kernels.h"
#include "worker/loop/site_trainer.h"

#ifdef CAUSEWAY_WITH_CUDA
#include "worker/device/cuda/cuda_backend.h"
#endif

ABSL_FLAG(std::string, data, "", "text file (vocabulary 256) or .bin of tokens");
ABSL_FLAG(std::string, device, "auto", "as causeway-worker's");
ABSL_FLAG(std::string, compute_dtype, "auto", "as causeway-worker's");
ABSL_FLAG(std::string, recompute, "auto", "as causeway-worker's");
ABSL_FLAG(std::string, attention, "auto", "as causeway-worker's");
ABSL_FLAG(
    std::string, placements, "auto",
    "where the optimizer's state lies, one after the other: K[:SHARE][:late] with K and SHARE as of offload_k and "
    "resident_share; late: gradients and copies of parameters cross in the update, as in ZeRO-Offload");
ABSL_FLAG(int64_t, subgroup, 100'000'000, "as offload.subgroup of a run");
ABSL_FLAG(std::string, cuda_libs, "", "as causeway-worker's");
ABSL_FLAG(int64_t, hidden, 128, "hidden size");
ABSL_FLAG(int64_t, intermediate, 344, "of SwiGLU");
ABSL_FLAG(int64_t, layers, 4, "layers");
ABSL_FLAG(int64_t, heads, 4, "heads");
ABSL_FLAG(int64_t, kv_heads, 4, "heads of keys and values");
ABSL_FLAG(int64_t, vocab, 256, "vocabulary");
ABSL_FLAG(int64_t, sequence, 64, "tokens of a row");
ABSL_FLAG(int64_t, rows, 8, "of a step");
ABSL_FLAG(int64_t, micro_batches, 1, "of a step");
ABSL_FLAG(int, warm_up, 3, "steps that are not timed");
ABSL_FLAG(int, steps, 20, "steps that are");
ABSL_FLAG(bool, profile, false, "print what the kernels of one more step of the last placement take, a line each");

namespace causeway::bench {
namespace {

constexpr char kFake[] = "fake";

struct Placement {
  std::string name, k, share;
  bool late = false;
};

absl::StatusOr<Placement> ReadPlacement(const std::string& text) {
  std::vector<std::string> parts = absl::StrSplit(text, ':');
  Placement placement{.name = text, .k = parts.front()};
  parts.erase(parts.begin());
  if (!parts.empty() && parts.back() == "late") {
    placement.late = true;
    parts.pop_back();
  }
  if (!parts.empty()) placement.share = parts.front();
  if (!placement.k.empty() && parts.size() <= 1) return placement;
  return absl::InvalidArgumentError(absl::StrCat("--placements: expected K[:SHARE][:late], got '", text, "'"));
}

core::RunConfig Config() {
  core::RunConfig config;
  config.llama = {.hidden_size = absl::GetFlag(FLAGS_hidden),
                  .intermediate_size = absl::GetFlag(FLAGS_intermediate),
                  .num_hidden_layers = absl::GetFlag(FLAGS_layers),
                  .num_attention_heads = absl::GetFlag(FLAGS_heads),
                  .num_key_value_heads = absl::GetFlag(FLAGS_kv_heads),
                  .vocab_size = absl::GetFlag(FLAGS_vocab),
                  .max_position_embeddings = absl::GetFlag(FLAGS_sequence)};
  config.inner.batch_size = absl::GetFlag(FLAGS_rows);
  config.inner.micro_batches = absl::GetFlag(FLAGS_micro_batches);
  config.offload.subgroup = absl::GetFlag(FLAGS_subgroup);
  config.data.mode = core::DataMode::kOwn;
  return config;
}

worker::DeviceChoice ChoiceOf(const Placement& placement) {
  const std::string type = absl::GetFlag(FLAGS_compute_dtype);
  const bool profiles_gpu = absl::GetFlag(FLAGS_profile) && absl::GetFlag(FLAGS_device) != kFake;
  return {.device = absl::GetFlag(FLAGS_device),
          .compute_dtype = profiles_gpu && type == "auto" ? "bfloat16" : type,
          .recompute = absl::GetFlag(FLAGS_recompute),
          .attention = absl::GetFlag(FLAGS_attention),
          .offload_k = placement.k,
          .resident_share = placement.share,
          .cuda_libs = absl::GetFlag(FLAGS_cuda_libs),
          .overlaps = !placement.late};
}

// The device that --profile looks at.
absl::StatusOr<std::unique_ptr<worker::ComputeBackend>> OpenBackend() {
  const std::string device = absl::GetFlag(FLAGS_device);
  if (device == kFake) return std::make_unique<worker::FakeBackend>();
#ifdef CAUSEWAY_WITH_CUDA
  if (const std::optional<int> index = worker::GpuIndex(device, worker::VisibleGpus(), 0)) {
    worker::CudaLibraries libraries{.directory = absl::GetFlag(FLAGS_cuda_libs)};
    for (const worker::AttentionKind kind : worker::kAllAttentionKinds) {
      if (absl::GetFlag(FLAGS_attention) == worker::AttentionKindName(kind)) libraries.attention = kind;
    }
    return worker::MakeCudaBackend(*index, libraries);
  }
#endif
  return absl::InvalidArgumentError(absl::StrCat("--profile: expected a device, got --device=", device));
}

double MedianOf(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// Waits for all that is queued, too.
absl::StatusOr<uint64_t> DigestOf(worker::Trainer& trainer) {
  core::ThreadTeam team(core::UsableCores());
  std::atomic<uint64_t> digest = 0;
  std::vector<float> values;
  for (int i = 0; i < std::ssize(trainer.manifest()); ++i) {
    const core::TensorSpec& spec = trainer.manifest()[static_cast<size_t>(i)];
    const int64_t units = (spec.NumValues() + core::kUnitValues - 1) / core::kUnitValues;
    values.resize(static_cast<size_t>(units * core::kUnitValues));
    RETURN_IF_ERROR(trainer.store().AwaitRead(trainer.store().BeginRead({{i, 0, units}}, values)));
    const uint64_t seed = core::ThetaSeed(spec.name);
    core::OnAllThreads(team, spec.NumValues(), [&](int64_t first, int64_t count) {
      digest += core::ThetaDigest(seed, first, {values.data() + first, static_cast<size_t>(count)});
    });
  }
  return digest.load();
}

absl::Status Measure(const Placement& placement, const core::RunConfig& config, double start_s,
                     worker::Trainer& trainer) {
  std::vector<double> steps, updates;
  double loss = 0;
  const int warm_up = absl::GetFlag(FLAGS_warm_up);
  for (int t = 1; t <= warm_up + absl::GetFlag(FLAGS_steps); ++t) {
    const core::Clock::TimePoint begin = core::SystemClock().Now();
    ASSIGN_OR_RETURN(const worker::StepResult result, trainer.Step(t));
    loss = result.loss;
    if (t <= warm_up) continue;
    steps.push_back(core::SystemClock().SecondsSince(begin));
    const double last_s = trainer.last_update_s();
    if (t > warm_up + 1 && last_s > 0) updates.push_back(last_s);  // an update is known when the next begins
  }
  ASSIGN_OR_RETURN(const uint64_t theta, DigestOf(trainer));
  const core::OffloadProgress offload = trainer.offload_progress().value_or(core::OffloadProgress());
  if (trainer.last_update_s() > 0) updates.push_back(trainer.last_update_s());
  const double median = MedianOf(steps);
  const auto tokens = static_cast<double>(config.inner.batch_size * config.sequence_length());
  const auto parameters = static_cast<double>(core::NumParameters(trainer.manifest()));
  const auto listed = [](const std::vector<double>& seconds) {
    return absl::StrJoin(seconds, ", ",
                         [](std::string* text, double s) { absl::StrAppendFormat(text, "%.3f", 1e3 * s); });
  };
  std::printf(
      "{\"placement\": \"%s\", \"parameters\": %.0f, \"step_ms\": %.3f, \"tokens_per_s\": %.0f, \"loss\": %.4f, "
      "\"k\": \"%s\", \"resident\": %ld, \"update_ms\": %.3f, \"predicted_update_ms\": %.3f, \"to_device_mb\": %.1f, "
      "\"to_host_mb\": %.1f, \"early_gradient_mb\": %.1f, \"steps_ms\": [%s], \"updates_ms\": [%s], \"start_s\": %.1f, "
      "\"theta\": \"%016lx\"}\n",
      placement.name.c_str(), parameters, 1e3 * median, tokens / median, loss, core::InterleaveName(offload.k).c_str(),
      static_cast<long>(offload.resident), 1e3 * MedianOf(updates), 1e3 * offload.predicted_s,
      1e-6 * static_cast<double>(offload.to_device_bytes), 1e-6 * static_cast<double>(offload.to_host_bytes),
      1e-6 * static_cast<double>(offload.early_gradient_bytes), listed(steps).c_str(), listed(updates).c_str(), start_s,
      static_cast<unsigned long>(theta));
  std::fflush(stdout);
  return absl::OkStatus();
}

// Takes step t.
absl::Status Profile(int64_t t, ProfiledBackend& backend, worker::Trainer& trainer) {
  backend.Begin();
  const core::Clock::TimePoint begin = core::SystemClock().Now();
  RETURN_IF_ERROR(trainer.Step(t).status());
  const double step_s = core::SystemClock().SecondsSince(begin);
  for (const ProfiledBackend::Row& row : backend.Rows()) {
    std::printf("{\"kernel\": \"%s\", \"calls\": %ld, \"ms\": %.3f, \"of_step\": %.4f}\n", row.name.c_str(),
                static_cast<long>(row.calls), 1e3 * row.seconds, row.seconds / step_s);
  }
  return backend.device().status();
}

absl::Status Run() {
  std::vector<Placement> placements;
  for (const absl::string_view text : absl::StrSplit(absl::GetFlag(FLAGS_placements), ',')) {
    ASSIGN_OR_RETURN(placements.emplace_back(), ReadPlacement(std::string(text)));
  }
  if (absl::GetFlag(FLAGS_steps) < 1 || absl::GetFlag(FLAGS_warm_up) < 0) {
    return absl::InvalidArgumentError(absl::StrCat("--steps, --warm_up: expected 1 or more and 0 or more, got ",
                                                   absl::GetFlag(FLAGS_steps), " and ", absl::GetFlag(FLAGS_warm_up)));
  }
  const core::RunConfig config = Config();
  const worker::TrainerFiles files{.data_path = absl::GetFlag(FLAGS_data)};
  std::unique_ptr<worker::Trainer> trainer;
  ProfiledBackend* profiled = nullptr;
  worker::AddDevice(kFake, std::make_unique<worker::FakeBackend>);
  if (absl::GetFlag(FLAGS_profile)) {
    ASSIGN_OR_RETURN(std::unique_ptr<worker::ComputeBackend> backend, OpenBackend());
    auto made =
        std::make_shared<std::unique_ptr<ProfiledBackend>>(std::make_unique<ProfiledBackend>(std::move(backend)));
    worker::AddDevice(absl::GetFlag(FLAGS_device), [made, &profiled] {
      profiled = made->get();
      return std::move(*made);
    });
    if (placements.size() > 1) return absl::InvalidArgumentError("--profile: expected one placement, got several");
  }
  for (const Placement& placement : placements) {
    const core::Clock::TimePoint begin = core::SystemClock().Now();
    trainer.reset();  // its memory
    ASSIGN_OR_RETURN(trainer, worker::MakeSiteTrainer(ChoiceOf(placement), config, "site", files));
    RETURN_IF_ERROR(Measure(placement, config, core::SystemClock().SecondsSince(begin), *trainer));
  }
  if (!absl::GetFlag(FLAGS_profile)) return absl::OkStatus();
  return Profile(absl::GetFlag(FLAGS_warm_up) + absl::GetFlag(FLAGS_steps) + 1, *profiled, *trainer);
}

}  // namespace
}  // namespace causeway::bench

int main(int argc, char** argv) {
  causeway::worker::StartAgainWithBestBlasKernels(argv);  // as causeway-worker does, for its speed
  absl::ParseCommandLine(argc, argv);
  const absl::Status status = causeway::bench::Run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "train_run: %s\n", std::string(status.message()).c_str());
  return 2;
}
