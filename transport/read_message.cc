#include "transport/read_message.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <bit>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/text.h"
#include "transport/field_limits.h"

namespace causeway::transport {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

struct MessagePlan;

struct FieldPlan {
  const FieldDescriptor* field = nullptr;  // nullptr: unknown to this version
  const FieldLimit* limit = nullptr;
  const MessagePlan* message = nullptr;  // if the field is a message
};

// The fields of a message by their numbers.
struct MessagePlan {
  std::vector<FieldPlan> fields;
};

class Plans {
 public:
  Plans() {
    for (const FieldLimit& limit : FieldLimits()) {
      const FieldDescriptor* field =
          DescriptorPool::generated_pool()->FindFieldByName(absl::StrCat("causeway.v1.", std::string(limit.field)));
      CHECK(field != nullptr);  // a row for each field, and no other
      std::vector<FieldPlan>& fields = PlanOf(field->containing_type())->fields;
      if (std::ssize(fields) <= field->number()) fields.resize(field->number() + 1);
      fields[field->number()] = {field, &limit, PlanOf(field->message_type())};
    }
  }

  const MessagePlan& Of(const Descriptor& message) const {
    const auto found = plans_.find(&message);
    CHECK(found != plans_.end());
    return *found->second;
  }

 private:
  MessagePlan* PlanOf(const Descriptor* message) {
    if (message == nullptr) return nullptr;
    std::unique_ptr<MessagePlan>& plan = plans_[message];
    if (plan == nullptr) plan = std::make_unique<MessagePlan>();
    return plan.get();
  }

  std::unordered_map<const Descriptor*, std::unique_ptr<MessagePlan>> plans_;
};

absl::Status Beyond(const std::string& expected, const std::string& got) {
  return absl::InvalidArgumentError(absl::StrCat(": expected ", expected, ", got ", got));
}

absl::Status Torn() { return absl::InvalidArgumentError(": the message is truncated"); }

bool IsUnsigned(FieldDescriptor::CppType type) {
  return type == FieldDescriptor::CPPTYPE_UINT32 || type == FieldDescriptor::CPPTYPE_UINT64;
}

// Checks one message's bytes.
class Walk {
 public:
  Walk(CodedInputStream* bytes, const MessagePlan& plan) : bytes_(*bytes), plan_(plan), items_(plan.fields.size()) {}

  // Reads up to the limit set on the bytes.
  absl::Status Run() {
    while (const uint32_t tag = bytes_.ReadTag()) {
      const int number = WireFormatLite::GetTagFieldNumber(tag);
      const bool known = number < std::ssize(plan_.fields) && plan_.fields[number].field != nullptr;
      const absl::Status status = known ? Field(plan_.fields[number], tag) : PassOver(tag);
      if (!status.ok()) return status;
    }
    return bytes_.ConsumedEntireMessage() ? absl::OkStatus() : Torn();
  }

 private:
  absl::Status PassOver(uint32_t tag) {
    if (WireFormatLite::GetTagWireType(tag) == WireFormatLite::WIRETYPE_START_GROUP) {
      return absl::InvalidArgumentError(": expected fields, got a group");  // which could be nested without limit
    }
    return WireFormatLite::SkipField(&bytes_, tag) ? absl::OkStatus() : Torn();
  }

  // Puts the field's name in front of the error.
  absl::Status Field(const FieldPlan& plan, uint32_t tag) {
    const absl::Status status = Values(plan, tag);
    if (status.ok()) return status;
    const std::string index = plan.field->is_repeated() ? absl::StrCat("[", items_[plan.field->number()] - 1, "]") : "";
    const absl::string_view rest = status.message();
    return absl::InvalidArgumentError(absl::StrCat(plan.field->name(), index, rest[0] == ':' ? "" : ".", rest));
  }

  absl::Status Values(const FieldPlan& plan, uint32_t tag) {
    const FieldDescriptor& field = *plan.field;
    const auto wire_type = WireFormatLite::GetTagWireType(tag);
    const auto expected = WireFormatLite::WireTypeForFieldType(static_cast<WireFormatLite::FieldType>(field.type()));
    if (wire_type == expected) {
      RETURN_IF_ERROR(Counted(plan));
      return Value(plan);
    }
    if (!field.is_packable() || wire_type != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      return Beyond(absl::StrCat("wire type ", static_cast<int>(expected)),
                    absl::StrCat("wire type ", static_cast<int>(wire_type)));
    }
    return Within([&]() -> absl::Status {
      while (bytes_.BytesUntilLimit() > 0) {
        RETURN_IF_ERROR(Counted(plan));
        RETURN_IF_ERROR(Value(plan));
      }
      return absl::OkStatus();
    });
  }

  absl::Status Counted(const FieldPlan& plan) {
    const int64_t items = ++items_[plan.field->number()];
    if (items > plan.limit->items) {
      if (!plan.field->is_repeated()) return Beyond("one", "another");
      return Beyond(absl::StrCat("at most ", plan.limit->items), "more");
    }
    const auto* oneof = plan.field->real_containing_oneof();
    if (oneof == nullptr || items > 1) return absl::OkStatus();
    for (int i = 0; i < oneof->field_count(); ++i) {
      const FieldDescriptor& other = *oneof->field(i);
      if (&other == plan.field || other.number() >= std::ssize(items_) || items_[other.number()] == 0) continue;
      return Beyond(absl::StrCat("one of ", oneof->name()), absl::StrCat(other.name(), " as well"));
    }
    return absl::OkStatus();
  }

