#include "tests/transport/hostile_values.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "causeway/v1/coordinator.pb.h"
#include "core/check.h"

namespace causeway::transport {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr int64_t kMany = 1'000'000;
constexpr int64_t kLongText = 8 << 20;
constexpr FieldLimit kOfAnswers{"a field of answers alone", Holds::kInteger, 0, 1024, 1024};  // to try, not to hold

// The message that has the path's last field.
Message& OwnerIn(Message& message, const FieldPath& path) {
  Message* at = &message;
  for (const FieldDescriptor* field : path.fields) {
    if (field == path.fields.back()) break;
    const google::protobuf::Reflection& reflection = *at->GetReflection();
    if (!field->is_repeated()) {
      at = reflection.MutableMessage(at, field);
    } else if (reflection.FieldSize(*at, field) > 0) {
      at = reflection.MutableRepeatedMessage(at, field, 0);
    } else {
      at = reflection.AddMessage(at, field);
    }
  }
  return *at;
}

// `value` is what Number<type> of the field takes.
template <typename Value>
void PutOne(Message& owner, const FieldDescriptor& field, const Value& value) {
  const google::protobuf::Reflection& reflection = *owner.GetReflection();
  const bool many = field.is_repeated();
  if constexpr (std::is_same_v<Value, std::string>) {
    many ? reflection.AddString(&owner, &field, value) : reflection.SetString(&owner, &field, value);
  } else {
    switch (field.cpp_type()) {
#define CAUSEWAY_PUT(TYPE, Name, Type)                                     \
  case FieldDescriptor::TYPE:                                              \
    many ? reflection.Add##Name(&owner, &field, static_cast<Type>(value))  \
         : reflection.Set##Name(&owner, &field, static_cast<Type>(value)); \
    return
      CAUSEWAY_PUT(CPPTYPE_INT32, Int32, int32_t);
      CAUSEWAY_PUT(CPPTYPE_INT64, Int64, int64_t);
      CAUSEWAY_PUT(CPPTYPE_UINT32, UInt32, uint32_t);
      CAUSEWAY_PUT(CPPTYPE_UINT64, UInt64, uint64_t);
      CAUSEWAY_PUT(CPPTYPE_DOUBLE, Double, double);
      CAUSEWAY_PUT(CPPTYPE_FLOAT, Float, float);
      CAUSEWAY_PUT(CPPTYPE_BOOL, Bool, bool);
      CAUSEWAY_PUT(CPPTYPE_ENUM, EnumValue, int);
#undef CAUSEWAY_PUT
      default: CHECK(false);
    }
  }
}

template <typename Value>
HostileValue One(const FieldPath& path, std::string name, bool within, Value value) {
  return {std::move(name), within, [path, value](Message& message) {
            Message& owner = OwnerIn(message, path);
            owner.GetReflection()->ClearField(&owner, &path.field());
            PutOne(owner, path.field(), value);
          }};
}

void AddItems(const FieldPath& path, std::vector<HostileValue>& values) {
  const int64_t most = path.limit().items;
  for (const int64_t count : {most, most + 1, kMany}) {
    values.push_back({absl::StrCat(count, " items"), count <= most, [path, count](Message& message) {
                        Message& owner = OwnerIn(message, path);
                        const FieldDescriptor& field = path.field();
                        const google::protobuf::Reflection& reflection = *owner.GetReflection();
                        reflection.ClearField(&owner, &field);
                        for (int64_t i = 0; i < count; ++i) {
                          switch (field.cpp_type()) {
                            case FieldDescriptor::CPPTYPE_MESSAGE: reflection.AddMessage(&owner, &field); break;
                            case FieldDescriptor::CPPTYPE_STRING: reflection.AddString(&owner, &field, ""); break;
                            default: PutOne(owner, field, std::max<int64_t>(path.limit().least, 0));
                          }
                        }
                      }});
  }
}

template <typename Type>
void AddIntegers(const FieldPath& path, std::vector<HostileValue>& values) {
  const FieldLimit& limit = path.limit();
  const bool any = limit.holds == Holds::kAnything;
  using Limits = std::numeric_limits<Type>;
  std::set<Type> tried = {0, 1, Limits::min(), Limits::max(), static_cast<Type>(-1), Type{1} << (Limits::digits - 1)};
  for (const int64_t bound : {limit.least, limit.most}) {
    for (const int64_t off : {-1, 0, 1}) {
      if (bound == std::numeric_limits<int64_t>::max() && off > 0) continue;
      if (const int64_t near = bound + off;
          static_cast<int64_t>(static_cast<Type>(near)) == near && (near >= 0 || std::is_signed_v<Type>)) {
        tried.insert(static_cast<Type>(near));
      }
    }
  }
  for (const Type value : tried) {
    const bool huge = !std::is_signed_v<Type> &&
                      value > static_cast<Type>(std::min<uint64_t>(Limits::max(), std::numeric_limits<int64_t>::max()));
    const bool within =
        any || (!huge && static_cast<int64_t>(value) >= limit.least && static_cast<int64_t>(value) <= limit.most);
    values.push_back(One(path, absl::StrCat(value), within, value));
  }
}

void AddNumbers(const FieldPath& path, std::vector<HostileValue>& values) {
  const FieldLimit& limit = path.limit();
  const bool any = limit.holds == Holds::kAnything;
  const auto least = static_cast<double>(limit.least), most = static_cast<double>(limit.most);
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double value : {0.0, -0.0, -1.0, least, most, std::nextafter(most, infinity),
                             std::nextafter(least, -infinity), infinity, -infinity, std::nan(""), 1e308}) {
    values.push_back(One(path, absl::StrCat(value), any || (value >= least && value <= most), value));
  }
}

