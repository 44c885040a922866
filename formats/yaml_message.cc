#include "formats/yaml_message.h"

#include <google/protobuf/descriptor.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <sstream>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "causeway/v1/levels.pb.h"
#include "causeway/v1/run_config.pb.h"
#include "core/check.h"
#include "core/text.h"
#include "formats/named_file.h"

namespace causeway::formats {
namespace {

constexpr int64_t kMaxLevelsBytes = 1 << 20;

core::LinkLevel ReadLevel(const v1::Level& level, const std::string& path, FieldCheck& check) {
  const bool wan = level.has_mbit_per_s();
  check.Expect(!level.name().empty(), path + ".name", "a name", "none");
  check.Expect(wan || level.has_gbyte_per_s(), path, "gbyte_per_s (within a site) or mbit_per_s (between sites)",
               "neither");
  check.Expect(!(wan && level.has_gbyte_per_s()), path, "gbyte_per_s or mbit_per_s", "both");
  check.Expect(!(wan ? level.has_latency_us() : level.has_rtt_ms()), path,
               wan ? "rtt_ms beside mbit_per_s" : "latency_us beside gbyte_per_s", wan ? "latency_us" : "rtt_ms");
  return {.name = level.name(),
          .of = check.Integer(path + ".of", level.of(), 1, core::kMaxLevelRanks),
          .bytes_per_s = wan ? 1e6 / 8 * check.Positive(path + ".mbit_per_s", level.mbit_per_s())
                             : 1e9 * check.Positive(path + ".gbyte_per_s", level.gbyte_per_s()),
          .latency_s = wan ? 1e-3 / 2 * check.NotNegative(path + ".rtt_ms", level.rtt_ms())
                           : 1e-6 * check.NotNegative(path + ".latency_us", level.latency_us())};
}

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// The keys to suggest instead of an unknown one: the one probably meant, else all.
std::string KnownKeys(const Descriptor& section, const std::string& unknown) {
  if (const size_t dot = unknown.find('.'); dot != std::string::npos) {
    const FieldDescriptor* const field = section.FindFieldByName(unknown.substr(0, dot));
    if (field != nullptr && field->message_type() != nullptr) {
      return absl::StrCat("a line \"", field->name(), ":\", and below it, two columns deeper, \"",
                          unknown.substr(dot + 1), ": …\"");
    }
  }
  std::vector<std::string> names;
  for (int i = 0; i < section.field_count(); ++i) names.push_back(section.field(i)->name());
  const auto nearest = std::min_element(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
    return core::EditDistance(a, unknown) < core::EditDistance(b, unknown);
  });
  const size_t close = std::max<size_t>(2, unknown.size() / 4);
  if (core::EditDistance(*nearest, unknown) <= close) return absl::StrCat(*nearest, " (the nearest known key)");
  return absl::StrCat("one of ", absl::StrJoin(names, ", "));
}

// YAML 1.1 reads 050 as 40, YAML 1.2 as 50.
bool IsOctal(const std::string& text) {
  const size_t sign = text.starts_with('-') || text.starts_with('+') ? 1 : 0;
  return text.size() > sign + 1 && text[sign] == '0' && std::ranges::all_of(text.substr(sign), absl::ascii_isdigit);
}

std::string Describe(const YAML::Node& node) {
  constexpr size_t kLongest = 60;
  if (node.IsMap()) return "a section";
  if (node.IsSequence()) return "a list";
  if (!node.IsScalar()) return "nothing";
  const std::string& text = node.Scalar();
  constexpr std::string_view kStandard = "tag:yaml.org,2002:";
  if (const std::string& tag = node.Tag(); !tag.empty() && tag != "?" && tag != "!") {
    const std::string name = tag.starts_with(kStandard) ? absl::StrCat("!!", tag.substr(kStandard.size())) : tag;
    return absl::StrCat(text, " with the tag ", name, ": leave the tag out");
  }
  if (IsOctal(text)) return absl::StrCat(text, ", which some programs read as octal: leave the 0 out");
  const bool quoted = node.Tag() == "!";
  const std::string shown = text.size() > kLongest ? text.substr(0, kLongest) + "…" : text;
  return quoted ? absl::StrCat("\"", shown, "\"") : shown;
}

bool ParseNumber(const std::string& text, float* value) { return absl::SimpleAtof(text, value); }
bool ParseNumber(const std::string& text, double* value) { return absl::SimpleAtod(text, value); }

// YAML's numbers: what strtod takes less its words, plus .nan and .inf. False also for one that overflows.
template <typename T>
bool ParseYamlNumber(const std::string& text, T* value) {
  const bool negative = text.starts_with('-');
  const std::string digits = negative || text.starts_with('+') ? text.substr(1) : text;
  const std::string word = absl::AsciiStrToLower(digits);
  if (word == ".nan" || word == ".inf") {
    *value = word == ".nan" ? std::numeric_limits<T>::quiet_NaN() : std::numeric_limits<T>::infinity();
    if (negative) *value = -*value;
    return true;
  }
  if (digits.empty() || !(absl::ascii_isdigit(digits[0]) || digits[0] == '.')) return false;
  return ParseNumber(text, value) && std::isfinite(*value);
}

// Why the parser gave up at this line (from 0), where it is that the line's key does not stand below its neighbors;
// else empty. Sections are told apart by their columns, so that one column too many or too few is the usual mistake.
std::string ColumnsOf(std::string_view text, int line) {
  const std::vector<std::string> lines = absl::StrSplit(std::string(text), '\n');
  for (int at = std::max(0, line - 1); at <= line && at < static_cast<int>(lines.size()); ++at) {
    const size_t first = lines[at].find_first_not_of(" \t");
    if (lines[at].substr(0, first).find('\t') == std::string::npos) continue;
    return absl::StrCat(": line ", at + 1, " begins with a tab: YAML is indented by spaces");
  }
  const auto column = [](const std::string& one) { return one.find_first_not_of(' '); };
  const auto is_key = [&](const std::string& one) {
    const size_t at = column(one);
    return at != std::string::npos && one[at] != '#' && one.find(':') != std::string::npos;
  };
  if (line >= static_cast<int>(lines.size()) || !is_key(lines[line])) return "";
  const size_t here = column(lines[line]);
  for (int before = line - 1; before >= 0; --before) {
    if (!is_key(lines[before])) continue;
    const size_t there = column(lines[before]);
    if (here == there) return "";
    const size_t apart = here > there ? here - there : there - here;
    return absl::StrCat(", column ", here + 1, ": this key stands ", apart, apart == 1 ? " column " : " columns ",
                        here > there ? "deeper" : "less deep", " than the one in line ", before + 1);
  }
  return "";
}

class YamlReader {
 public:
  YamlReader(Origin& origin, FieldCheck& check, const KeyAdvice& advice)
      : origin_(origin), check_(check), advice_(advice) {}

