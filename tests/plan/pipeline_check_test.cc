// Faults that are planted into valid schedules, and random mutations of their files beside a check of another kind.
#include "plan/pipeline_check.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/random.h"
#include "plan/pipeline_file.h"
#include "plan/pipeline_generators.h"
#include "plan/pipeline_time.h"

namespace causeway::plan {
namespace {

using ::testing::HasSubstr;
using Kind = OperationKind;
using nlohmann::json;

PipelineSchedule Valid(const std::string& name, int devices = 4, int micro_batches = 8) {
  return *Generate(name, {.devices = devices, .micro_batches = micro_batches});
}

TEST(PipelineCheck, WhatGeneratorsMakeIsValidAndReadsBackAsItWasWritten) {
  for (const std::string& name : GeneratorNames()) {
    for (const int devices : {2, 4, 8}) {
      for (const int n : {2 * devices, 4 * devices}) {
        for (const bool late : {false, true}) {
          const auto schedule =
              Generate(name, {.devices = devices, .micro_batches = n, .chunks = 3, .late_sync = late});
          ASSERT_TRUE(schedule.ok()) << schedule.status();
          EXPECT_EQ(CheckPipeline(*schedule), absl::OkStatus()) << name;
          const PipelineFile file{.schedule = *schedule, .width = 2, .shards = late};
          const auto back = ParsePipelineFile(WritePipelineFile(file), "s");
          ASSERT_TRUE(back.ok()) << back.status();
          EXPECT_EQ(*back, file);
        }
      }
    }
  }
}

TEST(PipelineCheck, OneReceiveBufferIsEnoughButForTheVAndListSchedules) {
  for (const std::string& name : GeneratorNames()) {
    EXPECT_EQ(ReceiveSlots(Valid(name)), name == "bitpipe_looped"              ? 3
                                         : name == "zb_v" || name == "chimera" ? 2
                                                                               : 1)
        << name;
  }
}

// ---- Planted ----

struct Fault {
  std::string name, schedule, words;
  std::function<void(PipelineSchedule&)> plant;
  PipelineLimits limits = {};
};

// The step of that text on the device.
auto At(PipelineSchedule& s, int device, const std::string& text) {
  auto& list = s.lists[static_cast<size_t>(device)];
  const auto found = std::ranges::find_if(list, [&](const ScheduleStep& step) { return StepText(step) == text; });
  CHECK(found != list.end());
  return found;
}
std::function<void(PipelineSchedule&)> Erase(int device, const std::string& text) {
  return [=](PipelineSchedule& s) { s.lists[static_cast<size_t>(device)].erase(At(s, device, text)); };
}
std::function<void(PipelineSchedule&)> Swap(int device, const std::string& a, const std::string& b) {
  return [=](PipelineSchedule& s) { std::iter_swap(At(s, device, a), At(s, device, b)); };
}
std::function<void(PipelineSchedule&)> Again(int device, const std::string& text) {
  return [=](PipelineSchedule& s) {
    const ScheduleStep step = *At(s, device, text);
    s.lists[static_cast<size_t>(device)].push_back(step);
  };
}
std::function<void(PipelineSchedule&)> Move(int from, const std::string& text, int to) {
  return [=](PipelineSchedule& s) {
    const auto at = At(s, from, text);
    s.lists[static_cast<size_t>(to)].push_back(*at);
    s.lists[static_cast<size_t>(from)].erase(at);
  };
}
std::function<void(PipelineSchedule&)> Change(int device, const std::string& text, const Operation& operation) {
  return [=](PipelineSchedule& s) { At(s, device, text)->first = operation; };
}

std::vector<Fault> Faults() {
  return {
      {"v1_no_forward", "1f1b", "V1: device 2, end of its list, 2F3: it is missing", Erase(2, "2F3")},
      {"v1_no_backward", "gpipe", "V1: device 0, end of its list, 0B7: it is missing", Erase(0, "0B7")},
      {"v1_no_weight", "zb_h1", "V1: device 1, end of its list, 1W2: it is missing", Erase(1, "1W2")},
      {"v1_no_input", "zb_h1", "V1: device 1, end of its list, 1I2: it is missing", Erase(1, "1I2")},
      {"v1_twice", "gpipe", "V1: device 3, position 16, 3F0: expected once, it is there twice", Again(3, "3F0")},
      {"v1_backward_and_weight", "1f1b", "expected B, or I and W, it has both",
       [](PipelineSchedule& s) {
         s.lists[0].push_back({{Kind::kWeight, 0, 0, 0}, {}});
       }},
      {"v1_micro_batch_beyond", "gpipe", "V1: device 0, position 0, 0F8: expected one of 1 copies",
       Change(0, "0F0", {Kind::kForward, 0, 0, 8})},
      {"v1_copy_beyond", "gpipe", "V1: device 0, position 0, r1.0F0: expected one of 1 copies",
       Change(0, "0F0", {Kind::kForward, 1, 0, 0})},
      {"v2_forward_elsewhere", "1f1b", "V2: device 2, position 16, 1F0: expected on device 1", Move(1, "1F0", 2)},
      {"v2_weight_elsewhere", "zb_v", "V2: device 1, position 48, 0W0: expected on device 0", Move(0, "0W0", 1)},
      {"v3_backward_before_forward", "1f1b", "V3: device 3, position 0, 3B0: expected behind the F and I",
       Swap(3, "3F0", "3B0")},
      {"v3_weight_before_input", "zb_h1", "V3: device 0, position 4, 0W0: expected behind the F and I",
       Swap(0, "0I0", "0W0")},
      {"v3_pair_of_its_own", "1f1b", "V3: device 3, position 0, 3B0: expected behind its own F",
       [](PipelineSchedule& s) {
         At(s, 3, "3F0")->second = Operation{Kind::kBackward, 0, 3, 0};
         s.lists[3].erase(At(s, 3, "3B0"));
       }},
      {"v4_two_devices", "gpipe",
       "V4: device 0, position 7, 0B0: waits for 1I0; device 1, position 7, 1F7: waits for 0F7", Swap(0, "0F7", "0B0")},
      {"v4_further_on", "gpipe",
       "V4: device 2, position 7, 2B0: waits for 3I0; device 3, position 7, 3F7: waits for 2F7",
       [](PipelineSchedule& s) {
         for (int d = 0; d < 3; ++d) Swap(d, absl::StrCat(d, "F7"), absl::StrCat(d, "B0"))(s);
       }},
      {"v5_backwards", "gpipe",
       "V5: device 1, position 12, 1B3: expected weight gradients in the order of micro-batches",
       [](PipelineSchedule& s) {
         for (int d = 0; d < 4; ++d) Swap(d, absl::StrCat(d, "B3"), absl::StrCat(d, "B4"))(s);
         Swap(0, "0B3", "0B4")(s);
       }},
      {"v5_weights", "zb_h1", "V5: device 3", Swap(3, "3W0", "3W1")},
      {"v6_cap",
       "gpipe",
       "V6: device 0, position 4, 0F4: expected at most 4 live micro-batches, it is number 5",
       [](PipelineSchedule&) {},
       {.cap = 4}},
      {"v6_cap_of_1f1b",
       "1f1b",
       "V6: device 0, position 3, 0F3: expected at most 3",
       [](PipelineSchedule&) {},
       {.cap = 3}},
      {"v7_one_slot", "zb_v", "V7: device", [](PipelineSchedule&) {}, {.slots = 1}},
      {"v8_no_gather", "zeropp", "V8: device 0", Erase(0, "0G")},
      {"v8_no_release", "zeropp", "V8: device 2", Erase(2, "2R")},
      {"v10_missing", "bitpipe", "V10: device 0, end of its list", Erase(0, "0A")},
      {"v10_early", "dualpipe", "V10: device 0",
       [](PipelineSchedule& s) {
         const ScheduleStep step = *At(s, 0, "0A");
         s.lists[0].erase(At(s, 0, "0A"));
         s.lists[0].insert(s.lists[0].begin(), step);
       }},
      {"v10_twice", "dualpipe", "expected once, it is there twice", Again(3, "3A")},
  };
}

class PipelineFaults : public ::testing::TestWithParam<Fault> {};

TEST_P(PipelineFaults, AreFoundAndPlaced) {
  PipelineSchedule schedule = Valid(GetParam().schedule);
  GetParam().plant(schedule);
  const absl::Status status = CheckPipeline(schedule, GetParam().limits);
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().words));
}

