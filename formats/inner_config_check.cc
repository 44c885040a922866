#include "formats/inner_config_check.h"

#include <map>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "formats/config_names.h"

namespace causeway::formats {
namespace {

std::map<core::SiteId, int64_t> ReadBatchBySite(const v1::Inner& inner, FieldCheck& check) {
  std::map<core::SiteId, int64_t> rows_of_sites;
  for (const auto& [site, rows] : inner.batch_by_site()) {
    const std::string path = absl::StrCat("inner.batch_by_site.", site);
    check.Expect(core::IsValidName(site), path, kSiteName, site);
    rows_of_sites[site] = check.Integer(path, rows, 1, kMaxWidth);
  }
  check.Expect(rows_of_sites.empty() || inner.batch_per_rank() == 0, "inner.batch_per_rank",
               "none beside inner.batch_by_site", absl::StrCat(inner.batch_per_rank()));
  return rows_of_sites;
}

int64_t ReadFreezeAt(const v1::Inner& inner, FieldCheck& check) {
  if (!inner.has_freeze_at() || inner.freeze_at() == core::kAutoFreeze) return core::kAutoFreeze;
  check.Expect(inner.optimizer() == "onebit_adam", "inner.freeze_at", "none without inner.optimizer: onebit_adam",
               absl::StrCat(inner.freeze_at()));
  return check.Integer("inner.freeze_at", inner.freeze_at(), 1, kMaxSteps, "or auto");
}

std::optional<core::PartitionConfig> ReadPartition(const v1::Inner& inner, FieldCheck& check) {
  if (!inner.has_partition()) return std::nullopt;
  const v1::Partition& partition = inner.partition();
  const auto name = [&](const char* key, const std::string& given) {
    const std::string level = given.empty() ? "rank" : given;
    check.Expect(core::IsValidName(level), absl::StrCat("inner.partition.", key),
                 "the name of a link level, rank or site", absl::StrCat("'", level, "'"));
    return level;
  };
  check.Expect(inner.optimizer() != "onebit_adam", "inner.partition",
               "none with inner.optimizer: onebit_adam, which averages momenta of whole models", "partition");
  return core::PartitionConfig{name("weights", partition.weights()), name("gradients", partition.gradients()),
                               name("optimizer", partition.optimizer())};
}

// Sites of different size count by their tokens, or the small ones would count too much.
void CheckBatchBySite(const core::RunConfig& config, FieldCheck& check) {
  if (config.membership.weights != core::WeightRule::kUniform || config.inner.batch_by_site.empty()) return;
  const auto& [site, rows] = *config.inner.batch_by_site.begin();
  check.Expect(false, absl::StrCat("inner.batch_by_site.", site), "membership.weights: tokens with it",
               absl::StrCat(rows, " rows with membership.weights: uniform"));
}

// The length of a training row, which only a Llama has.
void CheckSequenceLength(const core::RunConfig& config, FieldCheck& check) {
  const bool llama = config.model_kind == core::ModelKind::kLlama;
  check.Integer("inner.sequence_length", config.inner.sequence_length, 0,
                llama ? config.llama.max_position_embeddings : 0,
                llama ? "at most max_position_embeddings" : "a key of kind llama");
}

// While the rate grows, so do the gradients' squares: frozen before, the variance is too small for every later step.
void CheckFreezeAt(const core::RunConfig& config, FieldCheck& check) {
  const core::InnerConfig& inner = config.inner;
  if (inner.optimizer != core::InnerOptimizerKind::kOnebitAdam || inner.freeze_at == core::kAutoFreeze) return;
  check.Expect(inner.freeze_at >= inner.warmup_steps, "inner.freeze_at",
               absl::StrCat("warmup_steps, ", inner.warmup_steps, ", or more, or auto"), absl::StrCat(inner.freeze_at));
}

}  // namespace

core::InnerConfig ReadInner(const v1::Inner& inner, FieldCheck& check) {
  return {.optimizer = check.OneOf("inner.optimizer", inner.optimizer(), kInnerOptimizers),
          .lr = check.NotNegative("inner.lr", inner.lr()),
          .warmup_steps = check.Integer("inner.warmup_steps", inner.warmup_steps(), 0, kMaxSteps),
          .schedule = check.OneOf("inner.schedule", inner.schedule(), kInnerSchedules),
          .beta1 = check.ShareBelowOne("inner.beta1", inner.beta1()),
          .beta2 = check.ShareBelowOne("inner.beta2", inner.beta2()),
          .weight_decay = check.NotNegative("inner.weight_decay", inner.weight_decay()),
          .freeze_at = ReadFreezeAt(inner, check),
          .clip = check.NotNegative("inner.clip", inner.clip()),
          .batch_size = check.Integer("inner.batch_size", inner.batch_size(), 1, kMaxWidth),
          .batch_by_site = ReadBatchBySite(inner, check),
          .batch_per_rank = check.Integer("inner.batch_per_rank", inner.batch_per_rank(), 0, kMaxWidth),
          .micro_batches = inner.micro_batches() == 0
                               ? 1
                               : check.Integer("inner.micro_batches", inner.micro_batches(), 1, kMaxWidth),
          .sequence_length = check.Integer("inner.sequence_length", inner.sequence_length(), 0, kMaxWidth),
          .partition = ReadPartition(inner, check)};
}

void CheckInnerFits(const core::RunConfig& config, FieldCheck& check) {
  CheckBatchBySite(config, check);
  CheckSequenceLength(config, check);
  CheckFreezeAt(config, check);
}

}  // namespace causeway::formats
