#include "worker/parallel/pipeline_place.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/model_manifest.h"
#include "plan/pipeline_check.h"
#include "plan/pipeline_generators.h"

namespace causeway::worker {
namespace {

template <typename... Parts>
absl::Status Bad(const std::string& name, const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("--pipeline: ", name, ": expected ", parts...));
}

// Each layer once, in order, between the embedding and the head.
absl::Status CheckSplit(const plan::PipelineFile& file, const std::string& name, int64_t layers) {
  int next = 0;
  for (size_t s = 0; s < file.split.size(); ++s) {
    const plan::StageLayers& stage = file.split[s];
    const bool first = s == 0, last = s + 1 == file.split.size();
    if (stage.embedding != first || stage.head != last) {
      return Bad(name, "the embedding in stage 0 and the head in the last stage, got stage ", s,
                 stage.embedding != first ? (first ? " without the embedding" : " with the embedding")
                                          : (last ? " without the head" : " with the head"));
    }
    if (stage.first != next || stage.last < stage.first) {
      return Bad(name, "stage ", s, " to have layers from ", next, " on, got ", stage.first, " to ", stage.last);
    }
    next = stage.last + 1;
  }
  if (next != layers) return Bad(name, "the run's ", layers, " layers, got ", next);
  return absl::OkStatus();
}

void AddOnce(std::vector<int>& sorted, int value) {
  const auto at = std::ranges::lower_bound(sorted, value);
  if (at == sorted.end() || *at != value) sorted.insert(at, value);
}

// `width N shards`: the schedule has each stage gathered where it is used, and one copy of the weights.
absl::Status CheckShards(const plan::PipelineSchedule& schedule, const std::string& name) {
  if (schedule.copies > 1) return Bad(name, "one copy of the weights with width N shards, got ", schedule.copies);
  std::set<int> gathered;
  for (const std::vector<plan::ScheduleStep>& list : schedule.lists) {
    for (const plan::ScheduleStep& step : list) {
      if (step.first.kind == plan::OperationKind::kGather) gathered.insert(step.first.stage);
    }
  }
  for (int s = 0; s < schedule.stages; ++s) {
    if (!gathered.contains(s)) {
      return Bad(
          name, "with width N shards a schedule that gathers each stage (G, R), as zeropp does, got none of stage ", s);
    }
  }
  return absl::OkStatus();
}

// Assigns tensor by tensor, the largest of a stage first, to the rank that has the least of it.
std::vector<int> OwnersOf(const PipelinePlaces& places) {
  const size_t size = places.manifest.size();
  std::vector<int> owner(size + 1, -1);  // the last is the tied head's gradient
  for (const std::vector<int>& stage : places.stages) {
    std::vector<size_t> tensors;
    for (const int gradient : stage) tensors.push_back(static_cast<size_t>(gradient) % size);
    const auto values = [&](size_t tensor) { return places.manifest[tensor].NumValues(); };
    std::ranges::stable_sort(tensors, [&](size_t a, size_t b) { return values(a) > values(b); });
    std::vector<int64_t> loads(static_cast<size_t>(places.width));
    for (const size_t tensor : tensors) {
      int& of = owner[tensor];
      if (of < 0) of = static_cast<int>(std::ranges::min_element(loads) - loads.begin());
      loads[static_cast<size_t>(of)] += values(tensor);
    }
  }
  owner[size] = owner[0];
  return owner;
}

}  // namespace

StageRange RangeOf(const plan::StageLayers& layers) {
  return {.first = layers.first, .last = layers.last, .embedding = layers.embedding, .head = layers.head};
}

std::vector<plan::StageLayers> EvenSplit(int layers, int stages) {
  std::vector<plan::StageLayers> split;
  for (int s = 0, next = 0; s < stages; ++s) {
    const int count = layers / stages + (s < layers % stages ? 1 : 0);
    split.push_back({.first = next, .last = next + count - 1, .embedding = s == 0, .head = s + 1 == stages});
    next += count;
  }
  return split;
}

plan::PipelineFile OneStageProgram(const core::LlamaConfig& config, int64_t micro_batches, int width) {
  return {.schedule = *plan::Generate("1f1b", {.devices = 1, .micro_batches = static_cast<int>(micro_batches)}),
          .width = width,
          .split = EvenSplit(static_cast<int>(config.num_hidden_layers), 1)};
}