INSTANTIATE_TEST_SUITE_P(Planted, PipelineFaults, ::testing::ValuesIn(Faults()),
                         [](const auto& info) { return info.param.name; });

// ---- Mutations ----

// V1 to V5, V8 and V10 once more, by other means: from what each operation needs to what is left over.
bool IsValid(const PipelineSchedule& s) {
  if (s.micro_batches % s.copies != 0) return false;
  std::map<Operation, std::pair<int, int>> at;  // device and position
  std::map<std::pair<int, int>, std::vector<std::pair<int, Operation>>> of_stage;
  for (size_t d = 0; d < s.lists.size(); ++d) {
    for (size_t i = 0; i < s.lists[d].size(); ++i) {
      for (const Operation* o : {&s.lists[d][i].first, s.lists[d][i].second ? &*s.lists[d][i].second : nullptr}) {
        if (o == nullptr) continue;
        if (o->copy >= s.copies || o->stage >= s.stages) return false;
        if (s.place[o->copy][o->stage] != static_cast<int>(d)) return false;
        of_stage[{o->copy, o->stage}].push_back({static_cast<int>(i), *o});
        if (IsCompute(o->kind) && !at.emplace(*o, std::pair(static_cast<int>(d), static_cast<int>(i))).second)
          return false;
      }
    }
  }
  for (int copy = 0; copy < s.copies; ++copy) {
    for (int stage = 0; stage < s.stages; ++stage) {
      int last = -1, gathered = 0, reduced = 0;
      bool gathers = false;
      std::set<int> forward, input, finished;
      const auto& all = of_stage[{copy, stage}];
      for (const auto& [i, o] : all) gathers |= o.kind == Kind::kGather;
      for (size_t k = 0; k < all.size(); ++k) {
        const auto& [i, o] = all[k];
        const int m = o.micro_batch;
        if (IsCompute(o.kind) && ((gathers && gathered == 0) || m >= s.micro_batches / s.copies)) return false;
        const bool own_pair = k > 0 && all[k - 1].first == i && all[k - 1].second.micro_batch == m;
        switch (o.kind) {
          case Kind::kForward: forward.insert(m); break;
          case Kind::kInput:
            if (!forward.contains(m) || finished.contains(m) || own_pair) return false;
            input.insert(m);
            break;
          case Kind::kBackward:
          case Kind::kWeight:
            if (o.kind == Kind::kWeight ? !input.contains(m) : !forward.contains(m) || input.contains(m)) return false;
            if (m < last || reduced > 0 || !finished.insert(m).second) return false;
            if (o.kind == Kind::kBackward && own_pair) return false;
            last = m;
            break;
          case Kind::kGather: ++gathered; break;
          case Kind::kRelease:
            if (--gathered < 0) return false;
            break;
          case Kind::kReduce: ++reduced; break;
        }
      }
      const auto n = static_cast<size_t>(s.micro_batches / s.copies);
      if (forward.size() != n || finished.size() != n || gathered != 0) return false;
      if (reduced > 1 || (s.copies > 1 && reduced == 0)) return false;
    }
  }
  // No circle: take away what waits for nothing.
  std::vector<size_t> next(s.lists.size());
  std::set<Operation> done;
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t d = 0; d < s.lists.size(); ++d) {
      if (next[d] == s.lists[d].size()) continue;
      const ScheduleStep& step = s.lists[d][next[d]];
      bool ready = true;
      for (const Operation* o : {&step.first, step.second ? &*step.second : nullptr}) {
        if (o == nullptr) continue;
        if (o->kind == Kind::kForward && o->stage > 0) {
          ready &= done.contains({Kind::kForward, o->copy, o->stage - 1, o->micro_batch});
        }
        const bool back = o->kind == Kind::kBackward || o->kind == Kind::kInput;
        if (back && o->stage + 1 < s.stages) {
          ready &= done.contains({Kind::kInput, o->copy, o->stage + 1, o->micro_batch});
        }
      }
      if (!ready) continue;
      for (const Operation* o : {&step.first, step.second ? &*step.second : nullptr}) {
        if (o == nullptr) continue;
        done.insert(*o);
        if (o->kind == Kind::kBackward) done.insert({Kind::kInput, o->copy, o->stage, o->micro_batch});
      }
      ++next[d];
      moved = true;
    }
  }
  for (size_t d = 0; d < s.lists.size(); ++d) {
    if (next[d] < s.lists[d].size()) return false;
  }
  return true;
}

