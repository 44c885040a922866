#include "formats/message_fields.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/reflection.h>

#include "core/check.h"

namespace causeway::formats {
namespace {

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

}  // namespace

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

}  // namespace causeway::formats
