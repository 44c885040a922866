#include "formats/hf_config.h"

#include <cstdint>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/json_text.h"
#include "formats/config_names.h"
#include "formats/field_check.h"
#include "formats/named_file.h"
#include "formats/run_fields.h"

namespace causeway::formats {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kArchitecture[] = "LlamaForCausalLM";
constexpr const char* kScalingKeys[] = {"factor", "low_freq_factor", "high_freq_factor",
                                        "original_max_position_embeddings"};
constexpr int64_t kMaxConfigBytes = 1 << 20;  // real ones have a few kilobytes

// Reads keys out of a config.json; an absent or null one gives `otherwise`.
class JsonKeys {
 public:
  JsonKeys(const Json& json, FieldCheck& check) : json_(json), check_(check) {}

  int64_t Integer(const char* key, int64_t otherwise) {
    if (IsAbsent(key)) return otherwise;
    const Json& value = json_.at(key);
    if (value.is_number_integer()) return value.get<int64_t>();
    check_.Expect(false, key, "an integer", core::ShownJson(value));
    return otherwise;
  }

  double Number(const char* key, double otherwise) {
    if (IsAbsent(key)) return otherwise;
    const Json& value = json_.at(key);
    if (value.is_number()) return value.get<double>();
    check_.Expect(false, key, "a number", core::ShownJson(value));
    return otherwise;
  }

  bool Bool(const char* key, bool otherwise) {
    if (IsAbsent(key)) return otherwise;
    const Json& value = json_.at(key);
    if (value.is_boolean()) return value.get<bool>();
    check_.Expect(false, key, "true or false", core::ShownJson(value));
    return otherwise;
  }

  // Checks a key of which this trainer supports only one value.
  void Only(const char* key, const Json& accepted) {
    if (!IsAbsent(key)) Expect(json_.at(key) == accepted, key, core::ShownJson(accepted), json_.at(key));
  }
  void Expect(bool ok, const char* key, const std::string& expected, const Json& got) {
    check_.Expect(ok, key, expected, absl::StrCat(core::ShownJson(got), "; for that ", kUsePython));
  }

  bool IsAbsent(const char* key) const { return !json_.contains(key) || json_.at(key).is_null(); }

 private:
  const Json& json_;
  FieldCheck& check_;
};

// Plain RoPE, or Llama 3's; from the section of that name, which has both in one: transformers 5 writes
// rope_parameters, earlier versions rope_theta and rope_scaling, the first of them with `type` for rope_type.
void ReadRope(const Json& json, const char* section, core::LlamaConfig& llama, FieldCheck& check) {
  JsonKeys keys(json, check);
  if (keys.IsAbsent(section)) return;
  const Json& rope = json.at(section);
  const auto is_type = [&](const char* name) {
    if (!rope.is_object()) return false;
    const auto type = rope.contains("rope_type") ? rope.find("rope_type") : rope.find("type");
    return type != rope.end() && *type == name;
  };
  keys.Expect(is_type("default") || is_type(kLlama3), section, "none, or of rope_type llama3", rope);
  if (!check.status().ok()) return;
  JsonKeys values(rope, check);
  llama.rope_theta = values.Number("rope_theta", llama.rope_theta);
  if (!is_type(kLlama3)) return;
  for (const char* key : kScalingKeys) check.Expect(!values.IsAbsent(key), key, "a number", "none");
  if (!check.status().ok()) return;
  llama.rope_scaling = {
      .factor = values.Number("factor", 0),
      .low_freq_factor = values.Number("low_freq_factor", 0),
      .high_freq_factor = values.Number("high_freq_factor", 0),
      .original_max_position_embeddings = values.Integer("original_max_position_embeddings", 0),
  };
}

Json RopeJson(const std::optional<core::RopeScaling>& scaling) {
  if (!scaling) return nullptr;
  return {{"rope_type", kLlama3},
          {"factor", scaling->factor},
          {"low_freq_factor", scaling->low_freq_factor},
          {"high_freq_factor", scaling->high_freq_factor},
          {"original_max_position_embeddings", scaling->original_max_position_embeddings}};
}

Json ToJson(const core::LlamaConfig& llama) {
  return {{"architectures", Json::array({kArchitecture})},
          {"model_type", "llama"},
          {"hidden_size", llama.hidden_size},
          {"intermediate_size", llama.intermediate_size},
          {"num_hidden_layers", llama.num_hidden_layers},
          {"num_attention_heads", llama.num_attention_heads},
          {"num_key_value_heads", llama.num_key_value_heads},
          {"head_dim", llama.hidden_size / llama.num_attention_heads},
          {"vocab_size", llama.vocab_size},
          {"max_position_embeddings", llama.max_position_embeddings},
          {"rms_norm_eps", llama.rms_norm_eps},
          {"rope_theta", llama.rope_theta},
          {"rope_scaling", RopeJson(llama.rope_scaling)},
          {"tie_word_embeddings", llama.tie_word_embeddings},
          {"hidden_act", "silu"},
          {"attention_bias", false},
          {"attention_dropout", 0.0},
          {"mlp_bias", false},
          {"torch_dtype", "float32"},
          {"use_cache", true},
          {"bos_token_id", nullptr},
          {"eos_token_id", nullptr},
          {"pad_token_id", nullptr}};
}

}  // namespace

