// The memory passes of one outer round, and nothing else: what a round would take if bytes moved by themselves, nothing
// was hashed, checked or encoded, and no thread waited. Prints one line of JSON:
//
//   {"passes": {"copy": 0.031, …}, "seconds": 0.21, "bytes_per_parameter_and_site": 55.1}
//
// A pass reads, updates in place and writes as many arrays of float32 as the round's step does, and as many bytes of
// codes. Sites are walked by as many threads as there are cores, one site after the other; the coordinator's pass by
// all of them. Each pass is the median of --repeats.
#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "core/aligned.h"
#include "core/clock.h"
#include "core/multiversion.h"
#include "tests/bench/bench_run/bench_run.h"

namespace causeway {
namespace {

constexpr int64_t kTile = 16384;  // values; a pass goes from tile to tile as the product's do

struct Pass {
  std::string name;
  int reads = 0, updates = 0, writes = 0;    // arrays of float32
  double codes_read = 0, codes_written = 0;  // contributions or updates
  bool of_coordinator = false;

  double bytes(double bits) const {
    return 4.0 * (reads + 2 * updates + writes) + bits / 8 * (codes_read + codes_written);
  }
};

CAUSEWAY_MULTIVERSION
float Sum(const float* values, int64_t count) {
  float lanes[16] = {};
  for (int64_t i = 0; i + 16 <= count; i += 16) {
    for (int l = 0; l < 16; ++l) lanes[l] += values[i + l];
  }
  float sum = 0;
  for (float lane : lanes) sum += lane;
  return sum;
}

// All arrays of a tile at once, as a loop that reads a, b and c and writes d does.
template <int kReads, int kUpdates, int kWrites>
[[gnu::always_inline]] inline void Walk(const float* const* reads, float* const* updates, float* const* writes,
                                        int64_t at, int64_t count) {
  for (int64_t i = at; i < at + count; ++i) {
    float sum = 1;
    for (int r = 0; r < kReads; ++r) sum += reads[r][i];
    for (int u = 0; u < kUpdates; ++u) sum += updates[u][i];
    for (int u = 0; u < kUpdates; ++u) updates[u][i] = sum * 0.5f;
    for (int w = 0; w < kWrites; ++w) writes[w][i] = sum;
  }
}

using WalkFunction = void (*)(const float* const*, float* const*, float* const*, int64_t, int64_t);

#define CAUSEWAY_WALK(name, r, u, w)                                                                                  \
  CAUSEWAY_MULTIVERSION void name(const float* const* reads, float* const* updates, float* const* writes, int64_t at, \
                                  int64_t count) {                                                                    \
    Walk<r, u, w>(reads, updates, writes, at, count);                                                                 \
  }
CAUSEWAY_WALK(WalkCopy, 1, 0, 1)
CAUSEWAY_WALK(WalkEncode, 2, 0, 0)
CAUSEWAY_WALK(WalkEncodeFeedback, 3, 0, 1)
CAUSEWAY_WALK(WalkStep, 0, 2, 0)
CAUSEWAY_WALK(WalkStepOfSgd, 0, 1, 0)
CAUSEWAY_WALK(WalkMix, 1, 1, 0)
CAUSEWAY_WALK(WalkMergeFeedback, 0, 3, 0)
#undef CAUSEWAY_WALK

WalkFunction WalkOf(const Pass& pass) {
  if (pass.updates == 3) return WalkMergeFeedback;
  if (pass.updates == 2) return WalkStep;
  if (pass.updates == 1) return pass.reads == 1 ? WalkMix : WalkStepOfSgd;
  if (pass.reads == 3) return WalkEncodeFeedback;
  return pass.writes == 1 ? WalkCopy : WalkEncode;
}

std::vector<Pass> PassesOf(int sites, bool feedback, double alpha) {
  const Pass mix =
      alpha == 0 ? Pass{.name = "mix", .reads = 1, .writes = 1} : Pass{.name = "mix", .reads = 1, .updates = 1};
  return {{.name = "train", .updates = 1},
          {.name = "copy", .reads = 1, .writes = 1},
          {.name = "encode", .reads = feedback ? 3 : 2, .writes = feedback ? 1 : 0, .codes_written = 1},
          {.name = "merge",
           .updates = feedback ? 3 : 2,
           .codes_read = 1.0 * sites,
           .codes_written = 1,
           .of_coordinator = true},
          {.name = "outer_step", .updates = 2, .codes_read = 1},
          mix};
}

// One participant's arrays.
struct Arrays {
  std::vector<core::AlignedFloats> arrays;
  core::AlignedFloats codes_in, codes_out;
  std::vector<const float*> reads;
  std::vector<float*> all;

