#include "formats/run_config_check.h"

#include "absl/strings/str_cat.h"
#include "core/fragment_map.h"
#include "core/model_manifest.h"
#include "formats/steps_check.h"

namespace causeway::formats {
namespace {

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

}  // namespace

void CheckSections(const core::RunConfig& config, FieldCheck& check) {
  CheckBatchBySite(config, check);
  CheckSequenceLength(config, check);
  CheckFreezeAt(config, check);
  CheckFragmentsFit(config, check);
  CheckSteps(config, check);
}

}  // namespace causeway::formats
