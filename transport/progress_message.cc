#include "transport/progress_message.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/reflection.h>

#include <map>
#include <optional>
#include <string>

#include "core/check.h"
#include "core/run_config.h"

namespace causeway::transport {
namespace {

using core::Figure;
using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

const FieldDescriptor& FieldOf(const Descriptor& type, const char* name) {
  const FieldDescriptor* const field = type.FindFieldByName(name);
  CHECK(field != nullptr);
  return *field;
}

// Writes figures to a message.
class Writer {
 public:
  explicit Writer(Message* message) : message_(*message) {}

  template <std::integral T>
  void operator()(const char* name, Figure, T value) {
    const FieldDescriptor& field = Field(name);
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_INT32) {
      reflection_.SetInt32(&message_, &field, static_cast<int32_t>(value));
    } else {
      reflection_.SetInt64(&message_, &field, static_cast<int64_t>(value));
    }
  }
  void operator()(const char* name, Figure, bool value) { reflection_.SetBool(&message_, &Field(name), value); }
  void operator()(const char* name, Figure, uint64_t value) { reflection_.SetUInt64(&message_, &Field(name), value); }
  void operator()(const char* name, Figure, double value) { reflection_.SetDouble(&message_, &Field(name), value); }
  void operator()(const char* name, Figure, const std::string& value) {
    reflection_.SetString(&message_, &Field(name), value);
  }
  template <typename T>
  void operator()(const char* name, Figure figure, const std::optional<T>& value) {
    if (value) (*this)(name, figure, *value);
  }
  void List(const char* name, Figure, size_t, const std::vector<std::string>& values) {
    for (const std::string& value : values) reflection_.AddString(&message_, &Field(name), value);
  }
  void List(const char* name, Figure, size_t, const std::vector<int64_t>& values) {
    for (const int64_t value : values) reflection_.AddInt64(&message_, &Field(name), value);
  }
  template <typename T>
  void Part(const char* name, const T& value) {
    Writer part(reflection_.MutableMessage(&message_, &Field(name)));
    Figures(value, part);
  }
  template <typename T>
  void Part(const char* name, const std::optional<T>& value) {
    if (value) Part(name, *value);
  }
  template <typename T>
  void Each(const char* name, size_t, const std::vector<T>& values) {
    for (const T& value : values) {
      Writer part(reflection_.AddMessage(&message_, &Field(name)));
      Figures(value, part);
    }
  }
  template <typename T>
  void Each(const char* name, const char* key, size_t, const std::map<core::FragmentId, T>& values) {
    for (const auto& [id, value] : values) {
      Writer part(reflection_.AddMessage(&message_, &Field(name)));
      part(key, Figure::kCount, id);
      Figures(value, part);
    }
  }

 private:
  const FieldDescriptor& Field(const char* name) const { return FieldOf(*message_.GetDescriptor(), name); }

  Message& message_;
  const Reflection& reflection_ = *message_.GetReflection();
};

// Reads figures from a message. Structs that are absent keep their defaults.
class Reader {
 public:
  explicit Reader(const Message& message) : message_(message) {}

  template <std::integral T>
  void operator()(const char* name, Figure, T& value) {
    const FieldDescriptor& field = Field(name);
    const bool narrow = field.cpp_type() == FieldDescriptor::CPPTYPE_INT32;
    value = static_cast<T>(narrow ? reflection_.GetInt32(message_, &field) : reflection_.GetInt64(message_, &field));
  }
  void operator()(const char* name, Figure, bool& value) { value = reflection_.GetBool(message_, &Field(name)); }
  void operator()(const char* name, Figure, uint64_t& value) { value = reflection_.GetUInt64(message_, &Field(name)); }
  void operator()(const char* name, Figure, double& value) { value = reflection_.GetDouble(message_, &Field(name)); }
  void operator()(const char* name, Figure, std::string& value) {
    value = reflection_.GetString(message_, &Field(name));
  }
  template <typename T>
  void operator()(const char* name, Figure figure, std::optional<T>& value) {
    if (reflection_.HasField(message_, &Field(name))) (*this)(name, figure, value.emplace());
  }
  template <typename T>
  void List(const char* name, Figure, size_t, std::vector<T>& values) {
    const auto& list = reflection_.GetRepeatedFieldRef<T>(message_, &Field(name));
    values.assign(list.begin(), list.end());
  }
  template <typename T>
  void Part(const char* name, T& value) {
    const FieldDescriptor& field = Field(name);
    if (reflection_.HasField(message_, &field)) Inside(reflection_.GetMessage(message_, &field), value);
  }
  template <typename T>
  void Part(const char* name, std::optional<T>& value) {
    if (reflection_.HasField(message_, &Field(name))) Part(name, value.emplace());
  }
  template <typename T>
  void Each(const char* name, size_t, std::vector<T>& values) {
    const FieldDescriptor& field = Field(name);
    for (int i = 0; i < reflection_.FieldSize(message_, &field); ++i) {
      Inside(reflection_.GetRepeatedMessage(message_, &field, i), values.emplace_back());
    }
  }
  template <typename T>
  void Each(const char* name, const char* key, size_t, std::map<core::FragmentId, T>& values) {
    const FieldDescriptor& field = Field(name);
    for (int i = 0; i < reflection_.FieldSize(message_, &field); ++i) {
      const Message& item = reflection_.GetRepeatedMessage(message_, &field, i);
      core::FragmentId id = 0;
      Reader part(item);
      part(key, Figure::kCount, id);
      Inside(item, values[id]);
    }
  }