  Arrays(int64_t values, int64_t codes_read, int64_t codes_written) : codes_in(codes_read), codes_out(codes_written) {
    for (int i = 0; i < 4; ++i) {
      arrays.emplace_back(values);
      std::ranges::fill(arrays.back(), 0.5f);
    }
    for (auto& array : arrays) all.push_back(array.data());
    for (float* array : all) reads.push_back(array);
  }
};

float WalkPass(const Pass& pass, Arrays& arrays, double code_floats, int64_t begin, int64_t end) {
  const WalkFunction walk = WalkOf(pass);
  float* const* updates = arrays.all.data() + pass.reads;
  float* const* writes = updates + pass.updates;
  float sum = 0;
  for (int64_t at = begin; at < end; at += kTile) {
    const int64_t count = std::min(kTile, end - at);
    const auto code = [&](double legs) { return static_cast<int64_t>(static_cast<double>(at) * code_floats * legs); };
    const auto codes = [&](double legs) {
      return static_cast<int64_t>(static_cast<double>(count) * code_floats * legs);
    };
    sum += Sum(arrays.codes_in.data() + code(pass.codes_read), codes(pass.codes_read));
    walk(arrays.reads.data(), updates, writes, at, count);
    std::fill_n(arrays.codes_out.data() + code(pass.codes_written), codes(pass.codes_written), sum);
  }
  return sum;
}

absl::Status Run() {
  const int64_t values = bench::Given<int64_t>("values");
  const int sites = bench::Given<int>("sites");
  const double bits = bench::Given<double>("bits"), code_floats = bits / 32;
  const int threads = std::max(1u, std::thread::hardware_concurrency());
  const auto passes = PassesOf(sites, bench::Given<bool>("feedback"), bench::Given<double>("alpha"));
  const auto codes = static_cast<int64_t>(static_cast<double>(values) * code_floats) + kTile;
  std::vector<Arrays> arrays;
  for (int m = 0; m < sites; ++m) arrays.emplace_back(values, m == 0 ? codes * sites : codes, codes);
  bench::Json result;
  double total = 0, bytes = 0;
  std::vector<float> kept_of_thread(threads);
  for (const Pass& pass : passes) {
    std::vector<double> seconds;
    for (int repeat = 0; repeat <= bench::Given<int>("repeats"); ++repeat) {
      const auto begin = core::SystemClock().Now();
      std::vector<std::jthread> team;
      for (int t = 0; t < threads; ++t) {
        team.emplace_back([&, t] {
          float kept = 0;
          if (pass.of_coordinator) {
            kept += WalkPass(pass, arrays[0], code_floats, values * t / threads, values * (t + 1) / threads);
          }
          for (int m = t; m < sites && !pass.of_coordinator; m += threads) {
            kept += WalkPass(pass, arrays[m], code_floats, 0, values);
          }
          kept_of_thread[t] += kept;  // so that no walk is left out
        });
      }
      team.clear();
      if (repeat > 0) seconds.push_back(core::SystemClock().SecondsSince(begin));
    }
    const double median = bench::Median(seconds);
    result["passes"][pass.name] = median;
    total += median;
    bytes += pass.bytes(bits) / (pass.of_coordinator ? sites : 1);
  }
  result["seconds"] = total;
  result["bytes_per_parameter_and_site"] = bytes;
  bench::Print(result);
  return absl::OkStatus();
}

}  // namespace
}  // namespace causeway

namespace causeway::bench {
absl::Status RoundPasses() { return Run(); }
}  // namespace causeway::bench
