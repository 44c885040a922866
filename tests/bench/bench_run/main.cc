// bench_run CASE [--setting=value …]: times one thing and prints its rows. tests/bench/run drives it.
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "ctl/program.h"
#include "tests/bench/bench_run/bench_run.h"
#include "worker/device/blas_kernels.h"

namespace causeway::bench {
namespace {

struct Case {
  const char* name;
  absl::Status (*run)();
  const char* settings;  // with their defaults, as JSON
};

#define CAUSEWAY_WIRE R"("coordinator": "127.0.0.1:7077", "sites": "a", "in_flight": 2, "channels": 0)"
constexpr Case kCases[] = {
    {"codec_error", CodecErrors, R"({"gradients": ""})"},
    {"codecs", Codecs, R"({"sizes": "", "threads": "", "codecs": "", "targets": ""})"},
    {"merge", MergeOfSites,
     R"({"codec": "int4", "sites": 4, "values": 16777216, "pairs": 15, "threads": 2, "radial": false, "feedback": 1.0})"},
    {"offload", Offload,
     R"({"row": "", "values": 100000000, "threads": 0, "pairs": 9, "bfloat16_gradients": false, "parameters": 1000000000,
         "subgroup": 100000000, "k": 1, "steps": 8, "backward_s": 0.5, "flush_during_backward": true})"},
    {"onebit", OnebitAdam,
     R"({"optimizer": "adamw", "data": "", "ranks": 4, "then_ranks": 0, "steps": 600, "freeze_at": -1, "warmup_codec": "float32", "clip": 1.0,
         "beta2": 0.99, "lr": 3e-3, "seed": 1, "say_every": 0})"},
    {"partitions", Partitions, R"({"data": "", "mbyte_per_s": 60.0, "steps": 3})"},
    {"pipelines", Pipelines, R"({"devices": 4, "micro_batches": 8, "forward_ms": 20.0, "steps": 3})"},
    {"quality", Quality,
     R"({"config": "", "data": "", "data_parallel": false, "eval_windows": 2048, "tail_rounds": 4, "record": "",
         "curve_rounds": 0, "codecs": false, "link_phase_rounds": 0, "record_rounds": 4})"},
    {"receiver", Receive, R"({"config": "", "listen": "127.0.0.1:0", "check": true})"},
    {"round", RoundPasses,
     R"({"values": 30799872, "sites": 4, "bits": 4.0625, "feedback": true, "alpha": 0.0, "repeats": 5})"},
    {"sites", PlaySites, "{" CAUSEWAY_WIRE R"(, "holder": "", "rounds": 1, "own_initial": true})"},
    {"train", Train,
     R"({"data": "", "device": "auto", "compute_dtype": "auto", "recompute": "auto", "attention": "auto",
         "placements": "auto", "subgroup": 100000000, "cuda_libs": "", "hidden": 128, "intermediate": 344, "layers": 4,
         "heads": 4, "kv_heads": 4, "vocab": 256, "sequence": 64, "rows": 8, "micro_batches": 1, "warm_up": 3,
         "steps": 20, "profile": false})"},
    {"uploads", Upload, "{" CAUSEWAY_WIRE "}"},
};
#undef CAUSEWAY_WIRE

Json settings;

// A text stays one; a number or a truth value must be of its default's type.
absl::Status Take(const std::string& name, const std::string& text) {
  Json& setting = settings.at(name);
  if (setting.is_string()) {
    setting = text;
    return absl::OkStatus();
  }
  const Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const bool fits = setting.is_boolean()          ? value.is_boolean()
                    : setting.is_number_integer() ? value.is_number_integer()
                                                  : value.is_number();
  if (!fits) {
    return absl::InvalidArgumentError(absl::StrCat("--", name, ": expected one like ", setting.dump(), ", got ", text));
  }
  setting = value;
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "";
  const auto found = std::ranges::find(kCases, name, &Case::name);
  if (found == std::end(kCases)) {
    const std::string names = absl::StrJoin(kCases, ", ", [](auto* out, const Case& of) { out->append(of.name); });
    return ctl::Fail(ctl::kBadInput, absl::InvalidArgumentError(absl::StrCat("expected a case of ", names)));
  }
  settings = Json::parse(found->settings);
  std::vector<char*> others = {argv[0]};  // flags of the log and of links
  absl::Status status;
  for (int i = 2; i < argc; ++i) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(argv[i], absl::MaxSplits('=', 1));
    const std::string setting(absl::StripPrefix(parts.first, "--"));
    if (!settings.contains(setting)) {
      others.push_back(argv[i]);
    } else if (status.ok()) {
      status = Take(setting, parts.second);
    }
  }
  const std::string usage = absl::StrCat("bench_run ", name, " [--setting=value …]\n", settings.dump(), "\n");
  if (name == "merge" || name == "receiver") ctl::SetUpHeap();
  const auto arguments = ctl::StartProgram(static_cast<int>(others.size()), others.data(), usage);
  if (status.ok()) status = ctl::FlagsAlone(arguments);
  if (status.ok()) status = found->run();
  if (status.ok()) return ctl::kDone;
  return ctl::Fail(absl::IsInvalidArgument(status) ? ctl::kBadInput : ctl::kFailed, status);
}

}  // namespace

const Json& Settings() { return settings; }

void Print(const Json& row) {
  std::printf("%s\n", row.dump().c_str());
  std::fflush(stdout);
}

}  // namespace causeway::bench

int main(int argc, char** argv) {
  causeway::worker::StartAgainWithBestBlasKernels(argv);  // as causeway-worker does, for its speed and bits
  return causeway::bench::Main(argc, argv);
}
