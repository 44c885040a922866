#include <functional>
#include <memory>

#include "core/bfloat16.h"
#include "core/check.h"
#include "core/digest.h"
#include "core/layout.h"
#include "offload/calibration.h"
#include "offload/host_array.h"
#include "offload/interleaved_update.h"
#include "tests/bench/bench_run/offload_rows.h"

namespace causeway::bench {
namespace {

using offload::AdamWArrays;
using offload::AdamWParameters;
using offload::Device;
using offload::HostArray;
using offload::InterleavedUpdate;
using offload::Queue;

constexpr int kPasses = 5;
constexpr int kBackwardRanges = 24;                // layers, so to speak
constexpr int64_t kBusyValues = int64_t{1} << 24;  // of the kernel that plays backward
constexpr AdamWParameters kAdamW = {.lr = 1e-4, .weight_decay = 0.1, .gradient_scale = 0.75f};

absl::StatusOr<HostArray> Pinned(Device& device, size_t bytes) {
  HostArray array(bytes);
  RETURN_IF_ERROR(device.Pin(array.data(), bytes));
  return array;
}

// All work queued on a queue so far.
class Fence {
 public:
  explicit Fence(Device& device) : device_(device), event_(device.MakeEvent()) {}
  void Await(Queue queue) {
    device_.Record(event_, queue);
    device_.AwaitOnHost(event_);
  }

 private:
  Device& device_;
  const Device::Event event_;
};

// A model of which the device holds gradients and bfloat16 parameters, and the host the state.
struct Model {
  Model(const GpuOptions& options, core::ThreadTeam& threads)
      : parameters(options.parameters),
        team(threads),
        p(Bytes(4)),
        m(Bytes(4)),
        v(Bytes(4)),
        gradient(Bytes(2)),
        copy(Bytes(2)) {}

  size_t Bytes(int64_t of_value) const { return static_cast<size_t>(parameters * of_value); }

  void Fill() {
    OnAllThreads(team, parameters, [&](int64_t first, int64_t count) {
      for (int64_t i = first; i < first + count; ++i) {
        gradient.Values<uint16_t>()[i] = core::ToBfloat16(Uniform(1, i, 0.1f));
        p.Values<float>()[i] = Uniform(2, i, 1.0f);
        m.Values<float>()[i] = v.Values<float>()[i] = 0;
      }
    });
  }

  AdamWArrays Arrays() const {
    return {.gradient = gradient.data(),
            .gradient_type = offload::GradientType::kBfloat16,
            .first_moment = m.Values<float>().data(),
            .second_moment = v.Values<float>().data(),
            .parameters = p.Values<float>().data(),
            .bfloat16_copy = copy.Values<uint16_t>().data(),
            .count = parameters};
  }

  void StepOnCpu(int64_t t) {
    const offload::AdamWConstants constants = offload::MakeConstants(kAdamW, t);
    OnAllThreads(team, parameters,
                 [&](int64_t first, int64_t count) { offload::AdamWStep(constants, Arrays().Part(first, count)); });
  }

  // p, m and v in whole units, then the rest of each, and the copy.
  std::vector<uint64_t> Digests() const {
    std::vector<uint64_t> digests;
    for (const HostArray* array : {&p, &m, &v}) digests.push_back(Digest(array->Values<float>()));
    digests.push_back(Digest(copy.Values<float>()));
    return digests;
  }

  const int64_t parameters;
  core::ThreadTeam& team;
  HostArray p, m, v, gradient, copy;

 private:
  static uint64_t Digest(std::span<const float> values) {
    const size_t whole = values.size() / core::kUnitValues * core::kUnitValues;
    std::vector<float> last(core::kUnitValues);
    std::ranges::copy(values.subspan(whole), last.begin());
    return core::DigestUnits(values.first(whole), 0) +
           core::DigestUnits(last, static_cast<int64_t>(whole / core::kUnitValues));
  }
};

// Keeps the device busy, and the bus free.
class Backward {
 public:
  explicit Backward(Device& device) : device_(device), fence_(device) {}
  ~Backward() {
    for (void* memory : memory_) device_.Free(memory);
  }

