#include "formats/run_yaml.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/text_format.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "core/check.h"
#include "core/fragment_map.h"
#include "core/limits.h"
#include "core/model_manifest.h"
#include "formats/config_names.h"
#include "formats/fields.h"
#include "formats/hf_config.h"
#include "formats/named_file.h"
#include "formats/presets.h"
#include "formats/run_config_message.h"
#include "formats/settings.h"
#include "formats/yaml_message.h"

namespace causeway::formats {
namespace {

using google::protobuf::FieldDescriptor;

// The keys of the architecture that the section has.
std::vector<const FieldDescriptor*> ArchitectureOf(const v1::Model& model) {
  std::vector<const FieldDescriptor*> fields;
  model.GetReflection()->ListFields(model, &fields);
  std::erase_if(fields, [](const FieldDescriptor* field) {
    return field->number() == v1::Model::kKindFieldNumber || field->number() == v1::Model::kInitFromFieldNumber;
  });
  return fields;
}

std::string Text(const v1::Model& model, const FieldDescriptor& field) {
  if (!model.GetReflection()->HasField(model, &field)) return "none";
  google::protobuf::TextFormat::Printer printer;
  printer.SetSingleLineMode(true);
  std::string text;
  printer.PrintFieldValueToString(model, &field, -1, &text);
  return std::string(absl::StripSuffix(text, " "));
}

// The section as run.yaml would contain it.
v1::Model SectionOf(const core::LlamaConfig& llama) {
  return RunConfigToMessage({.model_kind = core::ModelKind::kLlama, .llama = llama}).model();
}

using Json = nlohmann::ordered_json;

// Keys of a Hugging Face config.json that people write into the section `model`.
const KeyAdvice& AdviceOnKeys() {
  const std::string kind = absl::StrCat("kind (llama; for other architectures ", kUsePython, ")");
  const std::string float32 =
      "no such key (parameters are float32; a worker's --compute_dtype=bfloat16 computes in fewer bits)";
  static const auto* const kAdvice =
      new KeyAdvice{{"model.model_type", kind},
                    {"model.architectures", kind},
                    {"model.dtype", float32},
                    {"model.torch_dtype", float32},
                    {"model.hidden_act", "no such key (it is silu)"},
                    {"model.head_dim", "no such key (it is hidden_size / num_attention_heads)"}};
  return *kAdvice;
}

// The first key at which two JSON values differ, or nothing. Sections are entered; lists and scalars are compared
// whole.
std::string FirstDifference(const std::string& path, const Json& expected, const Json& got) {
  if (!expected.is_object() || !got.is_object()) {
    return expected == got ? "" : absl::StrCat(path, ": expected ", expected.dump(), ", got ", got.dump());
  }
  Json keys = expected;
  keys.update(got);  // also those that only `got` has
  for (const auto& [key, unused] : keys.items()) {
    const Json none;
    std::string difference = FirstDifference(path.empty() ? key : absl::StrCat(path, ".", key),
                                             expected.value(key, none), got.value(key, none));
    if (!difference.empty()) return difference;
  }
  return "";
}

Json FixedPart(const core::RunConfig& config) {
  Json fixed = ConfigJson(config);
  for (const Setting& setting : Settings()) {
    if (setting.holds == Holds::kFixed) continue;
    const size_t dot = setting.key.find('.');
    if (dot != std::string::npos && fixed.contains(setting.key.substr(0, dot))) {
      fixed[setting.key.substr(0, dot)].erase(setting.key.substr(dot + 1));
    }
  }
  return fixed;
}

}  // namespace

absl::Status CompleteModel(const Origin& origin, v1::Model& model) {
  const bool llama = !model.has_kind() || model.kind() == NameOf(core::ModelKind::kLlama, kModelKinds);
  if (!llama || model.init_from().empty()) return absl::OkStatus();
  const std::vector<const FieldDescriptor*> given = ArchitectureOf(model);
  const std::string path = model.init_from() + "/config.json";
  const absl::StatusOr<core::LlamaConfig> read = ReadHfConfig(path);
  if (absl::IsInvalidArgument(read.status())) return read.status();
  if (!read.ok() && !given.empty()) return absl::OkStatus();
  if (!read.ok()) {
    return FieldError(origin, "model.init_from",
                      "the model's config.json in that folder on this machine (a copy of it alone will do), or "
                      "hidden_size and the other keys of the architecture beside init_from",
                      std::string(read.status().message()));
  }
  const v1::Model expected = SectionOf(*read);
  v1::Model complete = expected;
  complete.MergeFrom(model);
  for (const FieldDescriptor* field : given) {
    const bool is_limit = field->number() == v1::Model::kMaxPositionEmbeddingsFieldNumber;
    if (is_limit && complete.max_position_embeddings() < expected.max_position_embeddings()) continue;
    const std::string wanted = Text(expected, *field), got = Text(complete, *field);
    if (wanted != got) {
      return FieldError(origin, absl::StrCat("model.", field->name()), absl::StrCat(wanted, " as in ", path), got);
    }
  }
  model = complete;
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadRunYamlText(const std::string& path) {
  return ReadTextFile(path, core::kMaxControlMessageBytes);  // it must fit a Welcome
}

absl::StatusOr<core::RunConfig> ReadRunYaml(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadRunYamlText(path));
  return ParseRunYaml(text, path);
}

absl::StatusOr<core::RunConfig> ParseRunYaml(std::string_view text, const std::string& file_name,
                                             const core::RunConfig* stored) {
  Origin origin{.file = file_name};
  v1::RunConfig message;
  FieldCheck check(origin);
  ReadYamlMessage(text, origin, message, check, AdviceOnKeys());
  if (check.HasMistakeAt("")) return check.status();  // nothing was read
  if (const absl::Status model = CompleteModel(origin, *message.mutable_model()); !model.ok()) {
    return check.status().ok() ? model : check.status();
  }
  ApplyPreset(message, check);
  if (!message.data().has_mode()) {
    const core::DataMode mode = stored != nullptr ? stored->data.mode : core::kDataModeOfNewRuns;
    message.mutable_data()->set_mode(NameOf(mode, kDataModes));
  }
  if (!message.outer().has_codec_gain()) {
    message.mutable_outer()->set_codec_gain(stored != nullptr ? stored->codec_gain : core::kCodecGainOfNewRuns);
  }
  if (!message.values().has_clip()) {
    message.mutable_values()->set_clip(stored != nullptr ? stored->values.clip : core::kClipOfNewRuns);
  }
  return RunConfigFromMessage(message, check);
}

absl::Status PlaceShards(int shards, core::RunConfig* config) {
  if (config->placement == core::Placement::kHub) return absl::OkStatus();
  if (shards < 2 || (config->sync.parts != 1 && config->sync.parts != shards)) {
    return absl::InvalidArgumentError(
        absl::StrCat("placement: sites: expected --shard=i/n with one shard for each site, at least 2",
                     config->sync.parts == 1 ? "" : absl::StrCat(" and as many as sync.parts, ", config->sync.parts),
                     "; got ", shards));
  }
  config->sync.parts = shards;
  return config->model_kind == core::ModelKind::kExternal
             ? absl::OkStatus()
             : core::BuildFragmentMap(core::ModelManifest(*config), config->sync).status();
}

// Maps in the order of their keys: equal configs have equal bytes.
std::string SerializeRunConfig(const core::RunConfig& config) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    RunConfigToMessage(config).SerializeToCodedStream(&coded);
  }
  return bytes;
}