absl::StatusOr<plan::PipelineFile> FitPipeline(plan::PipelineFile file, const std::string& name,
                                               const core::RunConfig& config, int world) {
  const plan::PipelineSchedule& schedule = file.schedule;
  if (config.model_kind != core::ModelKind::kLlama) return Bad(name, "a run of model.kind llama, got another");
  if (config.inner.optimizer == core::InnerOptimizerKind::kOnebitAdam) {
    return Bad(name, "inner.optimizer adamw or sgd, got onebit_adam, which averages momenta of whole models");
  }
  if (const absl::Status valid = CheckPipeline(schedule); !valid.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--pipeline: ", name, ": ", valid.message()));
  }
  if (world != schedule.devices * file.width) {
    return Bad(name, schedule.devices * file.width, " ranks, ", file.width, " for each of ", schedule.devices,
               " devices, got ", world);
  }
  if (config.inner.micro_batches != schedule.micro_batches) {
    return Bad(name, "inner.micro_batches of the run, ", config.inner.micro_batches, ", got ", schedule.micro_batches);
  }
  if (file.shards && file.width > 1) RETURN_IF_ERROR(CheckShards(schedule, name));
  const int64_t layers = config.llama.num_hidden_layers;
  if (layers < schedule.stages) {
    return Bad(name, "at most ", layers, " stages, one for each layer of the run, got ", schedule.stages);
  }
  if (file.split.empty()) file.split = EvenSplit(static_cast<int>(layers), schedule.stages);
  RETURN_IF_ERROR(CheckSplit(file, name, layers));
  for (int s = 0; s < schedule.stages; ++s) {
    std::set<int> devices;
    for (const std::vector<int>& copy : schedule.place) {
      const int device = copy[static_cast<size_t>(s)];
      if (!devices.insert(device).second)
        return Bad(name, "copies of stage ", s, " on devices of their own, got both on ", device);
    }
  }
  for (const std::vector<int>& held : PlacesOf(file, config.llama).held) {
    if (held.empty())
      return Bad(name, "a tensor for each of a device's ranks, got fewer for width ", file.width, " shards");
  }
  return file;
}

core::Manifest HeldManifest(const PipelinePlaces& places, int rank) {
  core::Manifest held;
  for (const int tensor : places.held[static_cast<size_t>(rank)]) {
    held.push_back(places.manifest[static_cast<size_t>(tensor)]);
  }
  return held;
}

std::vector<int64_t> HeldFirsts(const PipelinePlaces& places, int rank) {
  std::vector<int64_t> firsts(places.manifest.size() + 1);
  const std::vector<int>& held = places.held[static_cast<size_t>(rank)];
  for (size_t i = 0, at = 0; i < places.manifest.size(); ++i) {
    const bool here = at < held.size() && held[at] == static_cast<int>(i);
    firsts[i + 1] = firsts[i] + (here ? places.manifest[i].NumValues() : 0);
    at += here ? 1 : 0;
  }
  return firsts;
}

PipelinePlaces PlacesOf(const plan::PipelineFile& file, const core::LlamaConfig& config) {
  PipelinePlaces places{.manifest = core::LlamaManifest(config), .width = file.width};
  const auto size = static_cast<int>(places.manifest.size());
  std::vector<std::vector<int>> tensors;  // of each stage
  for (const plan::StageLayers& layers : file.split) {
    const LlamaStage stage(config, 1, 1, RangeOf(layers));
    tensors.push_back(stage.tensors());
    std::vector<int>& gradients = places.stages.emplace_back(tensors.back());
    if (!config.tie_word_embeddings || !layers.head) continue;
    if (!layers.embedding) std::erase(gradients, 0);
    gradients.push_back(size);
  }
  places.owner = OwnersOf(places);
  places.ranks.resize(places.manifest.size());
  places.held.resize(static_cast<size_t>(file.schedule.devices * file.width));
  for (const std::vector<int>& copy : file.schedule.place) {
    for (size_t s = 0; s < copy.size(); ++s) {
      for (const int tensor : tensors[s]) {
        const auto at = static_cast<size_t>(tensor);
        for (int j = 0; j < file.width; ++j) {
          if (file.shards && j != places.owner[at]) continue;
          const int rank = copy[s] * file.width + j;
          AddOnce(places.ranks[at], rank);
          AddOnce(places.held[static_cast<size_t>(rank)], tensor);
        }
      }
      if (!config.tie_word_embeddings) continue;
      if (file.split[s].embedding) AddOnce(places.embedding_devices, copy[s]);
      if (file.split[s].head) AddOnce(places.head_devices, copy[s]);
    }
  }
  return places;
}

}  // namespace causeway::worker