  absl::Status Prepare(double seconds) {
    const HostArray zeros(kBusyValues * sizeof(float));
    for (void*& memory : memory_) {
      ASSIGN_OR_RETURN(memory, device_.Allocate(zeros.bytes()));
      device_.CopyToDevice(Queue::kCompute, memory, zeros.data(), zeros.bytes());
    }
    QueueKernels(kPasses);
    fence_.Await(Queue::kCompute);
    const Clock::time_point begin = Clock::now();
    QueueKernels(kPasses);
    fence_.Await(Queue::kCompute);
    kernels_ = std::max(1, static_cast<int>(seconds / kBackwardRanges / (SecondsSince(begin) / kPasses)));
    return device_.status();
  }
  void QueueRange() { QueueKernels(kernels_); }
  void Await() { fence_.Await(Queue::kCompute); }

 private:
  void QueueKernels(int count) {
    const AdamWArrays arrays = {.gradient = memory_[0],
                                .first_moment = static_cast<float*>(memory_[1]),
                                .second_moment = static_cast<float*>(memory_[2]),
                                .parameters = static_cast<float*>(memory_[3]),
                                .count = kBusyValues};
    for (int i = 0; i < count; ++i) device_.AdamW(Queue::kCompute, offload::MakeConstants(kAdamW, 1), arrays);
  }