  void ReadSection(const YAML::Node& node, const std::string& path, Message& message) {
    if (node.IsNull()) return;  // "sync:" with every key under it commented out
    if (!node.IsMap()) return Wrong(node, path, "a section of keys");
    const Descriptor& section = *message.GetDescriptor();
    for (const auto& item : node) {
      if (!item.first.IsScalar()) return Wrong(item.first, path, "keys that are names");
      const std::string key = item.first.Scalar();
      const std::string key_path = path.empty() ? key : absl::StrCat(path, ".", key);
      if (!NoteLine(item.first, key_path)) continue;
      const FieldDescriptor* field = section.FindFieldByName(key);
      if (field != nullptr) {
        ReadField(item.second, key_path, *field, message);
      } else {
        const auto advice = advice_.find(key_path);
        check_.Expect(false, key_path, advice == advice_.end() ? KnownKeys(section, key) : advice->second,
                      "an unknown key");
      }
    }
  }

 private:
  // Records the key's line. False, and a mistake: the key was there before.
  bool NoteLine(const YAML::Node& node, const std::string& path) {
    const int line = node.Mark().line + 1;
    const auto [entry, is_new] = origin_.lines.emplace(path, line);
    if (is_new) return true;
    const int first = std::exchange(entry->second, line);
    check_.Expect(false, path, "each key once", absl::StrCat("it again after line ", first));
    return false;
  }

