// offload: one row of what the optimizer's update takes.
//
//   --row=bandwidth, tiny, threads    the CPU's AdamW alone
//   --row=bus, update                 on a GPU
//
// A row that cannot be measured here says why: {"skipped": "…"}.
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/host_limits.h"
#include "core/thread_team.h"
#include "tests/bench/bench_run/offload_rows.h"
#ifdef CAUSEWAY_WITH_CUDA
#include "offload/cuda/cuda_device.h"
#endif

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
    const GpuOptions options = {.parameters = Given<int64_t>("parameters"),
                                .subgroup = Given<int64_t>("subgroup"),
                                .k = Given<int64_t>("k"),
                                .threads = threads,
                                .steps = Given<int>("steps"),
                                .backward_s = Given<double>("backward_s"),
                                .flush_during_backward = Given<bool>("flush_during_backward")};
    RETURN_IF_ERROR(ExpectMemory(options.parameters));
    ASSIGN_OR_RETURN(json, MeasureUpdate(*device, options));
  }
  json["device"] = device->name();
  return json;
}

absl::StatusOr<Json> Measure(const std::string& row) {
  const int threads = Given<int>("threads") > 0 ? Given<int>("threads") : core::UsableCores();
  const CpuOptions options = {.values = Given<int64_t>("values"),
                              .threads = threads,
                              .pairs = Given<int>("pairs"),
                              .bfloat16_gradients = Given<bool>("bfloat16_gradients")};
  if (row == "bandwidth") return MeasureBandwidth(options);
  if (row == "tiny") return MeasureTiny(options);
  if (row == "threads") return MeasureThreads(options);
  if (row == "bus" || row == "update") return MeasureOnDevice(row, threads);
  return absl::InvalidArgumentError("--row is bandwidth, tiny, threads, bus or update");
}

}  // namespace

absl::Status Offload() {
  const absl::StatusOr<Json> row = Measure(Given<std::string>("row"));
  if (row.ok()) {
    Print(*row);
    return absl::OkStatus();
  }
  const bool lacking =
      absl::IsUnavailable(row.status()) || absl::IsResourceExhausted(row.status()) || absl::IsNotFound(row.status());
  if (!lacking) return row.status();
  Print({{"skipped", std::string(row.status().message())}});
  return absl::OkStatus();
}

}  // namespace causeway::bench
