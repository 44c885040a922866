#include "plan/pipeline_generators.h"

#include <algorithm>
#include <array>
#include <deque>
#include <initializer_list>
#include <map>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/check.h"

namespace causeway::plan {
namespace {

using Kind = OperationKind;
using List = std::vector<ScheduleStep>;

// One copy of the weights, stage s on the device that `device_of` says.
template <typename DeviceOf>
PipelineSchedule OneCopy(const GeneratorInput& input, int stages, const DeviceOf& device_of) {
  PipelineSchedule schedule{.devices = input.devices,
                            .micro_batches = input.micro_batches,
                            .stages = stages,
                            .place = {std::vector<int>(static_cast<size_t>(stages))},
                            .lists = std::vector<List>(static_cast<size_t>(input.devices))};
  for (int s = 0; s < stages; ++s) schedule.place[0][static_cast<size_t>(s)] = device_of(s);
  return schedule;
}

// The generators of schedules with two copies of the weights, one for each direction (plan/pipeline_generators.h, which
// checks the numbers). Stage s of copy 0 is on the device that `device_of` says, and of copy 1 on its mirror image.
template <typename DeviceOf>
PipelineSchedule TwoCopies(const GeneratorInput& input, int stages, const DeviceOf& device_of) {
  PipelineSchedule schedule = OneCopy(input, stages, device_of);
  schedule.copies = 2;
  schedule.place.emplace_back();
  for (const int device : schedule.place[0]) schedule.place[1].push_back(input.devices - 1 - device);
  return schedule;
}

// A of each stage: behind its last weight gradient, or at the end.
void AddReductions(List& list, bool late) {
  std::map<std::pair<int, int>, size_t> last;  // of (copy, stage): the step that ends its gradient
  for (size_t i = 0; i < list.size(); ++i) {
    for (const Operation* operation : {&list[i].first, list[i].second ? &*list[i].second : nullptr}) {
      if (operation == nullptr || (operation->kind != Kind::kBackward && operation->kind != Kind::kWeight)) continue;
      last[{operation->copy, operation->stage}] = i;
    }
  }
  List all;
  const auto reduce_after = [&](size_t step, bool any) {
    for (const auto& [place, at] : last) {
      if (any || at == step) all.push_back({{Kind::kReduce, place.first, place.second, 0}, {}});
    }
  };
  for (size_t i = 0; i < list.size(); ++i) {
    all.push_back(list[i]);
    if (!late) reduce_after(i, false);
  }
  if (late) reduce_after(0, true);
  list = std::move(all);
}

// List scheduling in slots, each as long as a forward and as a backward: a device runs what has been ready since the slot
// before, forwards first while it holds fewer than D micro-batches a chunk, the earlier micro-batch first. Played with
// backwards of twice a forward it takes 3 N + 2 (D − 2) forwards, and with equal ones 2 N + D − 2, as published. With two
// chunks it is BitPipe without the V, stage s on device s mod D: with N = D as long, where messages are free.
PipelineSchedule Chimera(const GeneratorInput& input, int chunks) {
  const int devices = input.devices, each = input.micro_batches / 2, stages = devices * chunks;
  PipelineSchedule schedule = TwoCopies(input, stages, [&](int s) { return s % devices; });
  using Done = std::vector<int>;  // micro-batches by stage
  std::array<Done, 2> forwards{Done(static_cast<size_t>(stages)), Done(static_cast<size_t>(stages))};
  std::array<Done, 2> backwards = forwards;
  for (bool any = true; any;) {
    any = false;
    const std::array<Done, 2> before_f = forwards, before_b = backwards;
    for (int d = 0; d < devices; ++d) {
      std::optional<Operation> forward, backward;
      int held = 0;
      for (int i = 0; i < 2 * chunks; ++i) {
        const int copy = i % 2;
        const auto s = static_cast<size_t>(i / 2 * devices + (copy == 0 ? d : devices - 1 - d));
        const int f = before_f[copy][s], b = before_b[copy][s];
        held += f - b;
        const int arrived = s == 0 ? each : before_f[copy][s - 1];
        const int returned = s + 1 == forwards[copy].size() ? f : std::min(f, before_b[copy][s + 1]);
        if (f < arrived && (!forward || f < forward->micro_batch)) {
          forward = Operation{Kind::kForward, copy, static_cast<int>(s), f};
        }
        if (b < returned && (!backward || b < backward->micro_batch)) {
          backward = Operation{Kind::kBackward, copy, static_cast<int>(s), b};
        }
      }
      const std::optional<Operation>& next = forward && held < stages ? forward : backward;
      if (!next) continue;
      schedule.lists[static_cast<size_t>(d)].push_back({*next, {}});
      ++(next->kind == Kind::kForward ? forwards : backwards)[next->copy][static_cast<size_t>(next->stage)];
      any = true;
    }
  }
  for (List& list : schedule.lists) AddReductions(list, input.late_sync);
  return schedule;
}

PipelineSchedule DualPipe(const GeneratorInput& input) {
  const int devices = input.devices, half = devices / 2, each = input.micro_batches / 2;
  PipelineSchedule schedule = TwoCopies(input, devices, [](int s) { return s; });
  for (int d = 0; d < devices; ++d) {
    List& list = schedule.lists[static_cast<size_t>(d)];
    const int h = std::min(d, devices - 1 - d);
    const bool upper = d >= half, middle = d == half - 1 || d == half;
    std::map<std::pair<Kind, int>, int> next;
    std::deque<Operation> queued;
    // The next operation of a phase; B and I are the same micro-batches.
    const auto take = [&](Kind kind, int phase) {
      const int copy = phase == 0 ? upper : !upper;
      const Kind counted = kind == Kind::kForward ? Kind::kForward : Kind::kBackward;
      return Operation{kind, copy, copy == 0 ? d : devices - 1 - d, next[{counted, phase}]++};
    };
    const auto run = [&](Kind kind, int phase) { list.push_back({take(kind, phase), {}}); };
    const auto pair = [&](int forward, int backward) {
      const Operation first = take(Kind::kForward, forward);
      list.push_back({first, take(Kind::kBackward, backward)});
    };
    const auto input_and_queue = [&](int phase) {
      run(Kind::kInput, phase);
      queued.push_back(list.back().first);
      queued.back().kind = Kind::kWeight;
    };
    const auto run_queued = [&] {
      list.push_back({queued.front(), {}});
      queued.pop_front();
    };
    for (int i = 0; i < 2 * (half - h - 1); ++i) run(Kind::kForward, 0);
    for (int i = 0; i < h + 1; ++i) {
      run(Kind::kForward, 0);
      run(Kind::kForward, 1);
    }
    for (int i = 0; i < half - h - 1; ++i) {
      input_and_queue(1);
      run_queued();
      run(Kind::kForward, 1);
    }
    for (int i = 0; i < each - devices + h + 1; ++i) {
      if (i == 0 && middle) {
        run(Kind::kForward, 0);
        run(Kind::kBackward, 1);
      } else {
        pair(0, 1);
      }
      pair(1, 0);
    }
    for (int i = 0; i < half - h - 1; ++i) {
      run(Kind::kBackward, 1);
      pair(1, 0);
    }
    for (int i = 0; i < 2 * (h + 1); ++i) {
      const int phase = i % 2 == 0 ? 1 : 0;
      i < h + 1 ? run(Kind::kBackward, phase) : input_and_queue(phase);
    }
    for (int i = 0; i < half - h - 1; ++i) {
      run_queued();
      input_and_queue(0);
    }
    while (!queued.empty()) run_queued();
    AddReductions(list, input.late_sync);
  }
  return schedule;
}

PipelineSchedule BitPipe(const GeneratorInput& input) {
  const int devices = input.devices, half = devices / 2, units = input.micro_batches / devices;
  PipelineSchedule schedule =
      TwoCopies(input, 2 * devices, [&](int s) { return s < devices ? s : 2 * devices - 1 - s; });
  for (int d = 0; d < devices; ++d) {
    List& list = schedule.lists[static_cast<size_t>(d)];
    const int q = d / half, a = d < half ? half - d : d - half + 1;
    const auto chunks_of_unit = [&](std::initializer_list<std::pair<int, std::initializer_list<int>>> parts) {
      std::vector<int> chunks;
      for (int unit = 0; unit < units; ++unit) {
        for (const auto& [times, sequence] : parts) {
          for (int i = 0; i < times; ++i) chunks.insert(chunks.end(), sequence);
        }
      }
      return chunks;
    };
    const int rest = half - a;
    const std::vector<int> forwards =
        chunks_of_unit({{a, {q}}, {rest, {1 - q, q}}, {a, {1 - q, 3 - q}}, {rest, {2 + q, 3 - q}}, {a, {2 + q}}});
    const std::vector<int> backwards =
        chunks_of_unit({{a, {2 + q}}, {rest, {3 - q, 2 + q}}, {a, {3 - q, 1 - q}}, {rest, {q, 1 - q}}, {a, {q}}});
    const int stages[] = {d, devices - 1 - d, 2 * devices - 1 - d, devices + d};  // of chunks 0 to 3
    size_t forward = 0, backward = 0;
    int next_forward[4] = {}, next_backward[4] = {};
    const auto f = [&](int times) {
      for (int i = 0; i < times && forward < forwards.size(); ++i) {
        const int chunk = forwards[forward++];
        list.push_back({{Kind::kForward, chunk % 2, stages[chunk], next_forward[chunk]++}, {}});
      }
    };
    const auto b = [&](int times) {
      for (int i = 0; i < times && backward < backwards.size(); ++i) {
        const int chunk = backwards[backward++];
        list.push_back({{Kind::kBackward, chunk % 2, stages[chunk], next_backward[chunk]++}, {}});
      }
    };
    const auto both = [&](int times) {
      for (int i = 0; i < times; ++i) {
        f(1);
        b(1);
      }
    };
    const int w = devices + half + std::min(d, devices - 1 - d), r = 2 * devices - w;
    f(w);
    for (int unit = 0; unit + 1 < units; ++unit) {
      both(r);
      b(w - r + 1);
      both(r - 1);
      f(w - r + 1);
    }
    both(r);
    b(static_cast<int>(backwards.size()));
    AddReductions(list, input.late_sync);
  }
  return schedule;
}

void Add(List& list, Kind kind, int stage, int micro_batch) { list.push_back({{kind, 0, stage, micro_batch}, {}}); }

// With `split`, I in place of B, and the W of a micro-batch d steps after its I, where d is the device.
PipelineSchedule OneForwardOneBackward(const GeneratorInput& input, bool split) {
  PipelineSchedule schedule = OneCopy(input, input.devices, [](int s) { return s; });
  const int n = input.micro_batches;
  for (int d = 0; d < input.devices; ++d) {
    List& list = schedule.lists[static_cast<size_t>(d)];
    const auto backward = [&](int b) {
      Add(list, split ? Kind::kInput : Kind::kBackward, d, b);
      if (split && b >= d) Add(list, Kind::kWeight, d, b - d);
    };
    const int warmup = std::min(input.devices - d - 1, n);
    for (int m = 0; m < warmup; ++m) Add(list, Kind::kForward, d, m);
    for (int m = warmup; m < n; ++m) {
      Add(list, Kind::kForward, d, m);
      backward(m - warmup);
    }
    for (int b = std::max(0, n - warmup); b < n; ++b) backward(b);
    for (int m = std::max(0, n - d); split && m < n; ++m) Add(list, Kind::kWeight, d, m);
  }
  return schedule;
}

struct Entry {
  int chunk = 0, micro_batch = 0;
};

// Each group of micro-batches through each chunk.
std::vector<Entry> InterleavedTable(int micro_batches, int chunks, int group) {
  std::vector<Entry> table;
  for (int begin = 0; begin < micro_batches; begin += group) {
    for (int c = 0; c < chunks; ++c) {
      for (int m = begin; m < std::min(begin + group, micro_batches); ++m) table.push_back({c, m});
    }
  }
  return table;
}

PipelineSchedule Interleaved(const GeneratorInput& input) {
  const int devices = input.devices, chunks = input.chunks, n = input.micro_batches;
  PipelineSchedule schedule = OneCopy(input, devices * chunks, [&](int s) { return s % devices; });
  const std::vector<Entry> table = InterleavedTable(n, chunks, devices);
  const int all = n * chunks;
  for (int d = 0; d < devices; ++d) {
    List& list = schedule.lists[static_cast<size_t>(d)];
    const auto forward = [&](int k) {
      const Entry& e = table[static_cast<size_t>(k)];
      Add(list, Kind::kForward, e.chunk * devices + d, e.micro_batch);
    };
    const auto backward = [&](int k) {
      const Entry& e = table[static_cast<size_t>(k)];
      Add(list, Kind::kBackward, (chunks - 1 - e.chunk) * devices + d, e.micro_batch);
    };
    const int warmup = std::min(2 * (devices - d - 1) + (chunks - 1) * devices, all);
    for (int k = 0; k < warmup; ++k) forward(k);
    for (int k = warmup; k < all; ++k) {
      forward(k);
      backward(k - warmup);
    }
    for (int k = all - warmup; k < all; ++k) backward(k);
  }
  return schedule;
}

// With one chunk it is GPipe.
PipelineSchedule BreadthFirst(const GeneratorInput& input, int chunks) {
  const int devices = input.devices, n = input.micro_batches;
  PipelineSchedule schedule = OneCopy(input, devices * chunks, [&](int s) { return s % devices; });
  for (int d = 0; d < devices; ++d) {
    List& list = schedule.lists[static_cast<size_t>(d)];
    for (const Entry& e : InterleavedTable(n, chunks, n))
      Add(list, Kind::kForward, e.chunk * devices + d, e.micro_batch);
    for (const Entry& e : InterleavedTable(n, chunks, n)) {
      Add(list, Kind::kBackward, (chunks - 1 - e.chunk) * devices + d, e.micro_batch);
    }
  }
  return schedule;
}

PipelineSchedule ZeroBubbleV(const GeneratorInput& input) {
  const int devices = input.devices, n = input.micro_batches;
  PipelineSchedule schedule = OneCopy(input, 2 * devices, [&](int s) { return s < devices ? s : 2 * devices - 1 - s; });
  for (int d = 0; d < devices; ++d) {
    List& list = schedule.lists[static_cast<size_t>(d)];
    std::map<std::pair<Kind, bool>, int> done;  // by operation and whether it is the second chunk's
    const auto run = [&](Kind kind, bool second) {
      int& next = done[{kind, second}];
      if (next < n) Add(list, kind, second ? 2 * devices - 1 - d : d, next++);
    };
    const auto repeat = [&](int times, std::initializer_list<std::pair<Kind, bool>> operations) {
      for (int i = 0; i < times; ++i) {
        for (const auto& [kind, second] : operations) run(kind, second);
      }
    };
    constexpr bool kX = false, kY = true;
    repeat(2 * (devices - d) - 1, {{Kind::kForward, kX}});
    repeat(d, {{Kind::kForward, kY}, {Kind::kForward, kX}});
    repeat(devices - d, {{Kind::kForward, kY}, {Kind::kInput, kY}, {Kind::kWeight, kY}});
    while (done[{Kind::kForward, kX}] < n || done[{Kind::kForward, kY}] < n) {
      repeat(1, {{Kind::kForward, kX},
                 {Kind::kInput, kX},
                 {Kind::kWeight, kX},
                 {Kind::kForward, kY},
                 {Kind::kInput, kY},
                 {Kind::kWeight, kY}});
    }
    repeat(d, {{Kind::kInput, kX}, {Kind::kInput, kY}});
    repeat(devices - d, {{Kind::kInput, kX}, {Kind::kWeight, kX}});
    repeat(n, {{Kind::kWeight, kY}});
    repeat(n, {{Kind::kWeight, kX}});
  }
  return schedule;
}

// Interleaved by groups of a unit; a stage's parameters are there from G to R, once for a unit's forwards and once for
// its backwards, whose weight gradients come at their end.
PipelineSchedule ZeroPp(const GeneratorInput& input) {
  const int devices = input.devices, chunks = input.chunks, n = input.micro_batches;
  const int unit = input.unit == 0 ? devices : input.unit;
  PipelineSchedule schedule = OneCopy(input, devices * chunks, [&](int s) { return s % devices; });
  const std::vector<Entry> table = InterleavedTable(n, chunks, unit);
  const int all = n * chunks;
  for (int d = 0; d < devices; ++d) {
    List& list = schedule.lists[static_cast<size_t>(d)];
    const auto run = [&](Kind kind, int k) {
      const Entry& e = table[static_cast<size_t>(k)];
      const int chunk = kind == Kind::kForward ? e.chunk : chunks - 1 - e.chunk, stage = chunk * devices + d;
      const int begin = e.micro_batch / unit * unit, end = std::min(begin + unit, n);
      if (e.micro_batch == begin) Add(list, Kind::kGather, stage, 0);
      Add(list, kind, stage, e.micro_batch);
      if (e.micro_batch + 1 < end) return;
      for (int m = begin; kind == Kind::kInput && m < end; ++m) Add(list, Kind::kWeight, stage, m);
      Add(list, Kind::kRelease, stage, 0);
    };
    const int warmup = std::min(2 * (devices - d - 1) + (chunks - 1) * unit, all);
    for (int k = 0; k < warmup; ++k) run(Kind::kForward, k);
    for (int k = warmup; k < all; ++k) {
      run(Kind::kForward, k);
      run(Kind::kInput, k - warmup);
    }
    for (int k = all - warmup; k < all; ++k) run(Kind::kInput, k);
  }
  return schedule;
}

absl::Status Expect(bool holds, const std::string& name, const std::string& expected, const GeneratorInput& input) {
  if (holds) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, ": expected ", expected, ", got ", input.devices,
                                                 " devices and ", input.micro_batches, " micro-batches"));
}

}  // namespace

