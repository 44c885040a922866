#include <cmath>
#include <functional>

#include "core/bfloat16.h"
#include "offload/adamw.h"
#include "offload/host_array.h"
#include "offload/round_copy.h"
#include "tests/bench/bench_run/offload_ceilings.h"
#include "tests/bench/bench_run/offload_rows.h"

namespace causeway::bench {
namespace {

using offload::AdamWArrays;
using offload::AdamWConstants;
using offload::GradientType;
using offload::HostArray;

enum class Scale { kOrdinary, kTiny };

// The state of a model, and its gradient.
class State {
 public:
  explicit State(const CpuOptions& options)
      : type_(options.bfloat16_gradients ? GradientType::kBfloat16 : GradientType::kFloat32),
        count_(options.values),
        gradient_(Bytes(offload::BytesOf(type_))),
        m_(Bytes(4)),
        v_(Bytes(4)),
        p_(Bytes(4)),
        copy_(Bytes(2)) {}

  // Tiny: a third each of 1e-38 and so, of denormals, and of gradients whose squares are denormal.
  void Fill(core::ThreadTeam& team, Scale scale) {
    constexpr float kTiny[] = {3e-38f, 1e-39f, 1e-20f};
    OnAllThreads(team, count_, [&](int64_t first, int64_t count) {
      for (int64_t i = first; i < first + count; ++i) {
        const float largest = scale == Scale::kTiny ? kTiny[i % 3] : 0.1f;
        const float g = Uniform(1, i, largest);
        if (type_ == GradientType::kFloat32) {
          gradient_.Values<float>()[i] = g;
        } else {
          gradient_.Values<uint16_t>()[i] = core::ToBfloat16(g);
        }
        m_.Values<float>()[i] = Uniform(2, i, scale == Scale::kTiny ? 3e-38f : 0.1f);
        v_.Values<float>()[i] = std::fabs(Uniform(3, i, scale == Scale::kTiny ? 1e-39f : 0.01f));
        p_.Values<float>()[i] = Uniform(4, i, 1.0f);
      }
    });
  }

  AdamWArrays Arrays(bool with_copy) const {
    return {.gradient = gradient_.data(),
            .gradient_type = type_,
            .first_moment = m_.Values<float>().data(),
            .second_moment = v_.Values<float>().data(),
            .parameters = p_.Values<float>().data(),
            .bfloat16_copy = with_copy ? copy_.Values<uint16_t>().data() : nullptr,
            .count = count_};
  }
  double BytesAValue(bool with_copy) const {
    return 24 + static_cast<double>(offload::BytesOf(type_)) + (with_copy ? 2 : 0);
  }

 private:
  size_t Bytes(int64_t of_value) const { return static_cast<size_t>(count_ * of_value); }

  const GradientType type_;
  const int64_t count_;
  HostArray gradient_, m_, v_, p_, copy_;
};

const AdamWConstants& Constants() {
  static const AdamWConstants constants = offload::MakeConstants({.weight_decay = 0.1, .gradient_scale = 0.999f}, 10);
  return constants;
}

double Seconds(const std::function<void()>& work) {
  const Clock::time_point begin = Clock::now();
  work();
  return SecondsSince(begin);
}

double TimeStep(core::ThreadTeam& team, const AdamWArrays& arrays) {
  return Seconds([&] {
    OnAllThreads(team, arrays.count,
                 [&](int64_t first, int64_t count) { offload::AdamWStep(Constants(), arrays.Part(first, count)); });
  });
}

// Columns of times, taken in turns: a ratio is made within a turn.
struct Turns {
  explicit Turns(int columns) : times(columns) {}

  void Add(int turn, const std::vector<double>& seconds) {
    if (turn == 0) return;  // it touches fresh memory
    for (size_t i = 0; i < seconds.size(); ++i) times[i].push_back(seconds[i]);
  }
  double MedianRatio(int a, int b) const {
    std::vector<double> ratios;
    for (size_t i = 0; i < times[a].size(); ++i) ratios.push_back(times[a][i] / times[b][i]);
    return Median(ratios);
  }

