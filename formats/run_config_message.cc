#include "formats/run_config_message.h"

#include "absl/strings/str_cat.h"
#include "formats/message_fields.h"
#include "formats/run_config_check.h"
#include "formats/run_fields.h"

namespace causeway::formats {
namespace {

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
