#include "ctl/partition_command.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/check.h"
#include "formats/yaml_message.h"

ABSL_DECLARE_FLAG(std::string, levels);
ABSL_FLAG(std::optional<double>, parameters, std::nullopt, "plan partition: how many, like 1e9");
ABSL_DECLARE_FLAG(int, micro_batches);
ABSL_DECLARE_FLAG(double, memory_gb);
ABSL_DECLARE_FLAG(std::string, codec);
ABSL_FLAG(int, sync_every, 100, "plan partition: steps between two reductions over the WAN");
ABSL_FLAG(std::string, value_type, "bfloat16",
          "plan partition: bfloat16 (weights 2 bytes, gradients 2, optimizer 12) or float32 (4, 4, 8)");
ABSL_FLAG(std::string, weights, "",
          "plan partition: the level over which weights are divided, or rank; without: all known strategies");
ABSL_FLAG(std::string, gradients, "rank", "plan partition, with --weights: the level of gradients");
ABSL_FLAG(std::string, optimizer, "rank", "plan partition, with --weights: the level of the optimizer's state");
ABSL_FLAG(bool, flat, false,
          "plan partition: count a group's bytes to the slowest level that it spans, not level by level");

namespace causeway::ctl {
namespace {

constexpr double kGb = 1e9;
constexpr double kMostParameters = 1e15;
constexpr int kMostMicroBatchesOfAStep = 1'000'000;

template <typename... Parts>
absl::Status BadPartitionFlag(const char* flag, const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("plan partition: --", flag, ": expected ", parts...));
}

bool Fits(const PartitionQuestion& question, const plan::PartitionPlan& plan) {
  return question.memory_bytes == 0 || plan.memory_bytes() <= question.memory_bytes;
}

absl::StatusOr<int> LevelFlag(const core::LinkLevels& levels, const char* flag, const std::string& name) {
  const absl::StatusOr<int> level = plan::LevelOf(levels, name);
  if (level.ok()) return level;
  return absl::InvalidArgumentError(absl::StrCat("plan partition: --", flag, ": ", level.status().message()));
}

absl::StatusOr<PartitionQuestion> ReadQuestion() {
  PartitionQuestion question;
  const std::string path = absl::GetFlag(FLAGS_levels);
  if (path.empty()) return BadPartitionFlag("levels", "a file of link levels, such as deploy/levels.yaml, got none");
  ASSIGN_OR_RETURN(question.input.levels, formats::ReadLevelsYaml(path));
  question.input.parameters = absl::GetFlag(FLAGS_parameters).value_or(0);
  if (!(question.input.parameters >= 1 && question.input.parameters <= kMostParameters)) {
    return BadPartitionFlag("parameters", "1 to 1e15, got ", question.input.parameters);
  }
  const std::string type = absl::GetFlag(FLAGS_value_type);
  if (type != "bfloat16" && type != "float32") return BadPartitionFlag("value_type", "bfloat16 or float32, got ", type);
  question.input.bytes = type == "float32" ? plan::ValueBytes::Float32() : plan::ValueBytes::Bfloat16();
  question.micro_batches = std::max(1, absl::GetFlag(FLAGS_micro_batches));
  if (question.micro_batches > kMostMicroBatchesOfAStep) {
    return BadPartitionFlag("micro_batches", "1 to ", kMostMicroBatchesOfAStep, ", got ", question.micro_batches);
  }
  const double gb = absl::GetFlag(FLAGS_memory_gb);
  if (!(gb >= 0 && gb < 1e9)) return BadPartitionFlag("memory_gb", "0 or more, got ", gb);
  question.memory_bytes = kGb * gb;
  question.flat = absl::GetFlag(FLAGS_flat);
  const std::string name = absl::GetFlag(FLAGS_codec).empty() ? "int4" : absl::GetFlag(FLAGS_codec);
  const std::optional<core::CodecId> codec = core::CodecFromName(name);
  if (!codec) return BadPartitionFlag("codec", "one of ", core::AllCodecNames(), ", got '", name, "'");
  const int every = absl::GetFlag(FLAGS_sync_every);
  if (every < 1) return BadPartitionFlag("sync_every", "1 or more steps, got ", every);
  question.wan = {plan::WanBytes(question.input.parameters, *codec) / every,
                  absl::StrCat(name, ", sync_every ", every)};
  return question;
}

}  // namespace

