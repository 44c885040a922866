// The settings of a run, row by row (formats/fields.h): every key of run.yaml with its bounds, when a change of it
// holds, and what it says. proto/causeway/v1/run_config.proto has the same names.
#pragma once

#include "formats/fields.h"

namespace causeway::formats {

void RunFields(core::RunConfig& config, Fields& fields);

// The section `model`, but for its kind; and of it a Llama's architecture, also in a config.json.
void ModelFields(core::RunConfig& config, Fields& fields);
void LlamaFields(core::LlamaConfig& llama, Fields& fields);

void InnerFields(core::InnerConfig& inner, Fields& fields);
void SyncFields(core::SyncConfig& sync, Fields& fields);
void CodecFields(core::CodecConfig& codec, core::SyncMode mode, Fields& fields);

}  // namespace causeway::formats
