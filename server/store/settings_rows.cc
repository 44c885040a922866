#include "server/store/settings_rows.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"

namespace causeway::server {
namespace {

template <typename T>
absl::Status Parse(const Database& database, int64_t number, const std::string& text, std::vector<T>& list) try {
  list = nlohmann::json::parse(text).get<std::vector<T>>();
  return absl::OkStatus();
} catch (const nlohmann::json::exception&) {
  return database.Damaged(absl::StrCat("revision ", number, " of the settings has the list ", text));
}

}  // namespace

absl::Status WriteSettings(Database& database, const core::SettingsRevision& revision) {
  return database.Run("INSERT INTO settings VALUES (?, ?, ?, ?, ?, ?)",
                      {revision.number, revision.step, nlohmann::json(revision.versions).dump(),
                       Blob{revision.run_config}, nlohmann::json(revision.changes).dump(), revision.unix_ms});
}

absl::Status LoadSettings(Database& database, std::vector<core::SettingsRevision>& settings) {
  return database.Query("SELECT number, step, versions, run_config, changes, unix_ms FROM settings ORDER BY number", {},
                        [&](const SqlRow& row) -> absl::Status {
                          core::SettingsRevision revision{.number = row.Integer(0),
                                                          .step = row.Integer(1),
                                                          .versions = {},
                                                          .run_config = row.Text(3),
                                                          .changes = {},
                                                          .unix_ms = row.Integer(5)};
                          RETURN_IF_ERROR(Parse(database, revision.number, row.Text(2), revision.versions));
                          RETURN_IF_ERROR(Parse(database, revision.number, row.Text(4), revision.changes));
                          settings.push_back(std::move(revision));
                          return absl::OkStatus();
                        });
}

}  // namespace causeway::server
