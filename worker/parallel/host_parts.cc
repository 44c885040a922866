#include "worker/parallel/host_parts.h"

#include <spdlog/spdlog.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/check.h"
#include "formats/yaml_message.h"
#include "worker/optimizer/host_optimizer.h"
#include "worker/parallel/held_tensors.h"
#include "worker/parallel/llama_stages.h"
#include "worker/parallel/pipeline_place.h"
#include "worker/parallel/stage_shards.h"

namespace causeway::worker {
namespace {

absl::StatusOr<core::LinkLevels> ReadLevels(const std::string& path, int world) {
  if (path.empty()) return core::LinkLevels{.site = {{.name = "site", .of = world}}, .wan = {}};
  ASSIGN_OR_RETURN(core::LinkLevels levels, formats::ReadLevelsYaml(path));
  if (levels.ranks() == world) return levels;
  return absl::InvalidArgumentError(
      absl::StrCat("--levels: ", path, ": expected levels of the site's ", world, " ranks, got ", levels.ranks()));
}

void Log(const Partition& partition) {
  spdlog::info("partition: weights over {}, gradients over {}, optimizer over {}; sums go up {}",
               plan::LevelName(partition.levels, partition.at.weights),
               plan::LevelName(partition.levels, partition.at.gradients),
               plan::LevelName(partition.levels, partition.at.optimizer),
               absl::StrJoin(partition.levels.site, ", ", [](std::string* out, const core::LinkLevel& level) {
                 absl::StrAppend(out, level.name, " of ", level.of);
               }));
}

absl::StatusOr<std::unique_ptr<ShardedTensors>> TensorsOf(const core::RunConfig& config, const TrainerRanks& ranks,
                                                          const plan::PipelineFile& file,
                                                          const std::optional<Partition>& partition) {
  if (partition) {
    Log(*partition);
    return LevelShards::Open(config, partition->levels, partition->at, ranks);
  }
  PipelinePlaces places = PlacesOf(file, config.llama);
  return file.shards ? StageShards::Open(file, std::move(places), ranks)
                     : HeldTensors::Open(file, std::move(places), ranks);
}

}  // namespace

absl::StatusOr<std::optional<Partition>> ReadPartition(const core::RunConfig& config, const TrainerFiles& files) {
  if (!config.inner.partition || !files.pipeline_path.empty() || files.ranks.values == nullptr) return std::nullopt;
  if (config.inner.optimizer == core::InnerOptimizerKind::kOnebitAdam) {
    return absl::InvalidArgumentError(
        "inner.partition: expected none with inner.optimizer: onebit_adam, which averages momenta of whole models");
  }
  Partition partition;
  ASSIGN_OR_RETURN(partition.levels, ReadLevels(files.levels_path, files.ranks.world()));
  partition.at = ResolvePartition(*config.inner.partition, partition.levels);
  return partition;
}

absl::StatusOr<RankParts> OpenHostParts(const core::RunConfig& config, const StagesRequest& request,
                                        const std::optional<Partition>& partition, const TrainerRanks& ranks,
                                        const std::string& calibration_path, offload::BusSchedule& bus) {
  RankParts parts;
  ASSIGN_OR_RETURN(parts.tensors, TensorsOf(config, ranks, request.file, partition));
  OwnTensors& own = parts.tensors->own();
  auto optimizer =
      std::make_unique<HostOptimizer>(config, own.manifest, own.weights, own.gradients, bus, calibration_path, ranks);
  if (!parts.tensors->HoldsWholeTensors(ranks.rank())) {
    std::vector<int64_t> firsts;
    for (const Piece& piece : parts.tensors->own_pieces(ranks.rank())) {
      firsts.push_back(piece.tensor < 0 ? -1 : piece.first);
    }
    optimizer->HoldParts(std::move(firsts));
  }
  parts.optimizer = std::move(optimizer);
  parts.stages = std::make_unique<LlamaStages>(request, *parts.tensors);
  return parts;
}

}  // namespace causeway::worker