TEST(PipelineMutations, TenThousandOfFilesCrashNothingAndAcceptWhatIsValidAlone) {
  uint64_t draws = 0;
  const auto random = [&](size_t below) { return static_cast<size_t>(core::SplitMix64(draws++) % below); };
  int accepted = 0, read = 0;
  for (int i = 0; i < 10'000; ++i) {
    const std::string& name = GeneratorNames()[random(GeneratorNames().size())];
    PipelineSchedule schedule = Valid(name, 2, 4);
    std::string text;
    if (random(2) == 0) {  // of the lists: two steps change places, one goes or comes again
      auto& list = schedule.lists[random(schedule.lists.size())];
      const size_t a = random(list.size()), b = random(list.size());
      switch (random(4)) {
        case 0: std::swap(list[a], list[b]); break;
        case 1: std::swap(list[a], list[a + 1 < list.size() ? a + 1 : a]); break;
        case 2: list.erase(list.begin() + static_cast<std::ptrdiff_t>(a)); break;
        default: list.insert(list.begin() + static_cast<std::ptrdiff_t>(a), list[b]); break;
      }
      text = WritePipelineFile({.schedule = schedule});
    } else {  // of the text
      text = WritePipelineFile({.schedule = schedule});
      constexpr char kLetters[] = "0123456789FBIWGRA:;().# \nr";
      text[random(text.size())] = kLetters[random(sizeof(kLetters) - 1)];
    }
    const auto file = ParsePipelineFile(text, "s");
    if (!file.ok()) {
      EXPECT_THAT(std::string(file.status().message()), HasSubstr(": expected "));
      continue;
    }
    ++read;
    const bool valid = CheckPipeline(file->schedule).ok();
    accepted += valid;
    ASSERT_EQ(valid, IsValid(file->schedule)) << text << CheckPipeline(file->schedule);
  }
  EXPECT_GT(read, 3000);
  EXPECT_GT(accepted, 300);
}

