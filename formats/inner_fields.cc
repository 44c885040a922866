#include "formats/run_fields.h"

namespace causeway::formats {
namespace {

using enum Holds;
using enum Set;

void CheckBatchBySite(const core::InnerConfig& inner, const Fields& fields, FieldCheck& check) {
  for (const auto& [site, rows] : inner.batch_by_site) {
    const std::string path = fields.Path(absl::StrCat("batch_by_site.", site));
    check.Expect(core::IsValidName(site), path, kSiteName, site);
    check.Integer(path, rows, 1, kMaxWidth);
  }
  check.Expect(inner.batch_by_site.empty() || inner.batch_per_rank == 0, fields.Path("batch_per_rank"),
               "none beside inner.batch_by_site", absl::StrCat(inner.batch_per_rank));
}

void CheckFreezeAt(const core::InnerConfig& inner, const Fields& fields, FieldCheck& check) {
  if (inner.freeze_at == core::kAutoFreeze) return;
  check.Expect(inner.optimizer == core::InnerOptimizerKind::kOnebitAdam, fields.Path("freeze_at"),
               "none without inner.optimizer: onebit_adam", absl::StrCat(inner.freeze_at));
  check.Integer(fields.Path("freeze_at"), inner.freeze_at, 1, kMaxSteps, "or auto");
}

void PartitionFields(core::PartitionConfig& partition, bool onebit_adam, Fields& fields) {
  const auto level = [&](const Key& key, std::string* name) {
    fields.Any(key, name, "a link level's name, rank or site");
    if (!fields.Reads()) return;
    if (name->empty()) *name = "rank";
    fields.check()->Expect(core::IsValidName(*name), fields.Path(key.name), "the name of a link level, rank or site",
                           absl::StrCat("'", *name, "'"));
  };
  if (fields.Reads()) {
    fields.check()->Expect(!onebit_adam, "inner.partition",
                           "none with inner.optimizer: onebit_adam, which averages momenta of whole models",
                           "partition");
  }
  level({"weights", kFixed, "the link level over which ranks divide them"}, &partition.weights);
  level({"gradients", kFixed, "the same"}, &partition.gradients);
  level({"optimizer", kFixed, "the same of its state"}, &partition.optimizer);
}

}  // namespace

void InnerFields(core::InnerConfig& inner, Fields& fields) {
  fields.OneOf({"optimizer", kFixed, "inside each site"}, &inner.optimizer, kInnerOptimizers);
  fields.NotNegative({"lr", kByStep, "its learning rate"}, &inner.lr);
  fields.Integer({"warmup_steps", kByStep, "lr rises linearly over these"}, &inner.warmup_steps, 0, kMaxSteps);
  fields.OneOf({"schedule", kByStep, "cosine: to a tenth of lr at the run's end"}, &inner.schedule, kInnerSchedules);
  fields.ShareBelowOne({"beta1", kByStep, "decay of the mean of gradients; not sgd", kNotYet}, &inner.beta1);
  fields.ShareBelowOne({"beta2", kByStep, "decay of the mean of their squares; not sgd", kNotYet}, &inner.beta2);
  fields.NotNegative({"weight_decay", kByStep, "share of a parameter, times lr, that a step takes away", kNotYet},
                     &inner.weight_decay);
  fields.NotNegative({"clip", kByStep, "largest norm of a gradient; 0: off", kNotYet}, &inner.clip);
  fields.Integer({"batch_size", kByStep, "sequences in a step of one site, which its ranks share", kNotYet},
                 &inner.batch_size, 1, kMaxWidth);
  fields.Integer({"sequence_length", kFixed, "tokens of a training row; 0: max_position_embeddings"},
                 &inner.sequence_length, 0, kMaxWidth);
  fields.Integer(
      {"batch_per_rank", kByStep, "sequences in a step of each rank, in place of batch_size; 0: off", kNotYet},
      &inner.batch_per_rank, 0, kMaxWidth);
  fields.Any({"freeze_at", kByStep, "onebit_adam: the step after which the variance stays; auto: once it has settled",
              kNotYet},
             AutoInteger{&inner.freeze_at}, "auto | 1 or more");
  fields.Any({"micro_batches", kFixed, "parts of a rank's sequences of a step, whose gradients add up"},
             &inner.micro_batches, "1 or more");
  const bool onebit_adam = inner.optimizer == core::InnerOptimizerKind::kOnebitAdam;
  fields.OptionalSection("partition", &inner.partition,
                         [&](core::PartitionConfig& partition) { PartitionFields(partition, onebit_adam, fields); });
  fields.Any({"batch_by_site", kByStep, "sequences in a step of named sites; the others have batch_size", kNotYet},
             &inner.batch_by_site, "integers by site");
  FieldCheck* const check = fields.check();
  if (check == nullptr) return;
  if (inner.micro_batches == 0) inner.micro_batches = 1;
  inner.micro_batches = check->Integer(fields.Path("micro_batches"), inner.micro_batches, 1, kMaxWidth);
  CheckBatchBySite(inner, fields, *check);
  CheckFreezeAt(inner, fields, *check);
}

}  // namespace causeway::formats
