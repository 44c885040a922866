// Steps of the built-in trainer of a Llama, alone and on a device: prints a line of JSON with the median step, one for
// each place of the optimizer's state. The first steps of each are not timed. Every place gives the same digest of θ.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/digest.h"
#include "core/host_limits.h"
#include "core/layout.h"
#include "core/thread_team.h"
#include "tests/bench/bench_run/bench_run.h"
#include "tests/worker/device/fake_backend.h"
#include "worker/device/compute_backend.h"
#include "worker/device/cuda/cuda_backend.h"
#include "worker/loop/site_trainer.h"

#ifdef CAUSEWAY_WITH_CUDA
#endif

namespace causeway::bench {

// A ComputeBackend that times what it queues: an event before and after each kernel, product and attention, of the
// steps between Begin and Rows.
//
// The events cost a little themselves, and a kernel's time has its wait for the queue's hardware in it. One owner
// thread.

class ProfiledBackend final : public worker::ComputeBackend {
 public:
  struct Row {
    std::string name;
    int64_t calls = 0;
    double seconds = 0;
  };

  explicit ProfiledBackend(std::unique_ptr<worker::ComputeBackend> backend) : backend_(std::move(backend)) {}

  void Begin() { profiling_ = true; }
  // Waits for everything; the longest first.
  std::vector<Row> Rows();

  offload::Device& device() override { return backend_->device(); }
  bool timed() const override { return backend_->timed(); }
  bool Encodes(core::CodecId codec) const override { return backend_->Encodes(codec); }
  void Encode(offload::Queue queue, core::CodecId codec, const codecs::EncodeJob& job,
              unsigned long long* bad_block) override {
    backend_->Encode(queue, codec, job, bad_block);
  }
  void Gemm(offload::Queue queue, const worker::GemmJob& job) override;
  void Launch(offload::Queue queue, const worker::Kernel& kernel) override;
  absl::StatusOr<std::unique_ptr<worker::DeviceAttention>> MakeAttention(const worker::AttentionShape& shape,
                                                                         worker::ValueType type) override;

  // Times what `work` queues.
  template <typename Work>
  void Timed(offload::Queue queue, const std::string& name, const Work& work) {
    if (!profiling_) return work();
    Call call{name, device().MakeTimedEvent(), device().MakeTimedEvent()};
    device().Record(call.begin, queue);
    work();
    device().Record(call.end, queue);
    calls_.push_back(std::move(call));
  }

 private:
  struct Call {
    std::string name;
    offload::Device::Event begin = 0, end = 0;
  };

  const std::unique_ptr<worker::ComputeBackend> backend_;
  bool profiling_ = false;
  std::vector<Call> calls_;
};

namespace {

using offload::Queue;

// As in the source, "RmsNormKernel<float>", from what the compiler says of a function.
template <typename T>
std::string NameOf(const T&) {
  const std::string text = __PRETTY_FUNCTION__;
  const size_t begin = text.find("T = ") + 4;
  std::string name = text.substr(begin, text.find_first_of(";]", begin) - begin);
  for (const char* space : {"causeway::", "worker::"}) {
    for (size_t at; (at = name.find(space)) != std::string::npos;) name.erase(at, std::string(space).size());
  }
  return name;
}

class ProfiledAttention final : public worker::DeviceAttention {
 public:
  ProfiledAttention(std::unique_ptr<worker::DeviceAttention> attention, ProfiledBackend* backend)
      : attention_(std::move(attention)), backend_(backend) {}

  worker::AttentionKind kind() const override { return attention_->kind(); }
  int64_t statistics() const override { return attention_->statistics(); }
  int64_t buffer_bytes() const override { return attention_->buffer_bytes(); }
  void SetBuffer(void* memory) override { attention_->SetBuffer(memory); }
  void Forward(const void* qkv, void* out, float* statistics) override {
    backend_->Timed(Queue::kCompute, "attention", [&] { attention_->Forward(qkv, out, statistics); });
  }
  void Backward(const void* qkv, const void* out, const float* statistics, const void* dout, void* dqkv) override {
    backend_->Timed(Queue::kCompute, "attention backward",
                    [&] { attention_->Backward(qkv, out, statistics, dout, dqkv); });
  }