TEST(PipelineFile, AnErrorNamesLineAndColumn) {
  const auto words = [](const std::string& text) {
    return std::string(ParsePipelineFile(text, "s.txt").status().message());
  };
  const std::string head = "causeway-schedule 1\ndevices 1 micro_batches 1 stages 1 replicas 1\n";
  EXPECT_EQ(words(""), "s.txt:1:1: expected causeway-schedule 1, got the end of the file");
  EXPECT_EQ(words("causeway-schedule 2\nx\n"), "s.txt:1:19: expected version 1, got 2");
  EXPECT_EQ(words("causeway-schedule 1\ndevices 0 micro\n"), "s.txt:2:9: expected a number from 1 on, got 0");
  EXPECT_EQ(words(head + "place 0:1\n"), "s.txt:3:7: expected one of 1 copies, 1 stages and 1 devices, got 0:1");
  EXPECT_EQ(words(head + "place 0:0\ndevice 0: 0F0 0X0\n"),
            "s.txt:4:15: expected an operation such as 0F1, 7I0, 3A, r1.7W0 or (0F5;7B1), got 0X0");
  EXPECT_EQ(words(head + "place 0:0\n"), "s.txt:3:10: expected a list for device 0, got the end of the line");
  EXPECT_EQ(words(head + "place 0:0\nsplit 0:0-\ndevice 0: 0F0\n"),
            "s.txt:4:7: expected STAGE:LAYERS, with layers such as embed+0-2, 3-4, 5, 14-15+head or none, got 0:0-");
  EXPECT_EQ(words(head + "place 0:0  # where\nsplit 0:embed+0-1+head\ndevice 0: 0F0 0B0\n"), "");
}

