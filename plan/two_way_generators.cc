#include "plan/two_way_generators.h"

#include <algorithm>
#include <deque>
#include <initializer_list>
#include <map>

#include "plan/pipeline_generators.h"

namespace causeway::plan {
namespace {

using Kind = OperationKind;
using List = std::vector<ScheduleStep>;

// Stage s of copy 0 is on the device that `device_of` says, and of copy 1 on its mirror image.
template <typename DeviceOf>
PipelineSchedule TwoCopies(const GeneratorInput& input, int stages, const DeviceOf& device_of) {
  PipelineSchedule schedule{.devices = input.devices,
                            .micro_batches = input.micro_batches,
                            .stages = stages,
                            .copies = 2,
                            .place = std::vector(2, std::vector<int>(static_cast<size_t>(stages))),
                            .lists = std::vector<List>(static_cast<size_t>(input.devices))};
  for (int s = 0; s < stages; ++s) {
    schedule.place[0][static_cast<size_t>(s)] = device_of(s);
    schedule.place[1][static_cast<size_t>(s)] = input.devices - 1 - device_of(s);
  }
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

}  // namespace

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

}  // namespace causeway::plan
