// Rows of settings (formats/fields.h) to and from a protobuf message, whose fields have their names.
#pragma once

#include <google/protobuf/message.h>

#include <vector>

#include "formats/fields.h"

namespace causeway::formats {

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

}  // namespace causeway::formats