const std::vector<std::string>& GeneratorNames() {
  static const std::vector<std::string> names = {"gpipe",   "1f1b",           "interleaved", "breadth_first",
                                                 "zb_h1",   "zb_v",           "chimera",     "dualpipe",
                                                 "bitpipe", "bitpipe_looped", "zeropp"};
  return names;
}

bool HasChunks(const std::string& name) { return name == "interleaved" || name == "breadth_first" || name == "zeropp"; }

absl::StatusOr<PipelineSchedule> Generate(const std::string& name, const GeneratorInput& input) {
  const int devices = input.devices, n = input.micro_batches;
  RETURN_IF_ERROR(Expect(devices >= 1 && n >= 1, name, "at least one device and one micro-batch", input));
  if (HasChunks(name) && input.chunks < 1) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": expected 1 or more chunks, got ", input.chunks));
  }
  if (name == "gpipe") return BreadthFirst(input, 1);
  if (name == "1f1b") return OneForwardOneBackward(input, /*split=*/false);
  if (name == "zb_h1") return OneForwardOneBackward(input, /*split=*/true);
  if (name == "interleaved") return Interleaved(input);
  if (name == "breadth_first") {
    RETURN_IF_ERROR(Expect(n >= devices, name, "at least D micro-batches", input));
    return BreadthFirst(input, input.chunks);
  }
  if (name == "chimera") {
    RETURN_IF_ERROR(Expect(devices % 2 == 0 && n % 2 == 0 && n >= devices, name,
                           "an even number of devices D and of micro-batches, at least D", input));
    return Chimera(input, 1);
  }
  if (name == "zb_v") {
    RETURN_IF_ERROR(Expect(n >= 2 * devices - 1, name, "at least 2 D − 1 micro-batches", input));
    return ZeroBubbleV(input);
  }
  if (name == "dualpipe") {
    RETURN_IF_ERROR(Expect(devices % 2 == 0 && n % 2 == 0 && n >= 2 * devices, name,
                           "an even number of devices D and of micro-batches, at least 2 D", input));
    return DualPipe(input);
  }
  if (name == "bitpipe" || name == "bitpipe_looped") {
    RETURN_IF_ERROR(Expect(devices % 2 == 0 && n % devices == 0, name,
                           "an even number of devices, and a multiple of it micro-batches", input));
    return name == "bitpipe" ? BitPipe(input) : Chimera(input, 2);
  }
  if (name == "zeropp") {
    RETURN_IF_ERROR(Expect(input.unit >= 0 && (input.unit == 0 || input.unit >= devices), name,
                           "a unit of at least D micro-batches", input));
    return ZeroPp(input);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("schedule: expected ", absl::StrJoin(GeneratorNames(), " | "), ", got ", name));
}

}  // namespace causeway::plan
