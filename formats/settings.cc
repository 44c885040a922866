#include "formats/settings.h"

#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "formats/run_config_message.h"
#include "formats/run_fields.h"
#include "formats/run_yaml.h"
#include "formats/yaml_message.h"

namespace causeway::formats {
namespace {

using Json = nlohmann::ordered_json;

// Lists the rows of a config, those that it lacks, too.
class SettingsLister : public Fields {
 public:
  explicit SettingsLister(std::vector<Setting>* settings) : settings_(settings) {}

  bool Wants(bool /*present*/) const override { return true; }

 private:
  void Visit(const Key& key, FieldValue /*value*/, const std::string& expected) override {
    const std::string path = absl::StrReplaceAll(Path(key.name), {{"[0]", "[]"}});
    const bool known = std::ranges::any_of(*settings_, [&](const Setting& one) { return one.key == path; });
    const bool changes = key.holds == Holds::kAtOnce || key.holds == Holds::kByRound || key.holds == Holds::kByStep;
    if (!known) settings_->push_back({path, key.holds, changes && key.set == Set::kTaken, key.says, expected, ""});
  }
  void Enter(const char* /*name*/) override {}
  void EnterItem(const char* /*name*/, size_t /*index*/) override {}
  void Leave() override {}
  bool Present(const char* /*name*/, bool /*now*/) const override { return true; }
  size_t Count(const char* /*name*/, size_t /*now*/) override { return 1; }

  std::vector<Setting>* const settings_;
};

// The values of an object of objects by their paths.
void Flatten(const std::string& path, const Json& json, std::map<std::string, std::string>& values) {
  if (!json.is_object() || json.empty()) {
    values[path] = json.dump();
    return;
  }
  for (const auto& [key, value] : json.items())
    Flatten(path.empty() ? key : absl::StrCat(path, ".", key), value, values);
}

std::map<std::string, std::string> ValuesOf(const core::RunConfig& config) {
  std::map<std::string, std::string> values;
  Flatten("", ConfigJson(config), values);
  return values;
}

struct Difference {
  std::string key, was, is;  // values as JSON
};

std::vector<Difference> DifferencesOf(const core::RunConfig& before, const core::RunConfig& after) {
  const std::map<std::string, std::string> was = ValuesOf(before);
  std::vector<Difference> differences;
  for (const auto& [key, is] : ValuesOf(after)) {
    const auto found = was.find(key);
    const std::string value = found == was.end() ? "none" : found->second;
    if (value != is) differences.push_back({key, value, is});
  }
  return differences;
}

std::vector<Setting> ListSettings() {
  std::vector<Setting> settings;
  for (const core::ModelKind kind : {core::ModelKind::kLlama, core::ModelKind::kSynthetic}) {
    core::RunConfig config{.model_kind = kind};
    config.llama.rope_scaling.emplace();
    config.inner.partition.emplace();
    SettingsLister lister(&settings);
    RunFields(config, lister);
  }
  std::ranges::stable_sort(settings, {}, [](const Setting& setting) {  // sections stay together
    static const std::vector<std::string> kSections = {"run_id", "seed", "run", "model"};
    const std::string section = setting.key.substr(0, setting.key.find('.'));
    return std::ranges::find(kSections, section) - kSections.begin();
  });
  // As a new run has them, which its completion decides; its name alone has none.
  std::map<std::string, std::string> defaults = ValuesOf(ParseRunYaml("run_id: run\n", "run.yaml").value());
  defaults["run_id"] = R"("")";
  for (Setting& setting : settings) {
    if (const auto found = defaults.find(setting.key); found != defaults.end()) setting.standard = found->second;
  }
  return settings;
}

bool HoldsAtOnce(const std::string& key) {
  const Setting* const setting = FindSetting(key);
  return setting != nullptr && setting->holds == Holds::kAtOnce;
}

// ---- Changes ----

absl::Status CheckMayChange(const std::string& key, const core::RunConfig& config) {
  const auto refused = [&key](std::string_view why) {
    return absl::FailedPreconditionError(absl::StrCat(key, " ", std::string(why)));
  };
  if (key.starts_with("inner.") && config.model_kind == core::ModelKind::kExternal) {
    return refused("cannot be set: the sites' scripts own their optimizer");
  }
  const Setting* const setting = FindSetting(key);
  if (setting != nullptr && setting->settable) return absl::OkStatus();
  switch (setting == nullptr ? Holds::kFixed : setting->holds) {
    case Holds::kFixed: return refused("is fixed for a run; start a new one from an export (model.init_from)");
    case Holds::kByStart:
      return refused("is taken from run.yaml at the next start: change it there, and restart the coordinator");
    default: return refused("cannot change in a running run yet");
  }
}

// A leg: its codec, or from which one is chosen round by round.
struct LegSetting {
  core::CodecId codec;
  const std::vector<core::CodecId>& allowed;

