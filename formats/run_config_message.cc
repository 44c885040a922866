#include "formats/run_config_message.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/reflection.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/fragment_map.h"
#include "core/model_manifest.h"
#include "formats/fields.h"
#include "formats/run_advice.h"
#include "formats/run_fields.h"

namespace causeway::formats {
namespace {

// Rows of settings (formats/fields.h) to and from a protobuf message, whose fields have their names.

// Values that the message lacks stay as they are.
class MessageReader : public Fields {
 public:
  MessageReader(const google::protobuf::Message& message, FieldCheck& check) : Fields(&check), sections_{&message} {}

  bool Given(const char* name) const override;

 private:
  void Visit(const Key& key, FieldValue value, const std::string& expected) override;
  void Enter(const char* name) override;
  void EnterItem(const char* name, size_t index) override;
  void Leave() override { sections_.pop_back(); }
  bool Present(const char* name, bool now) const override;
  size_t Count(const char* name, size_t now) override;

  std::vector<const google::protobuf::Message*> sections_;  // from the whole to the current one
};

// Writes every row.
class MessageWriter : public Fields {
 public:
  explicit MessageWriter(google::protobuf::Message* message) : sections_{message} {}

 private:
  void Visit(const Key& key, FieldValue value, const std::string& expected) override;
  void Enter(const char* name) override;
  void EnterItem(const char* name, size_t index) override;
  void Leave() override { sections_.pop_back(); }

  std::vector<google::protobuf::Message*> sections_;
};

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

const FieldDescriptor& FieldOf(const Message& message, const char* name) {
  const FieldDescriptor* field = message.GetDescriptor()->FindFieldByName(name);
  CHECK(field != nullptr);
  return *field;
}

struct Read {
  const Message& message;
  const FieldDescriptor& field;
  const Reflection& reflection = *message.GetReflection();

  void operator()(int64_t* value) const { *value = reflection.GetInt64(message, &field); }
  void operator()(AutoInteger value) const { (*this)(value.value); }
  void operator()(uint64_t* value) const { *value = reflection.GetUInt64(message, &field); }
  void operator()(bool* value) const { *value = reflection.GetBool(message, &field); }
  void operator()(float* value) const { *value = reflection.GetFloat(message, &field); }
  void operator()(double* value) const { *value = reflection.GetDouble(message, &field); }
  void operator()(std::string* value) const { *value = reflection.GetString(message, &field); }
  void operator()(std::vector<int64_t>* value) const {
    const auto& list = reflection.GetRepeatedFieldRef<int64_t>(message, &field);
    value->assign(list.begin(), list.end());
  }
  void operator()(std::vector<std::string>* value) const {
    const auto& list = reflection.GetRepeatedFieldRef<std::string>(message, &field);
    value->assign(list.begin(), list.end());
  }
  // A message whose one field is a list stands for it.
  void operator()(std::vector<std::vector<std::string>>* value) const {
    value->resize(reflection.FieldSize(message, &field));
    for (size_t i = 0; i < value->size(); ++i) {
      const Message& item = reflection.GetRepeatedMessage(message, &field, static_cast<int>(i));
      Read{item, *field.message_type()->field(0)}(&(*value)[i]);
    }
  }
  // A protobuf map is, to reflection, a repeated message of key and value.
  template <typename T>
  void operator()(std::map<std::string, T>* value) const {
    value->clear();
    const FieldDescriptor &key = *field.message_type()->map_key(), &item = *field.message_type()->map_value();
    for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
      const Message& entry = reflection.GetRepeatedMessage(message, &field, i);
      Read{entry, item}(&(*value)[entry.GetReflection()->GetString(entry, &key)]);
    }
  }
};

struct Write {
  Message& message;
  const FieldDescriptor& field;
  const Reflection& reflection = *message.GetReflection();

