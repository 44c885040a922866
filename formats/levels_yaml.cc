#include "formats/levels_yaml.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "causeway/v1/levels.pb.h"
#include "core/check.h"
#include "formats/field_check.h"
#include "formats/named_file.h"
#include "formats/yaml_message.h"

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

}  // namespace

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