absl::StatusOr<core::RunConfig> ParseRunConfig(std::string_view bytes) {
  v1::RunConfig message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::InvalidArgumentError(
        absl::StrCat("run config: cannot be parsed as RunConfig (", bytes.size(), " bytes)"));
  }
  const Origin origin{.file = "run config"};
  FieldCheck check(origin);
  return RunConfigFromMessage(message, check);
}

std::string RunConfigJson(const core::RunConfig& config) {
  return ConfigJson(config).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string RunSummary(const core::RunConfig& config) {
  const bool is_external = config.model_kind == core::ModelKind::kExternal;
  std::string text = is_external
                         ? "the first site brings the model"
                         : absl::StrFormat("%.4g M parameters",
                                           static_cast<double>(core::NumParameters(core::ModelManifest(config))) / 1e6);
  absl::StrAppend(&text, ", ", config.sync.num_fragments, config.sync.num_fragments == 1 ? " fragment" : " fragments");
  if (is_external) return absl::StrCat(text, ", the sites' scripts own their optimizer");
  if (config.inner.schedule == core::InnerSchedule::kConstant) return absl::StrCat(text, ", constant lr");
  if (config.tokens > 0) return absl::StrCat(text, ", lr along a cosine over ", config.tokens, " tokens of all sites");
  return config.steps == 0 ? absl::StrCat(text, ", constant lr because run.steps is 0")
                           : absl::StrCat(text, ", lr along a cosine over ", config.steps, " steps");
}

std::string FixedConfigDifference(const core::RunConfig& saved, const core::RunConfig& now) {
  return FirstDifference("", FixedPart(saved), FixedPart(now));
}

std::string ShardConfigDifference(const core::RunConfig& lead, const core::RunConfig& own) {
  Json expected = ConfigJson(lead);
  Json got = ConfigJson(own);
  for (Json* json : {&expected, &got}) {
    json->erase("checkpoint");
    json->erase("durability");
  }
  return FirstDifference("", expected, got);
}

}  // namespace causeway::formats