 private:
  const FieldDescriptor& Field(const char* name) const { return FieldOf(*message_.GetDescriptor(), name); }
  template <typename T>
  static void Inside(const Message& message, T& value) {
    Reader part(message);
    Figures(value, part);
  }

  const Message& message_;
  const Reflection& reflection_ = *message_.GetReflection();
};

constexpr int64_t kMostSeconds = 1'000'000'000'000;       // 30,000 years
constexpr int64_t kMostRate = 1'000'000'000'000'000'000;  // bytes or tokens a second

FieldLimit LimitOf(Figure figure) {
  switch (figure) {
    case Figure::kCount: return {"", Holds::kInteger, 0, core::kMostRunTokens};
    case Figure::kChoice: return {"", Holds::kInteger, core::kResident, core::kMostRunTokens};
    case Figure::kVersion: return {"", Holds::kInteger, -1, core::kMostRunTokens};
    case Figure::kAmount: return {"", Holds::kNumber, 0, core::kMostRunTokens};
    case Figure::kSeconds: return {"", Holds::kNumber, 0, kMostSeconds};
    case Figure::kSlack: return {"", Holds::kNumber, -kMostSeconds, kMostSeconds};
    case Figure::kRate: return {"", Holds::kNumber, 0, kMostRate};
    case Figure::kName: return {"", Holds::kText, 0, core::kMaxSiteTextBytes};
    case Figure::kWords: return {"", Holds::kText, 0, core::kMaxEventTextBytes};
    case Figure::kReal:  // unbounded: a diverging model may report infinity or NaN
    case Figure::kFlag:
    case Figure::kDigest: return {};
  }
  CHECK(false);
}

// Lists the limits of figures in a message of this type.
class Lister {
 public:
  Lister(const Descriptor& type, std::vector<FieldLimit>* limits) : type_(type), limits_(*limits) {}

  template <typename T>
  void operator()(const char* name, Figure figure, const T&) {
    Add(name, LimitOf(figure));
  }
  template <typename T>
  void List(const char* name, Figure figure, size_t most, const std::vector<T>&) {
    Add(name, LimitOf(figure), most);
  }
  template <typename T>
  void Part(const char* name, const T& value) {
    Add(name, {});
    Inside(name, value);
  }
  template <typename T>
  void Part(const char* name, const std::optional<T>&) {
    Part(name, T());
  }
  template <typename T>
  void Each(const char* name, size_t most, const std::vector<T>&) {
    Add(name, {}, most);
    Inside(name, T());
  }
  template <typename T>
  void Each(const char* name, const char* key, size_t most, const std::map<core::FragmentId, T>&) {
    Add(name, {}, most);
    Lister part(*FieldOf(type_, name).message_type(), &limits_);
    part.Add(key, {"", Holds::kInteger, 0, core::kMaxFragments - 1});
    Inside(name, T());
  }

 private:
  void Add(const char* name, FieldLimit limit, size_t most = 1) {
    static_assert(std::string_view("causeway.v1.").size() == 12);
    limit.field = FieldOf(type_, name).full_name();
    limit.field.remove_prefix(12);
    limit.items = static_cast<int64_t>(most);
    limits_.push_back(limit);
  }
  template <typename T>
  void Inside(const char* name, const T& value) {
    Lister part(*FieldOf(type_, name).message_type(), &limits_);
    Figures(value, part);
  }

  const Descriptor& type_;
  std::vector<FieldLimit>& limits_;
};

}  // namespace

void ToProto(const core::Progress& progress, v1::Progress* message) {
  Writer writer(message);
  Figures(progress, writer);
}

core::Progress FromProto(const v1::Progress& message) {
  core::Progress progress;
  Reader reader(message);
  Figures(progress, reader);
  return progress;
}

std::vector<FieldLimit> ProgressLimits() {
  std::vector<FieldLimit> limits;
  Lister lister(*v1::Progress::descriptor(), &limits);
  const core::Progress progress;
  Figures(progress, lister);
  return limits;
}

}  // namespace causeway::transport