  std::vector<std::vector<double>> times;
};

Json RowOf(const CpuOptions& options) {
  return {{"threads", options.threads},
          {"values", options.values},
          {"gradients", options.bfloat16_gradients ? "bfloat16" : "float32"},
          {"pairs", options.pairs}};
}

}  // namespace

Json MeasureBandwidth(const CpuOptions& options) {
  core::ThreadTeam team(options.threads);
  State state(options);
  state.Fill(team, Scale::kOrdinary);
  const AdamWArrays plain = state.Arrays(false), with_copy = state.Arrays(true);
  const int64_t half = 2 * options.values;  // two arrays, as large as AdamW's four
  const HostArray a(static_cast<size_t>(half) * 4), b(static_cast<size_t>(half) * 4);
  enum { kAdd, kStreams, kPlain, kSamePass, kOwnPass, kColumns };
  Turns turns(kColumns);
  for (int turn = 0; turn <= options.pairs; ++turn) {
    std::vector<double> seconds(kColumns);
    seconds[kAdd] = Seconds([&] {
      OnAllThreads(team, half, [&](int64_t first, int64_t count) {
        AddInPlace(a.Values<float>().data() + first, b.Values<float>().data() + first, count);
      });
    });
    seconds[kPlain] = TimeStep(team, plain);
    // As many bytes as AdamW's, if its gradients are float32; otherwise it is no ceiling.
    seconds[kStreams] = options.bfloat16_gradients ? 1 : Seconds([&] {
      OnAllThreads(team, options.values, [&](int64_t first, int64_t count) { MoveStreams(plain.Part(first, count)); });
    });
    seconds[kSamePass] = TimeStep(team, with_copy);
    seconds[kOwnPass] = TimeStep(team, plain) + Seconds([&] {
                          OnAllThreads(team, options.values, [&](int64_t first, int64_t count) {
                            offload::RoundCopy(with_copy.parameters + first, with_copy.bfloat16_copy + first, count);
                          });
                        });
    turns.Add(turn, seconds);
  }
  const auto values = static_cast<double>(options.values);
  // The time of as many bytes at the ceiling's rate, ÷ the time that it took.
  const double add_bytes = 12 * 2 * values;
  Json row = RowOf(options);
  row["add_gb_per_s"] = 1e-9 * add_bytes / Median(turns.times[kAdd]);
  row["step_s"] = Median(turns.times[kPlain]);
  row["step_gb_per_s"] = 1e-9 * values * state.BytesAValue(false) / Median(turns.times[kPlain]);
  row["of_add"] = turns.MedianRatio(kAdd, kPlain) * values * state.BytesAValue(false) / add_bytes;
  row["with_copy_of_add"] = turns.MedianRatio(kAdd, kSamePass) * values * state.BytesAValue(true) / add_bytes;
  if (!options.bfloat16_gradients) {
    row["streams_gb_per_s"] = 1e-9 * 28 * values / Median(turns.times[kStreams]);
    row["of_streams"] = turns.MedianRatio(kStreams, kPlain);
  }
  row["same_pass_gain"] = turns.MedianRatio(kOwnPass, kSamePass);
  return row;
}

Json MeasureTiny(const CpuOptions& options) {
  core::ThreadTeam team(options.threads);
  State ordinary(options), tiny(options);
  ordinary.Fill(team, Scale::kOrdinary);
  // Columns: ordinary; the first step on tiny state; the next, on what that left, with the same tiny gradients.
  Turns turns(3);
  for (int turn = 0; turn <= options.pairs; ++turn) {
    tiny.Fill(team, Scale::kTiny);
    const double normal = TimeStep(team, ordinary.Arrays(true));
    const double first = TimeStep(team, tiny.Arrays(true));
    turns.Add(turn, {normal, first, TimeStep(team, tiny.Arrays(true))});
  }
  Json row = RowOf(options);
  row["ordinary_s"] = Median(turns.times[0]);
  row["tiny_first_step"] = turns.MedianRatio(0, 1);
  row["tiny"] = turns.MedianRatio(0, 2);
  return row;
}

Json MeasureThreads(const CpuOptions& options) {
  core::ThreadTeam one(1), all(options.threads);
  State state(options);
  state.Fill(all, Scale::kOrdinary);
  Turns turns(2);
  for (int turn = 0; turn <= options.pairs; ++turn) {
    const double alone = TimeStep(one, state.Arrays(true));
    turns.Add(turn, {alone, TimeStep(all, state.Arrays(true))});
  }
  Json row = RowOf(options);
  row["one_s"] = Median(turns.times[0]);
  row["scaling"] = turns.MedianRatio(0, 1);
  return row;
}

}  // namespace causeway::bench