std::string PartitionText(const PartitionQuestion& question, const std::vector<plan::PartitionPlan>& plans) {
  const core::LinkLevels& levels = question.input.levels;
  std::string text =
      absl::StrFormat("%d ranks, %.4g parameters; GB that a rank holds, and receives in a micro-batch | ",
                      levels.ranks(), question.input.parameters);
  absl::StrAppendFormat(&text, "a step at each level (%s); %d micro-batches a step\n",
                        question.flat ? "flat" : "hierarchical", question.micro_batches);
  absl::StrAppendFormat(&text, "%-14s %-22s %9s", "strategy", "weights/grad./optim.", "holds");
  if (question.memory_bytes > 0) absl::StrAppendFormat(&text, " %9s", "free");
  for (const core::LinkLevel& level : levels.site) absl::StrAppendFormat(&text, " %19s", level.name);
  absl::StrAppendFormat(&text, " %10s\n", "links s");
  for (const plan::PartitionPlan& plan : plans) {
    const plan::PartitionStrategy& s = plan.strategy;
    absl::StrAppendFormat(&text, "%-14s %-22s %9.3f", s.name,
                          absl::StrCat(plan::LevelName(levels, s.weights), "/", plan::LevelName(levels, s.gradients),
                                       "/", plan::LevelName(levels, s.optimizer)),
                          plan.memory_bytes() / kGb);
    if (question.memory_bytes > 0) {
      const double left = (question.memory_bytes - plan.memory_bytes()) / kGb;
      absl::StrAppend(&text, left < 0 ? "  does not" : absl::StrFormat(" %9.3f", left));
    }
    for (const plan::LevelBytes& bytes : plan.Counted(question.flat)) {
      absl::StrAppendFormat(&text, " %8.3f | %8.3f", bytes.micro_batch / kGb, bytes.step / kGb);
    }
    absl::StrAppendFormat(&text, " %10.4f\n", plan.LinkSeconds(levels, question.micro_batches, question.flat));
  }
  absl::StrAppendFormat(&text, "the WAN adds %.4g GB a step for a site, each way (%s)",
                        question.wan.bytes_per_step / kGb, question.wan.words);
  if (levels.wan) {
    absl::StrAppendFormat(&text, ": %.4g s of %s's %.4g Mbit/s", question.wan.bytes_per_step / levels.wan->bytes_per_s,
                          levels.wan->name, 8e-6 * levels.wan->bytes_per_s);
  }
  return text + "\n";
}

std::string PartitionJson(const PartitionQuestion& question, const std::vector<plan::PartitionPlan>& plans) {
  const core::LinkLevels& levels = question.input.levels;
  std::string text;
  for (const plan::PartitionPlan& plan : plans) {
    const plan::PartitionStrategy& s = plan.strategy;
    nlohmann::ordered_json row{{"strategy", s.name},
                               {"weights", plan::LevelName(levels, s.weights)},
                               {"gradients", plan::LevelName(levels, s.gradients)},
                               {"optimizer", plan::LevelName(levels, s.optimizer)},
                               {"memory_bytes", plan.memory_bytes()},
                               {"fits", Fits(question, plan)},
                               {"link_s", plan.LinkSeconds(levels, question.micro_batches, question.flat)},
                               {"wan_bytes_per_step", question.wan.bytes_per_step}};
    for (size_t l = 0; l < levels.site.size(); ++l) {
      row["levels"].push_back({{"name", levels.site[l].name},
                               {"flat_micro_batch_bytes", plan.flat[l].micro_batch},
                               {"flat_step_bytes", plan.flat[l].step},
                               {"micro_batch_bytes", plan.hierarchical[l].micro_batch},
                               {"step_bytes", plan.hierarchical[l].step}});
    }
    absl::StrAppend(&text, row.dump(), "\n");
  }
  return text;
}

absl::Status RunPartitionCommand(bool json) {
  ASSIGN_OR_RETURN(const PartitionQuestion question, ReadQuestion());
  const core::LinkLevels& levels = question.input.levels;
  std::vector<plan::PartitionStrategy> strategies = plan::KnownStrategies(levels);
  const bool given = !absl::GetFlag(FLAGS_weights).empty();
  if (given) {
    plan::PartitionStrategy own{.name = "yours"};
    ASSIGN_OR_RETURN(own.weights, LevelFlag(levels, "weights", absl::GetFlag(FLAGS_weights)));
    ASSIGN_OR_RETURN(own.gradients, LevelFlag(levels, "gradients", absl::GetFlag(FLAGS_gradients)));
    ASSIGN_OR_RETURN(own.optimizer, LevelFlag(levels, "optimizer", absl::GetFlag(FLAGS_optimizer)));
    strategies = {own};
  }
  std::vector<plan::PartitionPlan> plans;
  for (const plan::PartitionStrategy& strategy : strategies) {
    const absl::StatusOr<plan::PartitionPlan> plan = PlanPartition(question.input, strategy);
    if (!plan.ok()) return absl::InvalidArgumentError(absl::StrCat("plan partition: ", plan.status().message()));
    if (given && !Fits(question, *plan)) {
      return BadPartitionFlag("memory_gb",
                              absl::StrFormat("%.4g, which this strategy needs", plan->memory_bytes() / kGb), ", got ",
                              question.memory_bytes / kGb);
    }
    plans.push_back(*plan);
  }
  std::ranges::stable_partition(plans, [&](const plan::PartitionPlan& plan) { return Fits(question, plan); });
  std::printf("%s", (json ? PartitionJson(question, plans) : PartitionText(question, plans)).c_str());
  return absl::OkStatus();
}

}  // namespace causeway::ctl
