#include "formats/run_config_message.h"

#include "absl/strings/str_cat.h"
#include "core/fragment_map.h"
#include "core/model_manifest.h"
#include "core/run_config.h"
#include "formats/field_check.h"
#include "formats/message_fields.h"
#include "formats/run_fields.h"
#include "formats/steps_check.h"

namespace causeway::formats {
namespace {

// The checks of several sections of a run's config together, once each is right by itself.

using core::ModelKind;

constexpr int kTensorsPerLlamaLayer = 9;

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

// No fragment may be empty (core::BuildFragmentMap): with too few layers or tensors the run could never start.
void CheckFragmentsFit(const core::RunConfig& config, FieldCheck& check) {
  if (config.model_kind == ModelKind::kExternal) return;  // its tensors are known when a site joins
  if (!config.sync.fragments.empty()) {
    check.Ok("sync.fragments", core::BuildFragmentMap(core::ModelManifest(config), config.sync).status());
    return;
  }
  const bool balanced = config.sync.fragment_assignment == core::FragmentAssignment::kBalanced;
  int64_t most = static_cast<int64_t>(config.synthetic.tensors.size());
  std::string reason = "the model's tensors";
  if (config.model_kind == ModelKind::kLlama && balanced) {
    const int head = config.llama.tie_word_embeddings ? 0 : 1;
    most = config.llama.num_hidden_layers * kTensorsPerLlamaLayer + 2 + head;
  } else if (config.model_kind == ModelKind::kLlama) {
    most = config.llama.num_hidden_layers + 1;
    reason = "num_hidden_layers, and one for embeddings and head";
  }
  check.Integer("sync.num_fragments", config.sync.num_fragments, 1, most, reason);
  if (config.sync.parts == 1 || !check.status().ok()) return;
  check.Ok("sync.parts", core::BuildFragmentMap(core::ModelManifest(config), config.sync).status());
}

void CheckSections(const core::RunConfig& config, FieldCheck& check) {
  CheckBatchBySite(config, check);
  CheckSequenceLength(config, check);
  CheckFreezeAt(config, check);
  CheckFragmentsFit(config, check);
  CheckSteps(config, check);
}

using core::ModelKind;

// The keys of a section that were given.
std::vector<const google::protobuf::FieldDescriptor*> GivenKeys(const google::protobuf::Message& section) {
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  section.GetReflection()->ListFields(section, &fields);
  return fields;
}

// Keys of another kind of model would be ignored, so they are refused.
void CheckKeysOfKind(const v1::RunConfig& given, ModelKind kind, FieldCheck& check) {
  const std::string got = absl::StrCat("it with kind ", NameOf(kind, kModelKinds));
  for (const auto* field : GivenKeys(given.model())) {
    if (field->number() == v1::Model::kKindFieldNumber) continue;
    const bool of_llama =
        field->number() <= v1::Model::kInitFromFieldNumber || field->number() == v1::Model::kRopeScalingFieldNumber;
    const ModelKind owner = of_llama ? ModelKind::kLlama : ModelKind::kSynthetic;
    check.Expect(owner == kind, absl::StrCat("model.", field->name()),
                 absl::StrCat("it only with kind ", NameOf(owner, kModelKinds)), got);
  }
  if (kind != ModelKind::kExternal) return;
  for (const auto* field : GivenKeys(given.inner())) {
    check.Expect(false, absl::StrCat("inner.", field->name()), "no such key: the sites' scripts own their optimizer",
                 got);
  }
}

}  // namespace

absl::StatusOr<core::RunConfig> RunConfigFromMessage(const v1::RunConfig& given, FieldCheck& check) {
  core::RunConfig config;
  if (given.model().has_kind()) config.model_kind = check.OneOf("model.kind", given.model().kind(), kModelKinds);
  if (check.HasMistakeAt("model.kind")) return check.status();  // it decides which keys there are

  if (config.model_kind == ModelKind::kSynthetic) config.values.gate = 0;  // run.yaml gives its gradients
  CheckKeysOfKind(given, config.model_kind, check);
  MessageReader reader(given, check);
  RunFields(config, reader);
  RETURN_IF_ERROR(check.status());
  CheckSections(config, check);
  RETURN_IF_ERROR(check.status());
  return config;
}

v1::RunConfig RunConfigToMessage(const core::RunConfig& config) {
  v1::RunConfig message;
  MessageWriter writer(&message);
  core::RunConfig visited = config;
  RunFields(visited, writer);
  return message;
}

}  // namespace causeway::formats
