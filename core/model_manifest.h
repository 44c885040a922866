// The manifest of a run's model, derived from its config alone: a site declares it when it joins, a planner counts it.
//
//   RunConfig.llama      embedding, nine tensors for each layer, final norm, and the head unless it is tied
//   RunConfig.synthetic  its tensors in their order; tensor i counts as layer i
//
// Names and shapes of a Llama are those of Hugging Face's LlamaForCausalLM. Pure, thread-safe.
#pragma once

#include "core/manifest.h"
#include "core/run_config.h"

namespace causeway::core {

// Each layer has q, k, v and o projections, gate, up and down projections, and the norms before attention and before
// the MLP.
Manifest LlamaManifest(const LlamaConfig& config);
Manifest SyntheticManifest(const SyntheticConfig& config);

// The manifest of the run's model. REQUIRES: its kind is not external, whose manifest the sites bring.
Manifest ModelManifest(const RunConfig& config);

}  // namespace causeway::core