  void operator()(const int64_t* value) const { reflection.SetInt64(&message, &field, *value); }
  void operator()(AutoInteger value) const { (*this)(value.value); }
  void operator()(const uint64_t* value) const { reflection.SetUInt64(&message, &field, *value); }
  void operator()(const bool* value) const { reflection.SetBool(&message, &field, *value); }
  void operator()(const float* value) const { reflection.SetFloat(&message, &field, *value); }
  void operator()(const double* value) const { reflection.SetDouble(&message, &field, *value); }
  void operator()(const std::string* value) const { reflection.SetString(&message, &field, *value); }
  void operator()(const std::vector<int64_t>* value) const {
    for (const int64_t one : *value) reflection.AddInt64(&message, &field, one);
  }
  void operator()(const std::vector<std::string>* value) const {
    for (const std::string& one : *value) reflection.AddString(&message, &field, one);
  }
  void operator()(const std::vector<std::vector<std::string>>* value) const {
    for (const std::vector<std::string>& one : *value) {
      Write{*reflection.AddMessage(&message, &field), *field.message_type()->field(0)}(&one);
    }
  }
  template <typename T>
  void operator()(const std::map<std::string, T>* value) const {
    const FieldDescriptor &key = *field.message_type()->map_key(), &item = *field.message_type()->map_value();
    for (const auto& [name, one] : *value) {
      Message& entry = *reflection.AddMessage(&message, &field);
      entry.GetReflection()->SetString(&entry, &key, name);
      Write{entry, item}(&one);
    }
  }
};

bool MessageReader::Given(const char* name) const {
  const Message& section = *sections_.back();
  const FieldDescriptor& field = FieldOf(section, name);
  return field.is_repeated() ? section.GetReflection()->FieldSize(section, &field) > 0
                             : section.GetReflection()->HasField(section, &field);
}

void MessageReader::Visit(const Key& key, FieldValue value, const std::string& /*expected*/) {
  if (Given(key.name)) std::visit(Read{*sections_.back(), FieldOf(*sections_.back(), key.name)}, value);
}

void MessageReader::Enter(const char* name) {
  const Message& section = *sections_.back();
  sections_.push_back(&section.GetReflection()->GetMessage(section, &FieldOf(section, name)));
}

void MessageReader::EnterItem(const char* name, size_t index) {
  const Message& section = *sections_.back();
  const int i = static_cast<int>(index);
  sections_.push_back(&section.GetReflection()->GetRepeatedMessage(section, &FieldOf(section, name), i));
}

// A section with nothing in it is none, like "sync:" with every key under it commented out.
bool MessageReader::Present(const char* name, bool now) const {
  const Message& section = *sections_.back();
  return now || section.GetReflection()->GetMessage(section, &FieldOf(section, name)).ByteSizeLong() > 0;
}

size_t MessageReader::Count(const char* name, size_t /*now*/) {
  const Message& section = *sections_.back();
  return section.GetReflection()->FieldSize(section, &FieldOf(section, name));
}

void MessageWriter::Visit(const Key& key, FieldValue value, const std::string& /*expected*/) {
  std::visit(Write{*sections_.back(), FieldOf(*sections_.back(), key.name)}, value);
}

void MessageWriter::Enter(const char* name) {
  Message* section = sections_.back();
  sections_.push_back(section->GetReflection()->MutableMessage(section, &FieldOf(*section, name)));
}

void MessageWriter::EnterItem(const char* name, size_t /*index*/) {
  Message* section = sections_.back();
  sections_.push_back(section->GetReflection()->AddMessage(section, &FieldOf(*section, name)));
}

// The checks of several sections of a run's config together, once each is right by itself.

using core::ModelKind;

constexpr int kTensorsPerLlamaLayer = 9;

// Sites of different size count by their tokens, or the small ones would count too much.
void CheckBatchBySite(const core::RunConfig& config, FieldCheck& check) {
  if (config.membership.weights != core::WeightRule::kUniform || config.inner.batch_by_site.empty()) return;
  const auto& [site, rows] = *config.inner.batch_by_site.begin();
  check.Expect(false, absl::StrCat("inner.batch_by_site.", site), "membership.weights: tokens with it",
               absl::StrCat(rows, " rows with membership.weights: uniform"));
}

// The length of a training row, which only a Llama has.
void CheckSequenceLength(const core::RunConfig& config, FieldCheck& check) {
  const bool llama = config.model_kind == core::ModelKind::kLlama;
  check.Integer("inner.sequence_length", config.inner.sequence_length, 0,
                llama ? config.llama.max_position_embeddings : 0,
                llama ? "at most max_position_embeddings" : "a key of kind llama");
}

// While the rate grows, so do the gradients' squares: frozen before, the variance is too small for every later step.
void CheckFreezeAt(const core::RunConfig& config, FieldCheck& check) {
  const core::InnerConfig& inner = config.inner;
  if (inner.optimizer != core::InnerOptimizerKind::kOnebitAdam || inner.onebit.freeze_at == core::kAutoFreeze) return;
  check.Expect(inner.onebit.freeze_at >= inner.warmup_steps, "inner.freeze_at",
               absl::StrCat("warmup_steps, ", inner.warmup_steps, ", or more, or auto"),
               absl::StrCat(inner.onebit.freeze_at));
}

// No fragment may be empty (core::BuildFragmentMap): with too few layers or tensors the run could never start.
void CheckFragmentsFit(const core::RunConfig& config, FieldCheck& check) {
  if (config.model_kind == ModelKind::kExternal) return;  // its tensors are known when a site joins
  if (!config.sync.fragments.empty()) {
    check.Ok("sync.fragments", core::BuildFragmentMap(core::ModelManifest(config), config.sync).status());
    return;
  }
  const bool balanced = config.sync.fragment_assignment == core::FragmentAssignment::kBalanced;
  int64_t most = static_cast<int64_t>(config.synthetic.tensors.size());
  std::string reason = "the model's tensors";
  if (config.model_kind == ModelKind::kLlama && balanced) {
    const int head = config.llama.tie_word_embeddings ? 0 : 1;
    most = config.llama.num_hidden_layers * kTensorsPerLlamaLayer + 2 + head;
  } else if (config.model_kind == ModelKind::kLlama) {
    most = config.llama.num_hidden_layers + 1;
    reason = "num_hidden_layers, and one for embeddings and head";
  }
  check.Integer("sync.num_fragments", config.sync.num_fragments, 1, most, reason);
  if (config.sync.parts == 1 || !check.status().ok()) return;
  check.Ok("sync.parts", core::BuildFragmentMap(core::ModelManifest(config), config.sync).status());
}

void CheckSections(const core::RunConfig& config, FieldCheck& check) {
  CheckBatchBySite(config, check);
  CheckSequenceLength(config, check);
  CheckFreezeAt(config, check);
  CheckFragmentsFit(config, check);
  CheckSteps(config, check);
}

using core::ModelKind;

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

}  // namespace

absl::StatusOr<core::RunConfig> RunConfigFromMessage(const v1::RunConfig& given, FieldCheck& check) {
  core::RunConfig config;
  if (given.model().has_kind()) config.model_kind = check.OneOf("model.kind", given.model().kind(), kModelKinds);
  if (check.HasMistakeAt("model.kind")) return check.status();  // it decides which keys there are

  if (config.model_kind == ModelKind::kSynthetic) config.values.gate = 0;  // run.yaml gives its gradients
  CheckKeysOfKind(given, config.model_kind, check);
  MessageReader reader(given, check);
  RunFields(config, reader);
  RETURN_IF_ERROR(check.status());
  CheckSections(config, check);
  RETURN_IF_ERROR(check.status());
  return config;
}

v1::RunConfig RunConfigToMessage(const core::RunConfig& config) {
  v1::RunConfig message;
  MessageWriter writer(&message);
  core::RunConfig visited = config;
  RunFields(visited, writer);
  return message;
}

}  // namespace causeway::formats
