#include "formats/model_completion.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/text_format.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/check.h"
#include "formats/config_names.h"
#include "formats/hf_config.h"
#include "formats/run_config_message.h"

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

}  // namespace causeway::formats
