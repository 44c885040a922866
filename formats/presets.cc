#include "formats/presets.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/check.h"
#include "formats/config_names.h"
#include "formats/yaml_message.h"

namespace causeway::formats {
namespace {

struct Preset {
  const char* name;
  std::vector<std::pair<const char*, const char*>> keys;  // "outer.lr", "0.7"
};

const std::vector<Preset>& Presets() {
  static const auto* const kPresets = new std::vector<Preset>{
      {"balanced",
       {{"codec.up", "int4"},
        {"codec.down", "int4"},
        {"codec.feedback_up", "1"},
        {"codec.feedback_down", "1"},
        {"outer.lr", "0.7"},
        {"outer.momentum", "0.9"},
        {"sync.sync_every", "30"}}},
      {"slow-link",
       {{"codec.up", "rotated_sign"},
        {"codec.down", "rotated_sign"},
        {"codec.feedback_up", "0"},
        {"codec.feedback_down", "0"},
        {"outer.lr", "0.7"},
        {"outer.momentum", "0.9"},
        {"outer.codec_gain", "true"},
        {"sync.sync_every", "30"}}},
      {"sparse",
       {{"codec.up", "topk"},
        {"codec.down", "sparse"},
        {"codec.feedback_up", "0.95"},
        {"codec.feedback_down", "1"},
        {"outer.optimizer", "sgd"},
        {"outer.lr", "1"},
        {"sync.sync_every", "30"}}},
      {"float32",
       {{"codec.up", "float32"},
        {"codec.down", "float32"},
        {"codec.feedback_up", "0"},
        {"codec.feedback_down", "0"},
        {"outer.lr", "0.7"},
        {"outer.momentum", "0.9"},
        {"sync.sync_every", "30"}}},
  };
  return *kPresets;
}

const Preset* Find(const std::string& name) {
  const auto found = std::ranges::find(Presets(), name, [](const Preset& preset) { return std::string(preset.name); });
  return found == Presets().end() ? nullptr : &*found;
}

}  // namespace

const char kPresetNames[] = "balanced | slow-link | sparse | float32";

void ApplyPreset(v1::RunConfig& message, FieldCheck& check) {
  if (!message.has_preset()) return;
  const Preset* const preset = Find(message.preset());
  check.Expect(preset != nullptr, "preset", kPresetNames, message.preset());
  if (preset == nullptr) return;
  v1::RunConfig whole;
  for (const auto& [key, value] : preset->keys) {
    Origin origin{.file = preset->name};
    FieldCheck own(origin);
    ReadYamlMessage(YamlOf(key, value), origin, whole, own);
    CHECK(own.status().ok());
  }
  if (message.outer().optimizer() == kSgd) whole.mutable_outer()->clear_momentum();
  if (message.outer().has_momentum()) whole.mutable_outer()->clear_optimizer();
  whole.MergeFrom(message);
  whole.clear_preset();
  message = std::move(whole);
}

std::string PresetNote(const std::string& run_yaml) {
  v1::RunConfig message;
  Origin origin{.file = "run.yaml"};
  FieldCheck check(origin);
  ReadYamlMessage(run_yaml, origin, message, check);
  const Preset* const preset = Find(message.preset());
  if (preset == nullptr) return "";
  const std::string keys = absl::StrJoin(preset->keys, ", ", absl::PairFormatter("="));
  return absl::StrCat("preset ", preset->name, ": ", keys, ", but for the keys that the file gives");
}

}  // namespace causeway::formats