  void ReadField(const YAML::Node& node, const std::string& path, const FieldDescriptor& field, Message& message) {
    if (field.is_map()) return ReadMap(node, path, field, message);
    if (!field.is_repeated()) return ReadValue(node, path, field, message);
    if (node.IsNull()) return;
    if (!node.IsSequence()) return Wrong(node, path, "a list");
    for (size_t i = 0; i < node.size(); ++i) {
      const std::string item_path = absl::StrCat(path, "[", i, "]");
      if (NoteLine(node[i], item_path)) ReadValue(node[i], item_path, field, message);
    }
  }

  // A protobuf map is, to reflection, a repeated message of key and value.
  void ReadMap(const YAML::Node& node, const std::string& path, const FieldDescriptor& field, Message& message) {
    if (node.IsNull()) return;
    if (!node.IsMap()) return Wrong(node, path, "a section of keys");
    const FieldDescriptor& value = *field.message_type()->map_value();
    for (const auto& item : node) {
      if (!item.first.IsScalar()) return Wrong(item.first, path, "keys that are names");
      const std::string key = item.first.Scalar();
      const std::string key_path = absl::StrCat(path, ".", key);
      if (!NoteLine(item.first, key_path)) continue;
      Message& entry = *message.GetReflection()->AddMessage(&message, &field);
      entry.GetReflection()->SetString(&entry, field.message_type()->map_key(), key);
      ReadValue(item.second, key_path, value, entry);
    }
  }

  // Sets a singular field, or adds to a repeated one.
  void ReadValue(const YAML::Node& node, const std::string& path, const FieldDescriptor& field, Message& message) {
    const Reflection& reflection = *message.GetReflection();
    const bool add = field.is_repeated();
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      Message* section = add ? reflection.AddMessage(&message, &field) : reflection.MutableMessage(&message, &field);
      if (!field.message_type()->options().GetExtension(v1::is_list)) return ReadSection(node, path, *section);
      return ReadField(node, path, *field.message_type()->field(0), *section);
    }
    const std::string text = node.IsScalar() ? node.Scalar() : "";
    const bool plain = node.IsScalar() && node.Tag() == "?";
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_STRING:
        if (!plain && !(node.IsScalar() && node.Tag() == "!")) return Wrong(node, path, "a text");
        add ? reflection.AddString(&message, &field, text) : reflection.SetString(&message, &field, text);
        return;
      case FieldDescriptor::CPPTYPE_BOOL:
        if (!plain || (text != "true" && text != "false")) return Wrong(node, path, "true or false");
        add ? reflection.AddBool(&message, &field, text == "true")
            : reflection.SetBool(&message, &field, text == "true");
        return;
      case FieldDescriptor::CPPTYPE_INT64: {
        int64_t value = -1;  // auto, which only the word says
        const bool may_be_auto = field.options().GetExtension(v1::may_be_auto);
        const bool is_auto = may_be_auto && text == "auto";
        if (!is_auto && (!plain || IsOctal(text) || !absl::SimpleAtoi(text, &value) || (may_be_auto && value < 0))) {
          return Wrong(node, path, may_be_auto ? "auto, or an integer of 0 or more" : "an integer of 64 bits");
        }
        add ? reflection.AddInt64(&message, &field, value) : reflection.SetInt64(&message, &field, value);
        return;
      }
      case FieldDescriptor::CPPTYPE_UINT64: {
        uint64_t value;
        if (!plain || IsOctal(text) || !absl::SimpleAtoi(text, &value)) {
          return Wrong(node, path, "an integer of 0 to 2^64 - 1");
        }
        add ? reflection.AddUInt64(&message, &field, value) : reflection.SetUInt64(&message, &field, value);
        return;
      }
      case FieldDescriptor::CPPTYPE_FLOAT: {
        float value;
        if (!plain || !ParseYamlNumber(text, &value)) return Wrong(node, path, "a number");
        add ? reflection.AddFloat(&message, &field, value) : reflection.SetFloat(&message, &field, value);
        return;
      }
      case FieldDescriptor::CPPTYPE_DOUBLE: {
        double value;
        if (!plain || !ParseYamlNumber(text, &value)) return Wrong(node, path, "a number");
        add ? reflection.AddDouble(&message, &field, value) : reflection.SetDouble(&message, &field, value);
        return;
      }
      default: break;
    }
    CHECK(false);  // no such type in a schema
  }

  void Wrong(const YAML::Node& node, const std::string& path, std::string_view expected) {
    check_.Expect(false, path, expected, Describe(node));
  }

  Origin& origin_;
  FieldCheck& check_;
  const KeyAdvice& advice_;
};

