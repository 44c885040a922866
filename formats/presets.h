// Presets: `preset: slow-link` in a run.yaml stands for the keys that a link and a model call for together
// (docs/codecs.md). A key that the file gives overrules. A run stores the keys, and never the preset. Pure.
#pragma once

#include <string>

#include "causeway/v1/run_config.pb.h"
#include "formats/field_check.h"

namespace causeway::formats {

extern const char kPresetNames[];  // "balanced | …"

// Replaces the message's preset, if it has one, by what that stands for. Mistakes go into `check`.
void ApplyPreset(v1::RunConfig& message, FieldCheck& check);

// "preset slow-link: codec.up=rotated_sign, …, but for the keys that the file gives"; empty: the text of a run.yaml has
// none, or one that is not known.
std::string PresetNote(const std::string& run_yaml);

}  // namespace causeway::formats