  Device& device_;
  Fence fence_;
  void* memory_[4] = {};
  int kernels_ = 1;
};

// Calls ready(first, count) for the ranges in backward's order, the last first.
void ForEachRange(int64_t parameters, const std::function<void(int64_t, int64_t)>& ready) {
  for (int64_t i = kBackwardRanges; i-- > 0;) {
    const int64_t first = parameters * i / kBackwardRanges, end = parameters * (i + 1) / kBackwardRanges;
    ready(first, end - first);
  }
}

// Seconds from the end of backward until forward may begin and the host has its state: of a step.
absl::StatusOr<double> TimeStep(const GpuOptions& options, int64_t t, Backward& backward, InterleavedUpdate& update) {
  const auto ready = [&](int64_t first, int64_t count) { update.GradientsReady(first, count); };
  ForEachRange(options.parameters, [&](int64_t first, int64_t count) {
    backward.QueueRange();
    if (options.flush_during_backward) ready(first, count);
  });
  backward.Await();
  const Clock::time_point begin = Clock::now();
  if (!options.flush_during_backward) ForEachRange(options.parameters, ready);
  RETURN_IF_ERROR(update.Step(kAdamW, t));
  RETURN_IF_ERROR(update.Finish());
  backward.Await();  // behind it waits forward, for the parameters
  return SecondsSince(begin);
}

absl::StatusOr<std::vector<double>> TimeSteps(Device& device, const GpuOptions& options,
                                              const offload::SubgroupPlan& plan, Model& model) {
  offload::PinnedPool pool(&device);
  for (const HostArray* array : {&model.p, &model.m, &model.v}) {
    RETURN_IF_ERROR(device.Pin(array->data(), array->bytes()));
  }
  Fence fence(device);
  ASSIGN_OR_RETURN(void* gradients, device.Allocate(model.gradient.bytes()));
  ASSIGN_OR_RETURN(void* parameters, device.Allocate(model.copy.bytes()));
  device.CopyToDevice(Queue::kCompute, gradients, model.gradient.data(), model.gradient.bytes());
  fence.Await(Queue::kCompute);
  Backward backward(device);
  RETURN_IF_ERROR(backward.Prepare(options.backward_s));
  std::vector<double> seconds;
  {
    ASSIGN_OR_RETURN(const std::unique_ptr<InterleavedUpdate> update,
                     InterleavedUpdate::OnDevice(
                         {model.p.Values<float>(), model.m.Values<float>(), model.v.Values<float>()},
                         {{model.parameters, true}}, plan, &model.team, nullptr, &device,
                         {gradients, offload::GradientType::kBfloat16, static_cast<uint16_t*>(parameters), &pool}));
    for (int64_t t = 1; t <= options.steps; ++t) {
      ASSIGN_OR_RETURN(const double step_s, TimeStep(options, t, backward, *update));
      seconds.push_back(step_s);
    }
  }
  device.CopyToHost(Queue::kCompute, model.copy.data(), parameters, model.copy.bytes());
  fence.Await(Queue::kCompute);
  device.Free(gradients);
  device.Free(parameters);
  for (const HostArray* array : {&model.p, &model.m, &model.v}) device.Unpin(array->data());
  if (!device.status().ok()) return device.status();
  return seconds;
}

}  // namespace

absl::StatusOr<Json> MeasureBus(Device& device, int64_t bytes) {
  ASSIGN_OR_RETURN(const HostArray out, Pinned(device, static_cast<size_t>(bytes)));
  ASSIGN_OR_RETURN(const HostArray in, Pinned(device, static_cast<size_t>(bytes)));
  ASSIGN_OR_RETURN(void* to, device.Allocate(out.bytes()));
  ASSIGN_OR_RETURN(void* from, device.Allocate(in.bytes()));
  Fence sent(device), received(device);
  const auto seconds = [&](bool sends, bool receives) {
    std::vector<double> passes;
    for (int pass = 0; pass <= kPasses; ++pass) {
      const Clock::time_point begin = Clock::now();
      if (sends) device.CopyToDevice(Queue::kPrefetch, to, out.data(), out.bytes());
      if (receives) device.CopyToHost(Queue::kFlush, in.data(), from, in.bytes());
      sent.Await(Queue::kPrefetch);
      received.Await(Queue::kFlush);
      if (pass > 0) passes.push_back(SecondsSince(begin));
    }
    return Median(passes);
  };
  const double to_device = seconds(true, false), to_host = seconds(false, true), both = seconds(true, true);
  for (void* memory : {to, from}) device.Free(memory);
  for (const HostArray* array : {&out, &in}) device.Unpin(array->data());
  if (!device.status().ok()) return device.status();
  const double gb = 1e-9 * static_cast<double>(bytes);
  // One after the other ÷ at once: 2 is full duplex.
  return Json{{"to_device_gb_per_s", gb / to_device},
              {"to_host_gb_per_s", gb / to_host},
              {"both_gb_per_s", 2 * gb / both},
              {"overlap", (to_device + to_host) / both}};
}

absl::StatusOr<Json> MeasureUpdate(Device& device, const GpuOptions& options) {
  core::ThreadTeam team(options.threads);
  ASSIGN_OR_RETURN(const offload::Bandwidths bandwidths, offload::MeasureBandwidths(options.parameters, team, &device));
  const core::OffloadConfig config = {.k = options.k, .subgroup = options.subgroup};
  const offload::SubgroupPlan plan = offload::PlanSubgroups(config, options.parameters, bandwidths);
  const offload::SubgroupPlan planned = offload::PlanSubgroups(
      {.k = core::kAutoInterleave, .subgroup = options.subgroup}, options.parameters, bandwidths);
  Model model(options, team);
  model.Fill();
  for (int64_t t = 1; t <= options.steps; ++t) model.StepOnCpu(t);
  const std::vector<uint64_t> on_cpu = model.Digests();
  model.Fill();
  ASSIGN_OR_RETURN(std::vector<double> seconds, TimeSteps(device, options, plan, model));
  const bool equal = model.Digests() == on_cpu;
  seconds.erase(seconds.begin());  // it touches fresh memory
  const double update_s = Median(seconds);
  const auto parameters = static_cast<double>(options.parameters);
  const double share = plan.DeviceShare();
  return Json{{"k", core::InterleaveName(options.k)},
              {"flush", options.flush_during_backward ? "during backward" : "in the update"},
              {"parameters", options.parameters},
              {"subgroup", options.subgroup},
              {"threads", options.threads},
              {"steps", options.steps},
              {"update_s", update_s},
              {"shortest_s", *std::ranges::min_element(seconds)},
              {"longest_s", *std::ranges::max_element(seconds)},
              {"to_device_gb_per_s", 1e-9 * parameters * (12 * share + 2 * (1 - share)) / update_s},
              {"to_host_gb_per_s", 1e-9 * parameters * 12 * share / update_s},
              {"predicted_s", plan.predicted_s},
              {"predicted_of_measured", plan.predicted_s / update_s},
              {"planned_k", core::InterleaveName(planned.k)},
              {"dram_gb_per_s", 1e-9 * bandwidths.dram},
              {"bus_to_device_gb_per_s", 1e-9 * bandwidths.to_device},
              {"bus_to_host_gb_per_s", 1e-9 * bandwidths.to_host},
              {"cpu_parameters_per_s", bandwidths.cpu_parameters},
              {"bits_equal_to_cpu", equal}};
}

}  // namespace causeway::bench