// Every generator's lists and times against those of an independent program (tests/golden/pipeline_schedules.json), and
// the formulas of the papers.

constexpr int64_t kUnit = 5040;  // nanoseconds of the forward of 1/D of the model: divisible by every number of chunks

// "F0@3/1", as the file has it.
std::string GoldenText(const Operation& operation) {
  return absl::StrCat(std::string(1, kOperationLetters[static_cast<int>(operation.kind)]), operation.micro_batch, "@",
                      operation.stage, "/", operation.copy);
}

std::vector<std::vector<std::string>> GoldenOrder(const PipelineSchedule& schedule) {
  std::vector<std::vector<std::string>> order;
  for (const auto& list : schedule.lists) {
    order.emplace_back();
    for (const ScheduleStep& step : list) {
      if (!IsCompute(step.first.kind)) continue;
      order.back().push_back(GoldenText(step.first) + (step.second ? "+" + GoldenText(*step.second) : ""));
    }
  }
  return order;
}

// "33/2" units.
int64_t Nanoseconds(const std::string& fraction) {
  const size_t slash = fraction.find('/');
  const int64_t over = std::stoll(fraction);
  return slash == std::string::npos ? over * kUnit : over * kUnit / std::stoll(fraction.substr(slash + 1));
}

struct Made {
  PipelineSchedule schedule;
  PlayedPipeline played;
};

Made Make(const std::string& name, const GeneratorInput& input) {
  auto schedule = Generate(name, input);
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  auto played = Play(*schedule, UnitTimes(*schedule, kUnit * input.devices / schedule->stages));
  EXPECT_TRUE(played.ok()) << name << ": " << played.status();
  return {*std::move(schedule), *std::move(played)};
}

TEST(PipelineGolden, EachScheduleHasItsOrderTimesAndPeaks) {
  std::ifstream file(GOLDEN_SCHEDULES);
  const json golden = json::parse(file);
  ASSERT_EQ(golden["cases"].size(), 12u);
  for (const json& one : golden["cases"]) {
    std::string name = one["schedule"];
    GeneratorInput input{.devices = one["D"], .micro_batches = one["N"]};
    if (name.starts_with("interleaved_v")) {
      input.chunks = std::stoi(name.substr(name.size() - 1));
      name = "interleaved";
    }
    const Made made = Make(name, input);
    SCOPED_TRACE(absl::StrCat(name, " D ", input.devices, " N ", input.micro_batches));
    EXPECT_EQ(json(GoldenOrder(made.schedule)), one["order"]);
    EXPECT_EQ(made.played.makespan, Nanoseconds(one["makespan"]));
    EXPECT_EQ(json(made.played.peak_chunks), one["peak_chunks"]);
    for (int d = 0; d < input.devices; ++d) {
      EXPECT_EQ(made.played.bubble(d), Nanoseconds(one["bubble"][d])) << d;
      EXPECT_EQ(made.played.span_bubble(d), Nanoseconds(one["span_bubble"][d])) << d;
    }
  }
}

// bubble ÷ makespan = over ÷ under, of every device.
void ExpectBubble(const Made& made, int64_t over, int64_t under) {
  for (int d = 0; d < made.schedule.devices; ++d) {
    EXPECT_EQ(made.played.bubble(d) * under, made.played.makespan * over) << "device " << d;
  }
}