  bool sparse() const { return !allowed.empty() && core::TopkEntries(allowed.front()) > 0; }
  const char* text() const { return allowed.empty() ? core::CodecName(codec) : sparse() ? kSparse : kAuto; }
};

absl::Status CheckLeg(const char* leg, const LegSetting& was, const LegSetting& is, bool feeds_back) {
  const core::CodecId before = was.codec, after = is.codec;
  if (was.allowed == is.allowed && (!was.allowed.empty() || before == after)) return absl::OkStatus();
  const auto refused = [&](std::string_view why) {
    return absl::FailedPreconditionError(
        absl::StrCat("codec.", leg, ": from ", was.text(), " to ", is.text(), ": ", std::string(why)));
  };
  for (const LegSetting* one : {&was, &is}) {
    if (!one->allowed.empty()) return refused(absl::StrCat(one->text(), " cannot begin or end in a running run yet"));
  }
  for (const core::CodecId one : {before, after}) {
    if (core::TopkEntries(one) > 0 || one == core::CodecId::kOnebitAdamSign) {
      return refused(absl::StrCat(core::CodecName(one), " cannot begin or end in a running run"));
    }
  }
  if (core::Rotates(before) != core::Rotates(after) && feeds_back) {
    return refused(
        absl::StrCat("one of them rotates, and residuals cannot pass from one kind to the other; set codec."
                     "feedback_",
                     leg, "=0 before, in a change of its own"));
  }
  return absl::OkStatus();
}

absl::Status CheckCodecs(const core::RunConfig& before, const core::RunConfig& after) {
  const core::CodecConfig &was = before.codec, &is = after.codec;
  if (was.up != is.up && before.sync.mode == core::SyncMode::kQuorum) {
    return absl::FailedPreconditionError(
        "codec.up cannot change in quorum mode: a late contribution has another base than its round, and a round has "
        "one codec");
  }
  RETURN_IF_ERROR(
      CheckLeg("up", {was.up, was.allow_up}, {is.up, is.allow_up}, was.feedback_up > 0 || is.feedback_up > 0));
  return CheckLeg("down", {was.down, was.allow_down}, {is.down, is.allow_down},
                  was.feedback_down > 0 || is.feedback_down > 0);
}

// Clears what `given` sets, so that MergeFrom replaces lists, too.
void ClearGiven(const google::protobuf::Message& given, google::protobuf::Message& message) {
  const auto& reflection = *given.GetReflection();
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  reflection.ListFields(given, &fields);
  for (const auto* field : fields) {
    if (field->is_repeated() || field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) {
      message.GetReflection()->ClearField(&message, field);
    } else {
      ClearGiven(reflection.GetMessage(given, field), *message.GetReflection()->MutableMessage(&message, field));
    }
  }
}

absl::Status WithoutPlace(const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrReplaceAll(status.message(), {{"set:1: ", ""}, {"set:2: ", ""}, {"set: ", ""}}));
}

}  // namespace

const std::vector<Setting>& Settings() {
  static const auto* const kSettings = new std::vector<Setting>(ListSettings());
  return *kSettings;
}

const Setting* FindSetting(const std::string& key) {
  for (const Setting& setting : Settings()) {
    if (key == setting.key || key.starts_with(setting.key + ".")) return &setting;
  }
  return nullptr;
}

const char* HoldsText(Holds holds) {
  switch (holds) {
    case Holds::kFixed: return "never";
    case Holds::kAtOnce: return "at once";
    case Holds::kByRound: return "from a round on";
    case Holds::kByStep: return "from a step on";
    case Holds::kByStart: return "at the next start";
  }
  CHECK(false);
}

