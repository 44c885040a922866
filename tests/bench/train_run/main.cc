// Steps of the built-in trainer of a Llama, alone and on a device: prints a line of JSON with the median step.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/model_manifest.h"
#include "worker/loop/site_trainer.h"
#include "worker/train/blas_kernels.h"

ABSL_FLAG(std::string, data, "", "text file (vocabulary 256) or .bin of tokens");
ABSL_FLAG(std::string, device, "auto", "as causeway-worker's");
ABSL_FLAG(std::string, compute_dtype, "auto", "as causeway-worker's");
ABSL_FLAG(std::string, recompute, "auto", "as causeway-worker's");
ABSL_FLAG(std::string, attention, "auto", "as causeway-worker's");
ABSL_FLAG(std::string, offload_k, "", "as causeway-worker's");
ABSL_FLAG(std::string, resident_share, "", "as causeway-worker's");
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
ABSL_FLAG(int, steps, 20, "that are timed, after 3 that are not");

namespace causeway {
namespace {

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "train_run: %s\n", std::string(status.message()).c_str());
  return 2;
}

int Run() {
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
  const worker::DeviceChoice choice{.device = absl::GetFlag(FLAGS_device),
                                    .compute_dtype = absl::GetFlag(FLAGS_compute_dtype),
                                    .recompute = absl::GetFlag(FLAGS_recompute),
                                    .attention = absl::GetFlag(FLAGS_attention),
                                    .offload_k = absl::GetFlag(FLAGS_offload_k),
                                    .resident_share = absl::GetFlag(FLAGS_resident_share),
                                    .cuda_libs = absl::GetFlag(FLAGS_cuda_libs)};
  const auto trainer = worker::MakeSiteTrainer(choice, config, "site", {.data_path = absl::GetFlag(FLAGS_data)});
  if (!trainer.ok()) return Fail(trainer.status());
  std::vector<double> seconds;
  double loss = 0;
  constexpr int kFirst = 3;
  for (int t = 1; t <= kFirst + absl::GetFlag(FLAGS_steps); ++t) {
    const core::Clock::TimePoint begin = core::SystemClock().Now();
    const auto result = (*trainer)->Step(t);
    if (!result.ok()) return Fail(result.status());
    if (t > kFirst) seconds.push_back(core::SystemClock().SecondsSince(begin));
    loss = result->loss;
  }
  std::ranges::sort(seconds);
  const double median = seconds[seconds.size() / 2];
  const auto tokens = static_cast<double>(config.inner.batch_size * config.sequence_length());
  const core::OffloadProgress offload = (*trainer)->offload_progress().value_or(core::OffloadProgress());
  std::printf(
      "{\"parameters\": %ld, \"step_ms\": %.3f, \"tokens_per_s\": %.0f, \"loss\": %.4f, \"k\": \"%s\", "
      "\"resident\": %ld, \"update_ms\": %.3f, \"predicted_update_ms\": %.3f, \"to_device_mb\": %.1f, "
      "\"to_host_mb\": %.1f}\n",
      static_cast<long>(core::NumParameters((*trainer)->manifest())), 1e3 * median, tokens / median, loss,
      core::InterleaveName(offload.k).c_str(), static_cast<long>(offload.resident), 1e3 * offload.measured_s,
      1e3 * offload.predicted_s, 1e-6 * static_cast<double>(offload.to_device_bytes),
      1e-6 * static_cast<double>(offload.to_host_bytes));
  return 0;
}

}  // namespace
}  // namespace causeway

int main(int argc, char** argv) {
  causeway::worker::StartAgainWithBestBlasKernels(argv);  // as causeway-worker does, for its speed
  absl::ParseCommandLine(argc, argv);
  return causeway::Run();
}
