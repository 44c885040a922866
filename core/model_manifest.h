// The manifest that a run's model has, from its config alone: what a site declares when it joins, what a planner
// counts.
//
//   RunConfig.llama      embedding, nine tensors for each layer, final norm, and the head unless it is tied
//   RunConfig.synthetic  its tensors in their order; tensor i counts as layer i
//
// Names and shapes of a Llama are those of Hugging Face's LlamaForCausalLM. Pure, thread-safe.
#pragma once

#include "core/manifest.h"
#include "core/run_config.h"

namespace causeway::core {

// Of each layer: q, k, v and o projections, gate, up and down projections, the norms before attention and before the
// MLP.
Manifest LlamaManifest(const LlamaConfig& config);
Manifest SyntheticManifest(const SyntheticConfig& config);

// Of whichever model the run trains, but an external one: the sites bring its manifest, and the caller has checked.
Manifest ModelManifest(const RunConfig& config);

}  // namespace causeway::core
