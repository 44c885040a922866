#include <cmath>
#include <set>

#include "core/limits.h"
#include "formats/run_fields.h"

namespace causeway::formats {
namespace {

using enum Holds;

// Larger values are typos.
constexpr int64_t kMaxVocabulary = 1 << 24;
constexpr int64_t kMaxLayers = 2'000;  // nine tensors each, within kMaxTensors
constexpr int64_t kMaxStepMs = 86'400'000;
constexpr char kSeeded[] = "seeded";

void RopeFields(core::RopeScaling& scaling, Fields& fields) {
  std::string type = kLlama3;
  if (fields.Reads() && fields.Given("rope_type")) type.clear();
  fields.Any({"rope_type", kFixed, "its kind"}, &type, kLlama3);
  if (FieldCheck* check = fields.check()) {
    check->Expect(type == kLlama3, fields.Path("rope_type"), absl::StrCat(kLlama3, "; for others ", kUsePython),
                  type.empty() ? "none" : type);
    if (type != kLlama3) return;
  }
  fields.Positive({"factor", kFixed, "how much slower long waves turn"}, &scaling.factor);
  fields.Positive({"low_freq_factor", kFixed, "waves longer than the original length over it are long"},
                  &scaling.low_freq_factor);
  fields.Any({"high_freq_factor", kFixed, "waves shorter than the original length over it are short"},
             &scaling.high_freq_factor, "more than low_freq_factor");
  if (FieldCheck* check = fields.check()) {
    check->Expect(std::isfinite(scaling.high_freq_factor) && scaling.high_freq_factor > scaling.low_freq_factor,
                  fields.Path("high_freq_factor"), absl::StrCat("more than low_freq_factor ", scaling.low_freq_factor),
                  absl::StrCat(scaling.high_freq_factor));
  }
  fields.Integer({"original_max_position_embeddings", kFixed, "the length before the extension, in tokens"},
                 &scaling.original_max_position_embeddings, 1, kMaxWidth);
}

void CheckHeads(const core::LlamaConfig& llama, const Fields& fields, FieldCheck& check) {
  for (const char* key : {"hidden_size", "num_attention_heads", "num_key_value_heads"}) {
    if (check.HasMistakeAt(fields.Path(key))) return;
  }
  check.Expect(llama.hidden_size % llama.num_attention_heads == 0, fields.Path("hidden_size"),
               absl::StrCat("a multiple of num_attention_heads ", llama.num_attention_heads),
               absl::StrCat(llama.hidden_size));
  check.Expect(llama.hidden_size / llama.num_attention_heads % 2 == 0, fields.Path("hidden_size"),
               "an even size of each head (RoPE turns pairs)",
               absl::StrCat(llama.hidden_size, " / ", llama.num_attention_heads, " = ",
                            llama.hidden_size / llama.num_attention_heads));
  check.Expect(llama.num_attention_heads % llama.num_key_value_heads == 0, fields.Path("num_attention_heads"),
               absl::StrCat("a multiple of num_key_value_heads ", llama.num_key_value_heads),
               absl::StrCat(llama.num_attention_heads));
}

void TensorFields(core::SyntheticTensor& tensor, std::set<std::string>& names, Fields& fields) {
  fields.Any({"name", kFixed, "of the tensor"}, &tensor.name, "a name");
  fields.Any({"shape", kFixed, "its dimensions"}, &tensor.shape, "a list of dimensions");
  fields.Any({"init", kFixed, "its initial values, without init: seeded"}, &tensor.init, "a number");
  FieldCheck* const check = fields.check();
  if (check == nullptr) return;
  check->Expect(!tensor.name.empty() && tensor.name.size() <= core::kMaxTensorNameBytes, fields.Path("name"),
                absl::StrCat("a name of 1 to ", core::kMaxTensorNameBytes, " bytes"),
                absl::StrCat(tensor.name.size(), " bytes"));
  check->Expect(!tensor.shape.empty(), fields.Path("shape"), "a list of dimensions", "none");
  int64_t values = 1;
  for (size_t i = 0; i < tensor.shape.size() && check->status().ok(); ++i) {
    values *= check->Integer(fields.Path(absl::StrCat("shape[", i, "]")), tensor.shape[i], 1,
                             core::kMaxParameters / values, "at most 2^40 values in a tensor");
  }
  check->Expect(std::isfinite(tensor.init) && std::fabs(tensor.init) <= core::kMaxMagnitude, fields.Path("init"),
                "a number of at most 2^100 in magnitude", absl::StrCat(tensor.init));
  check->Expect(names.insert(tensor.name).second, fields.Path("name"), "each tensor's name once",
                absl::StrCat(tensor.name, " again"));
}

void GradientFields(core::SyntheticConfig& synthetic, Fields& fields) {
  fields.OneOf({"kind", kFixed, "constant, or noise"}, &synthetic.gradient, kGradients);
  fields.OneOf({"apply", kFixed, "in each step, or in closed form before a send"}, &synthetic.apply, kApplies);
  fields.Any({"by_site", kFixed, "the constant, or the amplitude of the noise; 0 for a site that is not listed"},
             &synthetic.gradient_by_site, "numbers by site");
  if (!fields.Reads()) return;
  for (const auto& [site, value] : synthetic.gradient_by_site) {  // of any value: NaN is how a test makes a site fail
    fields.check()->Expect(core::IsValidName(site), fields.Path(absl::StrCat("by_site.", site)), kSiteName, site);
  }
}

void SyntheticFields(core::SyntheticConfig& synthetic, Fields& fields) {
  fields.Integer({"step_ms", kFixed, "how long a step takes"}, &synthetic.step_ms, 0, kMaxStepMs);
  if (fields.Wants(synthetic.seeded_init)) {
    std::string init = kSeeded;
    fields.Any({"init", kFixed, "seeded noise; absent: each tensor's own init"}, &init, kSeeded);
    if (fields.Reads()) {
      synthetic.seeded_init = fields.Given("init");
      fields.check()->Expect(init == kSeeded, fields.Path("init"), kSeeded, init);
    }
  }
  fields.Section("gradient", [&] { GradientFields(synthetic, fields); });
  std::set<std::string> names;
  fields.Each("tensors", &synthetic.tensors,
              [&](core::SyntheticTensor& tensor) { TensorFields(tensor, names, fields); });
  if (!fields.Reads()) return;
  fields.check()->Expect(!synthetic.tensors.empty() && synthetic.tensors.size() <= core::kMaxTensors,
                         fields.Path("tensors"), absl::StrCat("1 to ", core::kMaxTensors, " tensors"),
                         absl::StrCat(synthetic.tensors.size()));
}

}  // namespace

void LlamaFields(core::LlamaConfig& llama, Fields& fields) {
  fields.Integer({"hidden_size", kFixed, "width of the model"}, &llama.hidden_size, 1, kMaxWidth);
  fields.Integer({"intermediate_size", kFixed, "width of the MLP"}, &llama.intermediate_size, 1, kMaxWidth);
  fields.Integer({"num_hidden_layers", kFixed, "blocks"}, &llama.num_hidden_layers, 1, kMaxLayers);
  fields.Integer({"num_attention_heads", kFixed, "hidden_size over it must be whole and even"},
                 &llama.num_attention_heads, 1, llama.hidden_size, "at most hidden_size");
  fields.Integer({"num_key_value_heads", kFixed, "fewer than attention heads is grouped-query attention; divides them"},
                 &llama.num_key_value_heads, 1, llama.num_attention_heads, "at most num_attention_heads");
  fields.Integer({"vocab_size", kFixed, "256 or more for a text file"}, &llama.vocab_size, 1, kMaxVocabulary);
  fields.Integer({"max_position_embeddings", kFixed, "the longest training row, in tokens"},
                 &llama.max_position_embeddings, 1, kMaxWidth);
  fields.Positive({"rms_norm_eps", kFixed, "added to the mean square of a norm"}, &llama.rms_norm_eps);
  fields.Positive({"rope_theta", kFixed, "base of the rotary embedding"}, &llama.rope_theta);
  fields.Any({"tie_word_embeddings", kFixed, "the output head is the embedding"}, &llama.tie_word_embeddings,
             "true | false");
  fields.Any({"init_from", kFixed, "Hugging Face folder to start from; empty: initialised from the seed"},
             &llama.init_from, "a folder");
  fields.OptionalSection("rope_scaling", &llama.rope_scaling,
                         [&](core::RopeScaling& scaling) { RopeFields(scaling, fields); });
  if (FieldCheck* check = fields.check()) CheckHeads(llama, fields, *check);
}

void ModelFields(core::RunConfig& config, Fields& fields) {
  if (config.model_kind == core::ModelKind::kLlama) LlamaFields(config.llama, fields);
  if (config.model_kind == core::ModelKind::kSynthetic) SyntheticFields(config.synthetic, fields);
}

}  // namespace causeway::formats