// Passes over a document.
class NoEvents : public YAML::EventHandler {
  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

// 0, 1, or 2 for more; not by YAML::LoadAll, which never ends on a text that begins with a comma.
int CountDocuments(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  NoEvents events;
  int documents = 0;
  while (documents < 2 && parser.HandleNextDocument(events)) ++documents;
  return documents;
}

}  // namespace

void ReadYamlMessage(std::string_view text, Origin& origin, Message& message, FieldCheck& check,
                     const KeyAdvice& advice) {
  origin.lines[""] = 1;
  try {
    const int documents = CountDocuments(std::string(text));
    check.Expect(documents <= 1, "", "one YAML document", "several");
    if (documents == 1) YamlReader(origin, check, advice).ReadSection(YAML::Load(std::string(text)), "", message);
  } catch (const YAML::Exception& error) {  // yaml-cpp has no other way to say it
    const int line = std::max(0, error.mark.line);
    origin.lines[""] = line + 1;
    check.Expect(false, "", "YAML", absl::StrCat(error.msg, ColumnsOf(text, line)));
  }
}

std::string YamlOf(const std::string& key, const std::string& value) {
  std::string yaml, indent;
  const std::vector<std::string> names = absl::StrSplit(key, '.');
  for (const std::string& name : names) {
    absl::StrAppend(&yaml, yaml.empty() ? "" : "\n", indent, name, ":");
    indent += "  ";
  }
  return absl::StrCat(yaml, " ", value, "\n");
}

absl::StatusOr<core::LinkLevels> ParseLevelsYaml(std::string_view text, const std::string& file_name) {
  Origin origin{.file = file_name};
  v1::Levels message;
  FieldCheck check(origin);
  ReadYamlMessage(text, origin, message, check);
  RETURN_IF_ERROR(check.status());
  core::LinkLevels levels;
  std::set<std::string> names;
  const int count = message.levels_size();
  for (int i = 0; i < count; ++i) {
    const std::string path = absl::StrCat("levels[", i, "]");
    const core::LinkLevel level = ReadLevel(message.levels(i), path, check);
    check.Expect(names.insert(level.name).second, path + ".name", "each level's name once", level.name + " again");
    const bool wan = message.levels(i).has_mbit_per_s();
    check.Expect(!wan || i + 1 == count, path, "mbit_per_s (between sites) in the last level alone", "it before");
    if (wan) {
      levels.wan = level;
    } else {
      levels.site.push_back(level);
      check.Integer(path + ".of", levels.ranks(), 1, core::kMaxLevelRanks, "ranks of a site, all levels together");
    }
    RETURN_IF_ERROR(check.status());
  }
  check.Expect(!levels.site.empty() && count <= core::kMaxLinkLevels, "levels",
               absl::StrCat("1 to ", core::kMaxLinkLevels, " levels, with gbyte_per_s in the first"),
               absl::StrCat(count, " levels, ", levels.site.size(), " of them within a site"));
  RETURN_IF_ERROR(check.status());
  return levels;
}

absl::StatusOr<core::LinkLevels> ReadLevelsYaml(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxLevelsBytes));
  return ParseLevelsYaml(text, path);
}

}  // namespace causeway::formats