  absl::Status Value(const FieldPlan& plan) {
    switch (plan.field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_MESSAGE: return Within([&] { return Walk(&bytes_, *plan.message).Run(); });
      case FieldDescriptor::CPPTYPE_STRING: return Text(*plan.limit);
      case FieldDescriptor::CPPTYPE_DOUBLE: return Double(*plan.limit);
      case FieldDescriptor::CPPTYPE_FLOAT: return Float(*plan.limit);
      default: return Integer(plan);
    }
  }

  template <typename Function>
  absl::Status Within(Function function) {
    int length = 0;
    if (!bytes_.ReadVarintSizeAsInt(&length)) return Torn();
    if (bytes_.BytesUntilLimit() >= 0 && length > bytes_.BytesUntilLimit()) return Torn();
    const CodedInputStream::Limit limit = bytes_.PushLimit(length);
    const absl::Status status = function();
    const bool whole = bytes_.BytesUntilLimit() == 0;
    bytes_.PopLimit(limit);
    return status.ok() && !whole ? Torn() : status;
  }

  absl::Status Text(const FieldLimit& limit) {
    int length = 0;
    if (!bytes_.ReadVarintSizeAsInt(&length)) return Torn();
    if (length > limit.most) return Beyond(absl::StrCat("at most ", limit.most, " bytes"), absl::StrCat(length));
    return bytes_.Skip(length) ? absl::OkStatus() : Torn();
  }

  absl::Status Double(const FieldLimit& limit) {
    uint64_t bits = 0;
    if (!bytes_.ReadLittleEndian64(&bits)) return Torn();
    return CheckNumber(std::bit_cast<double>(bits), limit);
  }

  absl::Status Float(const FieldLimit& limit) {
    uint32_t bits = 0;
    if (!bytes_.ReadLittleEndian32(&bits)) return Torn();
    return CheckNumber(std::bit_cast<float>(bits), limit);
  }

  static absl::Status CheckNumber(double value, const FieldLimit& limit) {
    if (limit.holds == Holds::kAnything) return absl::OkStatus();
    if (value >= static_cast<double>(limit.least) && value <= static_cast<double>(limit.most)) return absl::OkStatus();
    return Beyond(absl::StrCat(limit.least, " to ", limit.most), absl::StrCat(value));
  }

  absl::Status Integer(const FieldPlan& plan) {
    uint64_t bits = 0;
    if (!ReadBits(*plan.field, &bits)) return Torn();
    if (plan.limit->holds == Holds::kAnything) return absl::OkStatus();
    const auto value = static_cast<int64_t>(bits);
    const bool huge = value < 0 && IsUnsigned(plan.field->cpp_type());
    if (!huge && value >= plan.limit->least && value <= plan.limit->most) return absl::OkStatus();
    return Beyond(absl::StrCat(plan.limit->least, " to ", plan.limit->most),
                  huge ? absl::StrCat(bits) : absl::StrCat(value));
  }

  bool ReadBits(const FieldDescriptor& field, uint64_t* bits) {
    const auto wire_type = WireFormatLite::WireTypeForFieldType(static_cast<WireFormatLite::FieldType>(field.type()));
    if (wire_type == WireFormatLite::WIRETYPE_VARINT) return bytes_.ReadVarint64(bits);
    CHECK(field.type() == FieldDescriptor::TYPE_FIXED64);  // the only other one in the schema
    return bytes_.ReadLittleEndian64(bits);
  }

  CodedInputStream& bytes_;
  const MessagePlan& plan_;
  std::vector<int64_t> items_;  // of each field, by number
};

}  // namespace

void MakePrintable(google::protobuf::Message& message) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const int items = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      for (int i = 0; i < items; ++i) {
        MakePrintable(field->is_repeated() ? *reflection.MutableRepeatedMessage(&message, field, i)
                                           : *reflection.MutableMessage(&message, field));
      }
    }
    if (field->type() != FieldDescriptor::TYPE_STRING) continue;
    for (int i = 0; i < items; ++i) {
      std::string scratch;
      const std::string& text = field->is_repeated()
                                    ? reflection.GetRepeatedStringReference(message, field, i, &scratch)
                                    : reflection.GetStringReference(message, field, &scratch);
      std::string printable = core::InOneLine(text);
      if (printable == text) continue;
      if (field->is_repeated()) {
        reflection.SetRepeatedString(&message, field, i, std::move(printable));
      } else {
        reflection.SetString(&message, field, std::move(printable));
      }
    }
  }
}

absl::Status CheckFields(const Descriptor& message, google::protobuf::io::ZeroCopyInputStream* bytes) {
  static const Plans* const plans = new Plans();  // streams may outlive main
  CodedInputStream input(bytes);
  const absl::Status status = Walk(&input, plans->Of(message)).Run();
  if (status.ok() || status.message()[0] != ':') return status;
  return absl::InvalidArgumentError(absl::StrCat(message.name(), status.message()));
}

}  // namespace causeway::transport
