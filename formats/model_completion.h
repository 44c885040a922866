// The model of a run that starts from a Hugging Face folder: its architecture is in that folder's config.json, so that
// run.yaml need not repeat it.
//
//   model: {kind: llama, init_from: DIR} ─┐
//                                         ├─► every key of the architecture, as if run.yaml had them
//   DIR/config.json, or the stored run ───┘
//
// Done by the coordinator when the run is created: it needs only config.json of DIR. The weights are needed at the
// first site, and a continued run needs neither.
#pragma once

#include "absl/status/status.h"
#include "causeway/v1/run_config.pb.h"
#include "formats/field_check.h"

namespace causeway::formats {

// Does nothing without init_from. INVALID_ARGUMENT for a key that is given and differs from config.json (a smaller
// max_position_embeddings is the same model), for a config.json of a model that cannot be trained here, and where
// neither run.yaml nor a config.json that can be read has the architecture.
absl::Status CompleteModel(const Origin& origin, v1::Model& model);

}  // namespace causeway::formats
