#include "formats/run_config_check.h"

#include <cmath>
#include <set>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/limits.h"
#include "formats/config_names.h"
#include "formats/inner_config_check.h"
#include "formats/offload_config_check.h"
#include "formats/steps_check.h"
#include "formats/sync_config_check.h"

namespace causeway::formats {
namespace {

using core::CodecId;
using core::ModelKind;
using core::SyntheticApply;
using core::SyntheticGradient;

// Larger values are also typos.
constexpr int64_t kMaxVocabulary = 1 << 24;
constexpr int64_t kMaxLayers = 2'000;  // nine tensors each, within kMaxTensors
constexpr int64_t kMaxRounds = 1'000'000'000;
constexpr int64_t kMaxMilliseconds = 86'400'000;  // a day
constexpr int64_t kMinLeaseMs = 100;              // a few heartbeats and a round trip around the world
constexpr int64_t kMaxKeptStates = 1'000;
constexpr int64_t kMaxStaleness = 1'000;
constexpr int64_t kMaxTokensPerStep = 1'000'000'000'000;
constexpr int64_t kMaxBytes = int64_t{1} << 50;
constexpr int64_t kMinSubgroup = 1'000;  // fewer would be all overhead
constexpr int64_t kMaxSubgroup = 10'000'000'000;

// The keys of a section that were given.
std::vector<const google::protobuf::FieldDescriptor*> GivenKeys(const google::protobuf::Message& section) {
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  section.GetReflection()->ListFields(section, &fields);
  return fields;
}

// Keys of another kind of model would be ignored, so they are refused.
void CheckKeysOfKind(const v1::RunConfig& given, ModelKind kind, FieldCheck& check) {
  const std::string got = absl::StrCat("it with kind ", NameOf(kind, kModelKinds));
  for (const auto* field : GivenKeys(given.model())) {
    if (field->number() == v1::Model::kKindFieldNumber) continue;
    const bool of_llama =
        field->number() <= v1::Model::kInitFromFieldNumber || field->number() == v1::Model::kRopeScalingFieldNumber;
    const ModelKind owner = of_llama ? ModelKind::kLlama : ModelKind::kSynthetic;
    check.Expect(owner == kind, absl::StrCat("model.", field->name()),
                 absl::StrCat("it only with kind ", NameOf(owner, kModelKinds)), got);
  }
  if (kind != ModelKind::kExternal) return;
  for (const auto* field : GivenKeys(given.inner())) {
    check.Expect(false, absl::StrCat("inner.", field->name()), "no such key: the sites' scripts own their optimizer",
                 got);
  }
}

// "rope_scaling:" with nothing is none, as null is in a config.json.
std::optional<core::RopeScaling> ReadRopeScaling(const v1::RopeScaling& scaling, FieldCheck& check) {
  if (scaling.ByteSizeLong() == 0) return std::nullopt;
  check.Expect(scaling.rope_type() == kLlama3, "model.rope_scaling.rope_type",
               absl::StrCat(kLlama3, "; for others ", kUsePython),
               scaling.has_rope_type() ? scaling.rope_type() : "none");
  if (scaling.rope_type() != kLlama3) return std::nullopt;
  return core::RopeScaling{.factor = scaling.factor(),
                           .low_freq_factor = scaling.low_freq_factor(),
                           .high_freq_factor = scaling.high_freq_factor(),
                           .original_max_position_embeddings = scaling.original_max_position_embeddings()};
}

core::LlamaConfig ReadLlama(const v1::Model& model, FieldCheck& check) {
  core::LlamaConfig llama{.hidden_size = model.hidden_size(),
                          .intermediate_size = model.intermediate_size(),
                          .num_hidden_layers = model.num_hidden_layers(),
                          .num_attention_heads = model.num_attention_heads(),
                          .num_key_value_heads = model.num_key_value_heads(),
                          .vocab_size = model.vocab_size(),
                          .max_position_embeddings = model.max_position_embeddings(),
                          .rms_norm_eps = model.rms_norm_eps(),
                          .rope_theta = model.rope_theta(),
                          .rope_scaling = ReadRopeScaling(model.rope_scaling(), check),
                          .tie_word_embeddings = model.tie_word_embeddings(),
                          .init_from = model.init_from()};
  CheckLlama(llama, "model.", check);
  return llama;
}

core::SyntheticTensor ReadTensor(const v1::Tensor& tensor, const std::string& path, FieldCheck& check) {
  check.Expect(!tensor.name().empty() && tensor.name().size() <= core::kMaxTensorNameBytes, path + ".name",
               absl::StrCat("a name of 1 to ", core::kMaxTensorNameBytes, " bytes"),
               absl::StrCat(tensor.name().size(), " bytes"));
  check.Expect(tensor.shape_size() > 0, path + ".shape", "a list of dimensions", "none");
  int64_t values = 1;
  for (int i = 0; i < tensor.shape_size() && check.status().ok(); ++i) {
    values *= check.Integer(absl::StrCat(path, ".shape[", i, "]"), tensor.shape(i), 1, core::kMaxParameters / values,
                            "at most 2^40 values in a tensor");
  }
  check.Expect(std::isfinite(tensor.init()) && std::fabs(tensor.init()) <= core::kMaxMagnitude, path + ".init",
               "a number of at most 2^100 in magnitude", absl::StrCat(tensor.init()));
  return {tensor.name(), {tensor.shape().begin(), tensor.shape().end()}, tensor.init()};
}

core::SyntheticConfig ReadSynthetic(const v1::Model& model, FieldCheck& check) {
  core::SyntheticConfig synthetic;
  synthetic.step_ms = check.Integer("model.step_ms", model.step_ms(), 0, kMaxMilliseconds);
  synthetic.seeded_init = model.has_init();
  if (model.has_init()) check.Expect(model.init() == "seeded", "model.init", "seeded", model.init());
  check.Expect(model.tensors_size() >= 1 && model.tensors_size() <= static_cast<int>(core::kMaxTensors),
               "model.tensors", absl::StrCat("1 to ", core::kMaxTensors, " tensors"),
               absl::StrCat(model.tensors_size()));
  std::set<std::string> names;
  for (int i = 0; i < model.tensors_size(); ++i) {
    const std::string path = absl::StrCat("model.tensors[", i, "]");
    synthetic.tensors.push_back(ReadTensor(model.tensors(i), path, check));
    check.Expect(names.insert(model.tensors(i).name()).second, path + ".name", "each tensor's name once",
                 absl::StrCat(model.tensors(i).name(), " again"));
  }
  const v1::Gradient& gradient = model.gradient();
  synthetic.gradient = check.OneOf("model.gradient.kind", gradient.kind(), kGradients);
  synthetic.apply = check.OneOf("model.gradient.apply", gradient.apply(), kApplies);
  for (const auto& [site, value] : gradient.by_site()) {  // of any value: NaN is how a test makes a site fail
    check.Expect(core::IsValidName(site), absl::StrCat("model.gradient.by_site.", site), kSiteName, site);
    synthetic.gradient_by_site[site] = value;
  }
  return synthetic;
}

core::DataConfig ReadData(const v1::Data& data, FieldCheck& check) {
  const int64_t bytes = data.token_bytes();
  check.Expect(bytes == 0 || bytes == 2 || bytes == 4, "data.token_bytes", "2 | 4", absl::StrCat(bytes));
  return {.mode = check.OneOf("data.mode", data.mode(), kDataModes),
          .token_bytes = bytes == 0 ? core::DataConfig().token_bytes : bytes,
          .allow_equal = data.allow_equal()};
}

// SGD is Nesterov with momentum 0; a momentum that is given beside it would be ignored, so it is refused.
core::OuterParameters ReadOuter(const v1::Outer& outer, const v1::Outer& given, FieldCheck& check) {
  const bool sgd = check.OneOf<bool>("outer.optimizer", outer.optimizer(), {{kNesterov, false}, {kSgd, true}});
  core::OuterParameters result;
  result.lr = static_cast<float>(check.NotNegative("outer.lr", outer.lr()));
  result.momentum = static_cast<float>(check.ShareBelowOne("outer.momentum", outer.momentum()));
  if (!sgd) return result;
  check.Expect(!given.has_momentum() || given.momentum() == 0, "outer.momentum", "0 (the optimizer is sgd)",
               absl::StrCat(given.momentum()));
  result.momentum = 0;
  return result;
}

CodecId ReadCodecName(const std::string& path, const std::string& name, FieldCheck& check) {
  const std::optional<CodecId> codec = core::CodecFromName(name);
  check.Expect(codec.has_value(), path, absl::StrCat("one of ", core::AllCodecNames()), name);
  return codec.value_or(CodecId::kFloat32);
}

// The codecs from which `auto` may choose, best first; a cheaper one has to save something. All must have one domain: a
// residual is in the domain of its codec, and continues when the codec changes.
std::vector<CodecId> ReadAllowed(const std::string& path, const google::protobuf::RepeatedPtrField<std::string>& names,
                                 FieldCheck& check) {
  if (names.empty()) return {CodecId::kRotatedLm4, CodecId::kRotatedLm2, CodecId::kRotatedSign};
  std::vector<CodecId> allowed;
  for (int i = 0; i < names.size(); ++i) {
    const std::string at = absl::StrCat(path, "[", i, "]");
    const CodecId codec = ReadCodecName(at, names[i], check);
    check.Expect(codec != CodecId::kTopk && codec != CodecId::kOnebitAdamSign, at,
                 "a codec that auto can change to in the middle of a run", names[i]);
    if (i > 0) {
      const CodecId better = allowed.back();
      check.Expect(core::Rotates(codec) == core::Rotates(better), at,
                   absl::StrCat(core::Rotates(better) ? "one that rotates" : "one that does not rotate", ", like ",
                                core::CodecName(better), ": residuals cannot pass from one kind to the other"),
                   names[i]);
      check.Expect(
          core::CodeBits(codec) < core::CodeBits(better), at,
          absl::StrCat("fewer bits than the ", core::CodeBits(better), " of ", core::CodecName(better), " before it"),
          absl::StrCat(names[i], " with ", core::CodeBits(codec)));
    }
    allowed.push_back(codec);
  }
  return allowed;
}

// One leg: its codec, and what auto may choose from; without auto nothing.
CodecId ReadLeg(const std::string& leg, const std::string& name,
                const google::protobuf::RepeatedPtrField<std::string>& names, core::SyncMode mode,
                std::vector<CodecId>& allowed, FieldCheck& check) {
  const std::string path = "codec." + leg, allow_path = "codec.allow_" + leg;
  if (name != kAuto) {
    check.Expect(names.empty(), allow_path, absl::StrCat("it only with ", leg, ": auto"),
                 absl::StrCat("it with ", leg, ": ", name));
    return ReadCodecName(path, name, check);
  }
  // In quorum mode a late contribution has another base than its round, and a round has one codec.
  check.Expect(mode == core::SyncMode::kSynchronous, path, "a codec's name (auto is for mode: synchronous)", name);
  allowed = ReadAllowed(allow_path, names, check);
  return allowed.back();
}

std::vector<core::TensorKind> ReadExempt(const v1::Codec& codec, FieldCheck& check) {
  std::vector<core::TensorKind> exempt;
  for (int i = 0; i < codec.exempt_size(); ++i) {
    exempt.push_back(check.OneOf(absl::StrCat("codec.exempt[", i, "]"), codec.exempt(i), kTensorKinds));
  }
  return exempt;
}

core::CodecConfig ReadCodec(const v1::Codec& codec, core::SyncMode mode, FieldCheck& check) {
  std::vector<CodecId> allow_up, allow_down;
  const CodecId down = ReadLeg("down", codec.down(), codec.allow_down(), mode, allow_down, check);
  check.Expect(down != CodecId::kOnebitAdamSign, "codec.down", "another codec (it is for the up leg only)",
               codec.down());
  return {.up = ReadLeg("up", codec.up(), codec.allow_up(), mode, allow_up, check),
          .down = down,
          .feedback_up = static_cast<float>(check.Share("codec.feedback_up", codec.feedback_up())),
          .feedback_down = static_cast<float>(check.Share("codec.feedback_down", codec.feedback_down())),
          .exempt = ReadExempt(codec, check),
          .zstd = codec.zstd(),
          .allow_up = std::move(allow_up),
          .allow_down = std::move(allow_down)};
}

core::MembershipConfig ReadMembership(const v1::Membership& membership, core::SyncMode mode, FieldCheck& check) {
  core::MembershipConfig result;
  result.min_sites =
      static_cast<int>(check.Integer("membership.min_sites", membership.min_sites(), 1, core::kMaxSites));
  result.min_quorum =
      static_cast<int>(check.Integer("membership.min_quorum", membership.min_quorum(), 1, core::kMaxSites));
  const bool quorum = mode == core::SyncMode::kQuorum;
  result.grace_ms = check.Integer("membership.grace_ms", membership.grace_ms(), 0, quorum ? kMaxMilliseconds : 0,
                                  quorum ? "" : "a round in synchronous mode waits for all sites");
  result.lease_ms = check.Integer("membership.lease_ms", membership.lease_ms(), kMinLeaseMs, kMaxMilliseconds);
  result.max_staleness = check.Integer("membership.max_staleness", membership.max_staleness(), 0, kMaxStaleness);
  result.weights = check.OneOf("membership.weights", membership.weights(), kWeightRules);
  result.merge = check.OneOf("membership.merge", membership.merge(), kMergeRules);
  result.max_tokens_per_step =
      check.Integer("membership.max_tokens_per_step", membership.max_tokens_per_step(), 0, kMaxTokensPerStep);
  return result;
}

core::ValuesConfig ReadValues(const v1::Values& values, core::MergeRule merge, FieldCheck& check) {
  const double gate = check.NotNegative("values.gate", values.gate());
  check.Expect(gate == 0 || gate >= 1, "values.gate", "0 (off) or at least 1", absl::StrCat(gate));
  check.Expect(!values.clip() || gate > 0, "values.clip", "false without a gate", "true");
  check.Expect(!values.clip() || merge == core::MergeRule::kAverage, "values.clip",
               "false with membership.merge: radial_directional, which averages lengths by itself", "true");
  return {.gate = gate, .clip = values.clip(), .weight_cap = check.Share("values.weight_cap", values.weight_cap())};
}

core::EvalConfig ReadEval(const v1::Eval& eval, FieldCheck& check) {
  return {.every_rounds = check.Integer("eval.every_rounds", eval.every_rounds(), 0, kMaxRounds),
          .held_out = check.ShareBelowOne("eval.held_out", eval.held_out()),
          .batches = check.Integer("eval.batches", eval.batches(), 1, kMaxWidth)};
}

core::CheckpointConfig ReadCheckpoint(const v1::Checkpoint& checkpoint, FieldCheck& check) {
  return {.every_rounds = check.Integer("checkpoint.every_rounds", checkpoint.every_rounds(), 0, kMaxRounds),
          .keep = check.Integer("checkpoint.keep", checkpoint.keep(), 1, kMaxKeptStates),
          .max_update_log_bytes =
              check.Integer("checkpoint.max_update_log_bytes", checkpoint.max_update_log_bytes(), 0, kMaxBytes),
          .min_free_bytes = check.Integer("checkpoint.min_free_bytes", checkpoint.min_free_bytes(), 0, kMaxBytes)};
}

core::OffloadConfig ReadOffload(const v1::Offload& offload, FieldCheck& check) {
  core::OffloadConfig result;
  check.Ok("offload.k", ReadInterleave(offload.k(), &result));
  result.subgroup = check.Integer("offload.subgroup", offload.subgroup(), kMinSubgroup, kMaxSubgroup, "values");
  check.Ok("offload.resident_share", ReadShare(offload.resident_share(), &result));
  return result;
}

void CheckRopeScaling(const core::RopeScaling& scaling, const std::string& prefix, FieldCheck& check) {
  check.Positive(prefix + "factor", scaling.factor);
  check.Positive(prefix + "low_freq_factor", scaling.low_freq_factor);
  check.Expect(std::isfinite(scaling.high_freq_factor) && scaling.high_freq_factor > scaling.low_freq_factor,
               prefix + "high_freq_factor", absl::StrCat("more than low_freq_factor ", scaling.low_freq_factor),
               absl::StrCat(scaling.high_freq_factor));
  check.Integer(prefix + "original_max_position_embeddings", scaling.original_max_position_embeddings, 1, kMaxWidth);
}

}  // namespace

void CheckLlama(const core::LlamaConfig& llama, const std::string& prefix, FieldCheck& check) {
  check.Integer(prefix + "hidden_size", llama.hidden_size, 1, kMaxWidth);
  check.Integer(prefix + "intermediate_size", llama.intermediate_size, 1, kMaxWidth);
  check.Integer(prefix + "num_hidden_layers", llama.num_hidden_layers, 1, kMaxLayers);
  check.Integer(prefix + "num_attention_heads", llama.num_attention_heads, 1, llama.hidden_size, "at most hidden_size");
  check.Integer(prefix + "num_key_value_heads", llama.num_key_value_heads, 1, llama.num_attention_heads,
                "at most num_attention_heads");
  check.Integer(prefix + "vocab_size", llama.vocab_size, 1, kMaxVocabulary);
  check.Integer(prefix + "max_position_embeddings", llama.max_position_embeddings, 1, kMaxWidth);
  check.Positive(prefix + "rms_norm_eps", llama.rms_norm_eps);
  check.Positive(prefix + "rope_theta", llama.rope_theta);
  if (llama.rope_scaling) CheckRopeScaling(*llama.rope_scaling, prefix + "rope_scaling.", check);
  for (const char* key : {"hidden_size", "num_attention_heads", "num_key_value_heads"}) {
    if (check.HasMistakeAt(prefix + key)) return;  // no division by zero below
  }
  if (llama.hidden_size < 1 || llama.num_attention_heads < 1 || llama.num_key_value_heads < 1) return;
  check.Expect(llama.hidden_size % llama.num_attention_heads == 0, prefix + "hidden_size",
               absl::StrCat("a multiple of num_attention_heads ", llama.num_attention_heads),
               absl::StrCat(llama.hidden_size));
  check.Expect(llama.hidden_size / llama.num_attention_heads % 2 == 0, prefix + "hidden_size",
               "an even size of each head (RoPE turns pairs)",
               absl::StrCat(llama.hidden_size, " / ", llama.num_attention_heads, " = ",
                            llama.hidden_size / llama.num_attention_heads));
  check.Expect(llama.num_attention_heads % llama.num_key_value_heads == 0, prefix + "num_attention_heads",
               absl::StrCat("a multiple of num_key_value_heads ", llama.num_key_value_heads),
               absl::StrCat(llama.num_attention_heads));
}

absl::StatusOr<core::RunConfig> RunConfigFromMessage(const v1::RunConfig& given, FieldCheck& check) {
  core::RunConfig config;
  if (given.model().has_kind()) config.model_kind = check.OneOf("model.kind", given.model().kind(), kModelKinds);
  if (check.HasMistakeAt("model.kind")) return check.status();  // it decides which keys there are

  if (config.model_kind == ModelKind::kSynthetic) config.values.gate = 0;  // run.yaml gives its gradients
  v1::RunConfig message = RunConfigToMessage(config);                      // the defaults, then what is given
  message.MergeFrom(given);
  config.run_id = message.run_id();
  check.Expect(core::IsValidName(config.run_id), "run_id", "a name of 1 to 64 of A-Z a-z 0-9 . _ -",
               config.run_id.empty() ? "none" : config.run_id);
  config.seed = message.seed();
  config.steps = check.Integer("run.steps", message.run().steps(), 0, kMaxSteps);
  CheckKeysOfKind(given, config.model_kind, check);
  if (config.model_kind == ModelKind::kLlama) config.llama = ReadLlama(message.model(), check);
  if (config.model_kind == ModelKind::kSynthetic) config.synthetic = ReadSynthetic(message.model(), check);
  if (config.model_kind != ModelKind::kExternal) config.inner = ReadInner(message.inner(), check);
  config.data = ReadData(message.data(), check);
  config.sync = ReadSync(message.sync(), given.sync(), check);
  config.outer = ReadOuter(message.outer(), given.outer(), check);
  config.codec = ReadCodec(message.codec(), config.sync.mode, check);
  config.membership = ReadMembership(message.membership(), config.sync.mode, check);
  config.values = ReadValues(message.values(), config.membership.merge, check);
  config.eval = ReadEval(message.eval(), check);
  config.checkpoint = ReadCheckpoint(message.checkpoint(), check);
  config.offload = ReadOffload(message.offload(), check);
  config.durability.journal = check.OneOf("durability.journal", message.durability().journal(), kJournalModes);
  config.placement = check.OneOf("placement", message.placement(), kPlacements);
  check.Expect(config.sync.parts == 1 || config.membership.merge == core::MergeRule::kAverage, "membership.merge",
               "average with sync.parts, since radial_directional needs all of a tensor", "radial_directional");
  RETURN_IF_ERROR(check.status());
  CheckInnerFits(config, check);
  CheckFragmentsFit(config, check);
  CheckSteps(config, check);
  RETURN_IF_ERROR(check.status());
  return config;
}

}  // namespace causeway::formats