absl::StatusOr<core::RunConfig> ChangedConfig(const core::RunConfig& config, const SettingsChanges& changes) {
  v1::RunConfig given;
  std::set<std::string> keys;
  for (const auto& [key, value] : changes) {
    Origin origin{.file = "set"};
    FieldCheck check(origin);
    check.Expect(keys.insert(key).second, key, "each key once", "it again");
    check.Expect(value.find('\n') == std::string::npos, key, "a value of one line", "several");
    if (check.status().ok()) ReadYamlMessage(YamlOf(key, value), origin, given, check);
    RETURN_IF_ERROR(WithoutPlace(check.status()));
    RETURN_IF_ERROR(CheckMayChange(key, config));
  }
  v1::RunConfig message = RunConfigToMessage(config);
  ClearGiven(given, message);
  message.MergeFrom(given);
  v1::Codec& codec = *message.mutable_codec();  // a list that auto chooses from goes with it
  if (given.codec().has_up() && given.codec().allow_up().empty()) codec.clear_allow_up();
  if (given.codec().has_down() && given.codec().allow_down().empty()) codec.clear_allow_down();
  if (given.outer().momentum() > 0) message.mutable_outer()->set_optimizer(kNesterov);
  const Origin origin{.file = "set"};
  FieldCheck check(origin);
  const absl::StatusOr<core::RunConfig> changed = RunConfigFromMessage(message, check);
  if (!changed.ok()) return WithoutPlace(changed.status());
  RETURN_IF_ERROR(CheckCodecs(config, *changed));
  return changed;
}

core::RunConfig ConfigAtStart(const core::RunConfig& run, const core::RunConfig& file) {
  core::RunConfig config = run;
  config.checkpoint = file.checkpoint;
  config.durability = file.durability;
  config.offload = file.offload;
  config.sync.device_memory = file.sync.device_memory;
  return config;
}

absl::StatusOr<core::RunConfig> ContinuedConfig(const std::string& stored, bool started, const FileOfRun& file) {
  ASSIGN_OR_RETURN(const core::RunConfig before, ParseRunConfig(stored));
  ASSIGN_OR_RETURN(core::RunConfig now, ParseRunYaml(file.yaml, file.path, &before));
  RETURN_IF_ERROR(PlaceShards(file.shards, &now));
  const std::string difference = FixedConfigDifference(before, now);
  if (!difference.empty()) return absl::FailedPreconditionError(difference);
  return started ? ConfigAtStart(before, now) : now;
}

std::vector<std::string> ConfigDifferences(const core::RunConfig& run, const core::RunConfig& file) {
  std::vector<std::string> differences;
  for (const auto& [key, has, value] : DifferencesOf(run, file)) {
    const Setting* const setting = FindSetting(key);
    if (setting != nullptr && setting->holds == Holds::kByStart) continue;
    const std::string way = setting != nullptr && setting->settable
                                ? absl::StrCat("causewayctl set ", key, "=", value, " changes it")
                                : "it cannot change in a running run";
    differences.push_back(absl::StrCat(key, " (", value, "; the run has ", has, "): the run's value holds; ", way));
  }
  return differences;
}

std::vector<std::string> FileDifferences(const core::RunConfig& first, const std::string& newest,
                                         const std::string& run_yaml, const std::string& path) {
  const absl::StatusOr<core::RunConfig> now = newest.empty() ? first : ParseRunConfig(newest);
  const absl::StatusOr<core::RunConfig> file = ParseRunYaml(run_yaml, path, &first);
  if (!now.ok() || !file.ok()) return {};  // said where it is read
  return ConfigDifferences(ConfigAtStart(*now, first), *file);
}

SettingsChanges ChangesBetween(const core::RunConfig& before, const core::RunConfig& after) {
  SettingsChanges changes;
  for (const auto& [key, was, is] : DifferencesOf(before, after)) changes.emplace_back(key, is);
  return changes;
}

std::vector<std::string> ConfigChanges(const core::RunConfig& before, const core::RunConfig& after) {
  std::vector<std::string> changes;
  for (const auto& [key, was, is] : DifferencesOf(before, after)) {
    changes.push_back(absl::StrCat(key, ": ", was, " → ", is, HoldsAtOnce(key) ? " (at once)" : ""));
  }
  return changes;
}

std::vector<std::string> KeysAtOnce(const SettingsChanges& changes) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : changes) {
    if (HoldsAtOnce(key)) keys.push_back(key);
  }
  return keys;
}

}  // namespace causeway::formats