 private:
  const std::unique_ptr<worker::DeviceAttention> attention_;
  ProfiledBackend* const backend_;
};

}  // namespace

void ProfiledBackend::Gemm(Queue queue, const worker::GemmJob& job) {
  const std::string name =
      absl::StrCat("product ", job.m, " × ", job.k, job.a.transposed ? "ᵀ" : "", " by ", job.k, " × ", job.n,
                   job.b.transposed ? "ᵀ" : "", job.c.type == worker::ValueType::kFloat32 ? " in float32" : "");
  Timed(queue, name, [&] { backend_->Gemm(queue, job); });
}

void ProfiledBackend::Launch(Queue queue, const worker::Kernel& kernel) {
  const std::string name = std::visit([](const auto& arguments) { return NameOf(arguments); }, kernel);
  Timed(queue, name, [&] { backend_->Launch(queue, kernel); });
}

absl::StatusOr<std::unique_ptr<worker::DeviceAttention>> ProfiledBackend::MakeAttention(
    const worker::AttentionShape& shape, worker::ValueType type) {
  ASSIGN_OR_RETURN(std::unique_ptr<worker::DeviceAttention> attention, backend_->MakeAttention(shape, type));
  return std::make_unique<ProfiledAttention>(std::move(attention), this);
}

std::vector<ProfiledBackend::Row> ProfiledBackend::Rows() {
  std::map<std::string, Row> by_name;
  for (const Call& call : calls_) {
    device().AwaitOnHost(call.begin);
    device().AwaitOnHost(call.end);
    Row& row = by_name[call.name];
    row.name = call.name;
    ++row.calls;
    row.seconds += device().SecondsBetween(call.begin, call.end);
  }
  calls_.clear();
  profiling_ = false;
  std::vector<Row> rows;
  for (auto& [name, row] : by_name) rows.push_back(std::move(row));
  std::ranges::stable_sort(rows, std::greater<>(), &Row::seconds);
  return rows;
}

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
  config.llama = {.hidden_size = Given<int64_t>("hidden"),
                  .intermediate_size = Given<int64_t>("intermediate"),
                  .num_hidden_layers = Given<int64_t>("layers"),
                  .num_attention_heads = Given<int64_t>("heads"),
                  .num_key_value_heads = Given<int64_t>("kv_heads"),
                  .vocab_size = Given<int64_t>("vocab"),
                  .max_position_embeddings = Given<int64_t>("sequence")};
  config.inner.batch_size = Given<int64_t>("rows");
  config.inner.micro_batches = Given<int64_t>("micro_batches");
  config.offload.subgroup = Given<int64_t>("subgroup");
  config.data.mode = core::DataMode::kOwn;
  return config;
}

worker::DeviceChoice ChoiceOf(const Placement& placement) {
  const std::string type = Given<std::string>("compute_dtype");
  const bool profiles_gpu = Given<bool>("profile") && Given<std::string>("device") != kFake;
  return {.device = Given<std::string>("device"),
          .compute_dtype = profiles_gpu && type == "auto" ? "bfloat16" : type,
          .recompute = Given<std::string>("recompute"),
          .attention = Given<std::string>("attention"),
          .offload_k = placement.k,
          .resident_share = placement.share,
          .cuda_libs = Given<std::string>("cuda_libs"),
          .overlaps = !placement.late};
}

