// offload_run: one row of what the optimizer's update takes, as a line of JSON. tests/bench/offload drives it.
//
//   --row=bandwidth, tiny, threads    the CPU's AdamW alone
//   --row=bus, update                 on a GPU
//
// A row that cannot be measured here says why: {"skipped": "…"}.
#include <cstdio>
#include <memory>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/host_limits.h"
#include "core/thread_team.h"
#include "tests/bench/offload_run/rows.h"
#ifdef CAUSEWAY_WITH_CUDA
#include "offload/cuda/cuda_device.h"
#endif

ABSL_FLAG(std::string, row, "", "bandwidth, tiny, threads, bus or update");
ABSL_FLAG(int64_t, values, 100'000'000, "of the CPU rows");
ABSL_FLAG(int, threads, 0, "0: all cores");
ABSL_FLAG(int, pairs, 9, "turns of a CPU row");
ABSL_FLAG(bool, bfloat16_gradients, false, "of a CPU row; the GPU's are");
ABSL_FLAG(int64_t, parameters, 1'000'000'000, "of the GPU rows");
ABSL_FLAG(int64_t, subgroup, 100'000'000, "parameters");
ABSL_FLAG(int64_t, k, 1, "every k-th subgroup on the GPU; 0: none");
ABSL_FLAG(int, steps, 8, "of an update row; the first is not counted");
ABSL_FLAG(double, backward_s, 0.5, "of a simulated backward");
ABSL_FLAG(bool, flush_during_backward, true, "or else the gradients cross in the update");

namespace causeway::bench {
namespace {

absl::StatusOr<std::unique_ptr<offload::Device>> OpenDevice() {
#ifdef CAUSEWAY_WITH_CUDA
  return offload::MakeCudaDevice(0);
#else
  return absl::UnavailableError("this program was built without CUDA (the cuda preset has it)");
#endif
}

// The state, gradients and copies on the host, twice of each where reference and update hold one, and room.
absl::Status ExpectMemory(int64_t parameters) {
  const int64_t needed = 32 * parameters;
  const int64_t usable = core::UsableMemoryBytes();
  if (usable >= needed) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(parameters, " parameters take ", needed / 1'000'000'000,
                                                   " GB of host memory, ", usable / 1'000'000'000,
                                                   " are free; --parameters"));
}

absl::StatusOr<Json> MeasureOnDevice(const std::string& row, int threads) {
  ASSIGN_OR_RETURN(const std::unique_ptr<offload::Device> device, OpenDevice());
  Json json;
  if (row == "bus") {
    ASSIGN_OR_RETURN(json, MeasureBus(*device, int64_t{1} << 30));
  } else {
    const GpuOptions options = {.parameters = absl::GetFlag(FLAGS_parameters),
                                .subgroup = absl::GetFlag(FLAGS_subgroup),
                                .k = absl::GetFlag(FLAGS_k),
                                .threads = threads,
                                .steps = absl::GetFlag(FLAGS_steps),
                                .backward_s = absl::GetFlag(FLAGS_backward_s),
                                .flush_during_backward = absl::GetFlag(FLAGS_flush_during_backward)};
    RETURN_IF_ERROR(ExpectMemory(options.parameters));
    ASSIGN_OR_RETURN(json, MeasureUpdate(*device, options));
  }
  json["device"] = device->name();
  return json;
}

absl::StatusOr<Json> Measure(const std::string& row) {
  const int threads = absl::GetFlag(FLAGS_threads) > 0 ? absl::GetFlag(FLAGS_threads) : core::UsableCores();
  const CpuOptions options = {.values = absl::GetFlag(FLAGS_values),
                              .threads = threads,
                              .pairs = absl::GetFlag(FLAGS_pairs),
                              .bfloat16_gradients = absl::GetFlag(FLAGS_bfloat16_gradients)};
  if (row == "bandwidth") return MeasureBandwidth(options);
  if (row == "tiny") return MeasureTiny(options);
  if (row == "threads") return MeasureThreads(options);
  if (row == "bus" || row == "update") return MeasureOnDevice(row, threads);
  return absl::InvalidArgumentError("--row is bandwidth, tiny, threads, bus or update");
}

int Run() {
  const absl::StatusOr<Json> row = Measure(absl::GetFlag(FLAGS_row));
  if (row.ok()) {
    std::printf("%s\n", row->dump().c_str());
    return 0;
  }
  const bool lacking =
      absl::IsUnavailable(row.status()) || absl::IsResourceExhausted(row.status()) || absl::IsNotFound(row.status());
  if (lacking) {
    std::printf("%s\n", Json{{"skipped", std::string(row.status().message())}}.dump().c_str());
    return 0;
  }
  std::fprintf(stderr, "offload_run: %s\n", row.status().ToString().c_str());
  return absl::IsInvalidArgument(row.status()) ? 2 : 1;
}

}  // namespace
}  // namespace causeway::bench

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return causeway::bench::Run();
}
