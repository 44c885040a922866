// The settings of a run, row by row (formats/fields.h): every key of run.yaml with its bounds, when a change of it
// holds, and what it says. proto/causeway/v1/run_config.proto has the same names.
#pragma once

#include "formats/fields.h"

namespace causeway::formats {

void RunFields(core::RunConfig& config, Fields& fields);

// ModelFields: the section `model` except its kind. LlamaFields: a Llama's architecture, also as a config.json has it.
void ModelFields(core::RunConfig& config, Fields& fields);
void LlamaFields(core::LlamaConfig& llama, Fields& fields);

void InnerFields(core::InnerConfig& inner, Fields& fields);
void SyncFields(core::SyncConfig& sync, Fields& fields);
void CodecFields(core::CodecConfig& codec, core::SyncMode mode, Fields& fields);

}  // namespace causeway::formats