TEST(PipelineFormulas, BubblesArePublishedOnes) {
  for (const int d : {2, 4, 8}) {
    for (const int n : {d, 2 * d, 4 * d}) {
      SCOPED_TRACE(absl::StrCat("D ", d, " N ", n));
      const GeneratorInput input{.devices = d, .micro_batches = n};
      ExpectBubble(Make("gpipe", input), d - 1, n + d - 1);
      ExpectBubble(Make("1f1b", input), d - 1, n + d - 1);
      for (const int v : {2, 3, 4}) {
        ExpectBubble(Make("interleaved", {.devices = d, .micro_batches = n, .chunks = v}), d - 1, v * n + d - 1);
      }
      for (const int v : {1, 2, 3}) {
        ExpectBubble(Make("breadth_first", {.devices = d, .micro_batches = n, .chunks = v}), d - 1, v * n + d - 1);
      }
      if (n == d) ExpectBubble(Make("bitpipe", input), d - 2, 3 * n + d - 2);
      if (n >= 2 * d - 1) ExpectBubble(Make("zb_v", input), d - 1, 6 * n + d - 1);
      if (n >= 2 * d) ExpectBubble(Make("dualpipe", input), d - 2, 3 * n + d - 2);
    }
  }
}

TEST(PipelineFormulas, PeaksAndMessagesArePublishedOnes) {
  for (const int d : {2, 4, 8}) {
    for (const int n : {d, 2 * d, 4 * d}) {
      SCOPED_TRACE(absl::StrCat("D ", d, " N ", n));
      const GeneratorInput input{.devices = d, .micro_batches = n};
      for (int device = 0; device < d; ++device) {
        EXPECT_EQ(Make("gpipe", input).played.peak_chunks[device], n);
        EXPECT_EQ(Make("1f1b", input).played.peak_chunks[device], std::min(n, d - device));
        EXPECT_EQ(Make("interleaved", input).played.peak_chunks[device], std::min(2 * n, 2 * (d - device - 1) + d + 1));
        if (n < 2 * d) continue;
        EXPECT_EQ(Make("zb_v", input).played.peak_chunks[device], 2 * d);
        EXPECT_EQ(Make("dualpipe", input).played.peak_chunks[device], d + 1);
      }
      EXPECT_EQ(Make("1f1b", input).played.messages, 2 * n * (d - 1));
      EXPECT_EQ(Make("interleaved", input).played.messages, 2 * n * (2 * d - 1));
    }
  }
}

TEST(PipelineFormulas, ChimeraTakesAsLongAsPublishedAndHoldsNoMore) {
  for (const int d : {2, 4, 6, 8}) {
    for (const int n : {d, d + 2, 2 * d, 3 * d, 5 * d}) {
      SCOPED_TRACE(absl::StrCat("D ", d, " N ", n));
      const Made made = Make("chimera", {.devices = d, .micro_batches = n});
      EXPECT_EQ(made.played.makespan, kUnit * (3 * n + 2 * (d - 2)));
      for (int device = 0; device < d; ++device) {
        const int middle = std::min(device, d - 1 - device);
        const int peak = made.played.peak_chunks[device];
        EXPECT_EQ(peak, n == d ? std::min(d, d / 2 + 1 + middle) : n >= 2 * d ? d : peak);
        EXPECT_LE(peak, d);
      }
    }
  }
}

TEST(PipelineFormulas, TheVOfBitPipeSavesMessagesAndNothingElse) {
  for (const int d : {2, 4, 8}) {
    const GeneratorInput input{.devices = d, .micro_batches = d};
    const Made with = Make("bitpipe", input), without = Make("bitpipe_looped", input);
    EXPECT_EQ(with.played.makespan, without.played.makespan) << d;
    EXPECT_EQ(without.played.messages - with.played.messages, 2 * d) << "there and back, each micro-batch";
  }
}

TEST(PipelineFormulas, BreadthFirstHoldsAllMicroBatchesOfAllStages) {
  const Made made = Make("breadth_first", {.devices = 4, .micro_batches = 6, .chunks = 3});
  for (int device = 0; device < 4; ++device) EXPECT_EQ(made.played.peak_chunks[device], 18);
}