std::string HfConfigJson(const core::LlamaConfig& llama) { return ToJson(llama).dump(2) + "\n"; }

std::string HfConfigDifference(const core::LlamaConfig& expected, const core::LlamaConfig& got) {
  const Json ours = ToJson(expected), theirs = ToJson(got);
  for (const auto& [key, value] : ours.items()) {
    if (theirs.at(key) != value) return absl::StrCat(key, ": expected ", value.dump(), ", got ", theirs.at(key).dump());
  }
  return "";
}

absl::StatusOr<core::LlamaConfig> ReadHfConfig(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxConfigBytes));
  ASSIGN_OR_RETURN(const Json json, core::ParseJson<Json>(text, path));
  if (!json.is_object()) return absl::InvalidArgumentError(absl::StrCat(path, ": expected a JSON object"));

  const Origin origin{.file = path};
  FieldCheck check(origin);
  JsonKeys keys(json, check);
  check.Expect(json.contains("model_type"), "model_type", "llama", "none");
  if (!keys.IsAbsent("architectures")) {
    const Json& named = json.at("architectures");
    keys.Expect(named == Json::array({kArchitecture}), "architectures", kArchitecture, named);
  }
  RETURN_IF_ERROR(check.status());  // another model has other keys
  keys.Only("model_type", "llama");
  RETURN_IF_ERROR(check.status());
  keys.Only("hidden_act", "silu");
  keys.Only("attention_bias", false);
  keys.Only("mlp_bias", false);
  for (const char* required : {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}) {
    check.Expect(json.contains(required), required, "an integer", "none");
  }
  RETURN_IF_ERROR(check.status());
  core::LlamaConfig llama;
  llama.hidden_size = keys.Integer("hidden_size", 0);
  llama.intermediate_size = keys.Integer("intermediate_size", 0);
  llama.num_hidden_layers = keys.Integer("num_hidden_layers", 0);
  llama.num_attention_heads = keys.Integer("num_attention_heads", 0);
  llama.num_key_value_heads = keys.Integer("num_key_value_heads", llama.num_attention_heads);
  llama.vocab_size = keys.Integer("vocab_size", 32'000);
  llama.max_position_embeddings = keys.Integer("max_position_embeddings", 2'048);
  llama.rms_norm_eps = keys.Number("rms_norm_eps", 1e-6);
  llama.rope_theta = keys.Number("rope_theta", 10'000);
  for (const char* section : {"rope_scaling", "rope_parameters"}) ReadRope(json, section, llama, check);
  llama.tie_word_embeddings = keys.Bool("tie_word_embeddings", false);
  FieldsCheck checks(check, "");
  LlamaFields(llama, checks);
  RETURN_IF_ERROR(check.status());
  keys.Only("head_dim", llama.hidden_size / llama.num_attention_heads);
  RETURN_IF_ERROR(check.status());
  return llama;
}

}  // namespace causeway::formats