void AddTexts(const FieldPath& path, std::vector<HostileValue>& values) {
  const int64_t most = path.limit().most;
  for (const int64_t bytes : {int64_t{0}, most, most + 1, kLongText}) {
    values.push_back(One(path, absl::StrCat(bytes, " bytes"), bytes <= most, std::string(bytes, 'x')));
  }
  values.push_back(One(path, "names of paths and markup", true, std::string("../<b>'\";\n\\\"%s{}")));
}

void AddPaths(const Descriptor& message, std::vector<const FieldDescriptor*>& fields, std::vector<FieldPath>& paths) {
  for (int i = 0; i < message.field_count(); ++i) {
    fields.push_back(message.field(i));
    paths.push_back({fields});
    if (const Descriptor* inner = message.field(i)->message_type()) AddPaths(*inner, fields, paths);
    fields.pop_back();
  }
}

}  // namespace

const google::protobuf::ServiceDescriptor& Service() {
  return *v1::UploadMessage::descriptor()->file()->FindServiceByName("Coordinator");
}

std::vector<const Descriptor*> Requests() {
  std::vector<const Descriptor*> requests;
  for (int i = 0; i < Service().method_count(); ++i) {
    const Descriptor* request = Service().method(i)->input_type();
    if (std::ranges::count(requests, request) == 0) requests.push_back(request);
  }
  return requests;
}

const FieldLimit& FieldPath::limit() const {
  const std::string name = absl::StrCat(field().containing_type()->name(), ".", field().name());
  const auto found = std::ranges::find(FieldLimits(), std::string_view(name), &FieldLimit::field);
  return found == FieldLimits().end() ? kOfAnswers : *found;
}

std::string FieldPath::Text() const {
  return absl::StrJoin(fields, ".", [](std::string* out, const FieldDescriptor* field) { out->append(field->name()); });
}

std::vector<FieldPath> PathsIn(const Descriptor& message) {
  std::vector<const FieldDescriptor*> fields;
  std::vector<FieldPath> paths;
  AddPaths(message, fields, paths);
  return paths;
}

std::vector<HostileValue> HostileValues(const FieldPath& path) {
  std::vector<HostileValue> values;
  if (path.field().is_repeated()) AddItems(path, values);
  switch (path.field().cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32: AddIntegers<int32_t>(path, values); break;
    case FieldDescriptor::CPPTYPE_INT64: AddIntegers<int64_t>(path, values); break;
    case FieldDescriptor::CPPTYPE_UINT32: AddIntegers<uint32_t>(path, values); break;
    case FieldDescriptor::CPPTYPE_UINT64: AddIntegers<uint64_t>(path, values); break;
    case FieldDescriptor::CPPTYPE_ENUM:
    case FieldDescriptor::CPPTYPE_BOOL:
      for (const int value : {0, 1, 77}) values.push_back(One(path, absl::StrCat(value), true, value));
      break;
    case FieldDescriptor::CPPTYPE_DOUBLE:
    case FieldDescriptor::CPPTYPE_FLOAT: AddNumbers(path, values); break;
    case FieldDescriptor::CPPTYPE_STRING: AddTexts(path, values); break;
    case FieldDescriptor::CPPTYPE_MESSAGE:
      if (path.field().is_repeated()) break;
      values.push_back({"empty", true, [path](Message& message) {
                          Message& owner = OwnerIn(message, path);
                          owner.GetReflection()->MutableMessage(&owner, &path.field())->Clear();
                        }});
      values.push_back({"absent", true, [path](Message& message) {
                          Message& owner = OwnerIn(message, path);
                          owner.GetReflection()->ClearField(&owner, &path.field());
                        }});
      break;
  }
  return values;
}

}  // namespace causeway::transport