TEST(PipelineFormulas, ZeroPpGathersThreeTimesAUnitAndChunk) {
  for (const int d : {2, 4}) {
    const int n = 4 * d, unit = 2 * d, v = 2;
    const Made made = Make("zeropp", {.devices = d, .micro_batches = n, .chunks = v, .unit = unit});
    for (const auto& list : made.schedule.lists) {
      int gathers = 0, scatters = 0;
      bool weights = false;
      for (const ScheduleStep& step : list) {
        gathers += step.first.kind == OperationKind::kGather;
        scatters += step.first.kind == OperationKind::kRelease && weights;
        weights = step.first.kind == OperationKind::kWeight;
      }
      EXPECT_EQ(gathers + scatters, 3 * v * n / unit);
    }
  }
}

TEST(PipelineTime, APairTakesItsOwnTimeAndOfTwoStagesSavesTheLesser) {
  const PipelineSchedule schedule{
      .devices = 1,
      .micro_batches = 2,
      .stages = 2,
      .place = {{0, 0}},
      .lists = {{{{.stage = 0}, {}},
                 {{.stage = 1}, {}},
                 {{.stage = 0, .micro_batch = 1}, Operation{OperationKind::kBackward, 0, 1}},
                 {{.stage = 1, .micro_batch = 1}, Operation{OperationKind::kBackward, 0, 0}},
                 {{OperationKind::kBackward, 0, 1, 1}, {}},
                 {{OperationKind::kBackward, 0, 0, 1}, {}}}}};
  PipelineTimes times{.stages = {{.forward = 10, .input = 10, .weight = 10, .pair = 25},
                                 {.forward = 30, .input = 30, .weight = 30, .pair = 70}}};
  const auto played = Play(schedule, times);
  ASSERT_TRUE(played.ok()) << played.status();
  EXPECT_EQ(played->makespan, 2 * (30 + 90) - 2 * 5);  // 5 of the pairs of stage 0, 20 of those of stage 1
}

// Both come to it at 9; each sends 1,000 bytes at a byte a nanosecond, there and back with a latency of 5 each.
TEST(PipelineTime, AnAllReduceBetweenCopiesRunsBesideAndEndsTheStep) {
  const Operation reduce{OperationKind::kReduce, 0, 0, 0}, other{OperationKind::kReduce, 1, 0, 0};
  const auto list = [](int copy, const Operation& last) {
    return std::vector<ScheduleStep>{{{.copy = copy}, {}}, {{OperationKind::kBackward, copy}, {}}, {last, {}}};
  };
  const PipelineSchedule schedule{.devices = 2,
                                  .micro_batches = 2,
                                  .stages = 1,
                                  .copies = 2,
                                  .place = {{0}, {1}},
                                  .lists = {list(0, reduce), list(1, other)}};
  PipelineTimes times{.stages = {{.forward = 3, .backward = 6}}, .message_ns = 5, .bytes_per_s = 1e9};
  EXPECT_EQ(Play(schedule, times)->makespan, 9);
  times.reduce_bytes = {1000};
  EXPECT_EQ(Play(schedule, times)->makespan, 9 + 1000 + 2 * 5);
}

TEST(PipelineGenerators, NumbersForWhichARuleDoesNotHoldAreRefusedWithThem) {
  const auto words = [](const std::string& name, int devices, int micro_batches) {
    return std::string(Generate(name, {.devices = devices, .micro_batches = micro_batches}).status().message());
  };
  EXPECT_EQ(words("zb_v", 4, 6), "zb_v: expected at least 2 D − 1 micro-batches, got 4 devices and 6 micro-batches");
  EXPECT_THAT(words("dualpipe", 3, 8), ::testing::HasSubstr("got 3 devices and 8 micro-batches"));
  EXPECT_THAT(words("bitpipe", 4, 6), ::testing::HasSubstr("a multiple of it micro-batches"));
  EXPECT_THAT(words("breadth_first", 4, 3), ::testing::HasSubstr("at least D micro-batches, got 4 devices and 3"));
  for (const auto& [devices, n] : {std::pair(3, 4), {4, 5}, {4, 2}}) {
    EXPECT_THAT(words("chimera", devices, n), ::testing::HasSubstr("of micro-batches, at least D, got"));
  }
  EXPECT_THAT(words("2f2b", 4, 4), ::testing::HasSubstr("schedule: expected gpipe | 1f1b |"));
}

}  // namespace
}  // namespace causeway::plan