// The device that --profile looks at.
absl::StatusOr<std::unique_ptr<worker::ComputeBackend>> OpenBackend() {
  const std::string device = Given<std::string>("device");
  if (device == kFake) return std::make_unique<worker::FakeBackend>();
#ifdef CAUSEWAY_WITH_CUDA
  if (const std::optional<int> index = worker::GpuIndex(device, worker::VisibleGpus(), 0)) {
    worker::CudaLibraries libraries{.directory = Given<std::string>("cuda_libs")};
    for (const worker::AttentionKind kind : worker::kAllAttentionKinds) {
      if (Given<std::string>("attention") == worker::AttentionKindName(kind)) libraries.attention = kind;
    }
    return worker::MakeCudaBackend(*index, libraries);
  }
#endif
  return absl::InvalidArgumentError(absl::StrCat("--profile: expected a device, got --device=", device));
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
  const int warm_up = Given<int>("warm_up");
  for (int t = 1; t <= warm_up + Given<int>("steps"); ++t) {
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
  const double median = Median(steps);
  const auto tokens = static_cast<double>(config.inner.batch_size * config.sequence_length());
  const auto listed = [](std::vector<double> seconds) {
    for (double& s : seconds) s *= 1e3;
    return seconds;
  };
  Print({{"placement", placement.name},
         {"parameters", core::NumParameters(trainer.manifest())},
         {"step_ms", 1e3 * median},
         {"tokens_per_s", tokens / median},
         {"loss", loss},
         {"k", core::InterleaveName(offload.k)},
         {"resident", offload.resident},
         {"update_ms", 1e3 * Median(updates)},
         {"predicted_update_ms", 1e3 * offload.predicted_s},
         {"to_device_mb", 1e-6 * static_cast<double>(offload.to_device_bytes)},
         {"to_host_mb", 1e-6 * static_cast<double>(offload.to_host_bytes)},
         {"early_gradient_mb", 1e-6 * static_cast<double>(offload.early_gradient_bytes)},
         {"steps_ms", listed(steps)},
         {"updates_ms", listed(updates)},
         {"start_s", start_s},
         {"theta", absl::StrFormat("%016x", theta)}});
  return absl::OkStatus();
}

// Takes step t.
absl::Status Profile(int64_t t, ProfiledBackend& backend, worker::Trainer& trainer) {
  backend.Begin();
  const core::Clock::TimePoint begin = core::SystemClock().Now();
  RETURN_IF_ERROR(trainer.Step(t).status());
  const double step_s = core::SystemClock().SecondsSince(begin);
  for (const ProfiledBackend::Row& row : backend.Rows()) {
    Print({{"kernel", row.name}, {"calls", row.calls}, {"ms", 1e3 * row.seconds}, {"of_step", row.seconds / step_s}});
  }
  return backend.device().status();
}

absl::Status Run() {
  std::vector<Placement> placements;
  for (const absl::string_view text : absl::StrSplit(Given<std::string>("placements"), ',')) {
    ASSIGN_OR_RETURN(placements.emplace_back(), ReadPlacement(std::string(text)));
  }
  if (Given<int>("steps") < 1 || Given<int>("warm_up") < 0) {
    return absl::InvalidArgumentError(absl::StrCat("--steps, --warm_up: expected 1 or more and 0 or more, got ",
                                                   Given<int>("steps"), " and ", Given<int>("warm_up")));
  }
  const core::RunConfig config = Config();
  const worker::TrainerFiles files{.data_path = Given<std::string>("data")};
  std::unique_ptr<worker::Trainer> trainer;
  ProfiledBackend* profiled = nullptr;
  worker::AddDevice(kFake, std::make_unique<worker::FakeBackend>);
  if (Given<bool>("profile")) {
    ASSIGN_OR_RETURN(std::unique_ptr<worker::ComputeBackend> backend, OpenBackend());
    auto made =
        std::make_shared<std::unique_ptr<ProfiledBackend>>(std::make_unique<ProfiledBackend>(std::move(backend)));
    worker::AddDevice(Given<std::string>("device"), [made, &profiled] {
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
  if (!Given<bool>("profile")) return absl::OkStatus();
  return Profile(Given<int>("warm_up") + Given<int>("steps") + 1, *profiled, *trainer);
}

}  // namespace

absl::Status Train() { return Run(); }

}  // namespace causeway::bench
