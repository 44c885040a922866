// A model in the form in which models are distributed: a folder with model.safetensors, or with
// model.safetensors.index.json and the shards that it lists. It is what `init_from` names.
#pragma once

#include <span>
#include <string>

#include "absl/status/status.h"
#include "core/manifest.h"

namespace causeway::formats {

// Whether the folder exists and has weights, or an index of them.
bool HasModel(const std::string& dir);

// Reads tensor i of the manifest into tensors[i] (row-major, as many values as its shape), as float32 whatever the file
// has. INVALID_ARGUMENT or NOT_FOUND names the file and the tensor that is missing, has another shape, or is in the
// folder but not in the model: a model that differs would start worse than from its seed, silently. (Rotary
// frequencies, which old checkpoints contain, are derived values and skipped. A model whose head is tied to its
// embedding may be in the folder with both, which are equal then, or with the head alone.)
//
// `model` has all tensors of the model where the manifest is that of one rank, which holds a part of them.
absl::Status ReadModelDirectory(const std::string& dir, const core::Manifest& manifest,
                                std::span<const std::span<float>> tensors, const core::Manifest& model = {});

}  // namespace causeway::formats
