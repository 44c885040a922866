#include "server/store/settings_rows.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/digest.h"
#include "server/store/rows.h"

namespace causeway::server {
namespace {

constexpr char kBefore[] = "settings_before";  // in meta

template <typename T>
absl::Status Parse(const Database& database, int64_t number, const std::string& text, std::vector<T>& list) try {
  list = nlohmann::json::parse(text).get<std::vector<T>>();
  return absl::OkStatus();
} catch (const nlohmann::json::exception&) {
  return database.Damaged(absl::StrCat("revision ", number, " of the settings has the list ", text));
}

}  // namespace

absl::Status WriteSettings(Database& database, const core::SettingsChain& settings) {
  if (settings.before != 0) RETURN_IF_ERROR(WriteMeta(database, kBefore, core::DigestText(settings.before)));
  for (const core::SettingsRevision& revision : settings.revisions) {
    RETURN_IF_ERROR(database.Run("INSERT INTO settings VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                                 {revision.number, revision.step, nlohmann::json(revision.versions).dump(),
                                  Blob{revision.run_config}, nlohmann::json(revision.changes).dump(), revision.unix_ms,
                                  core::DigestText(revision.nonce), core::DigestText(revision.digest)}));
  }
  return absl::OkStatus();
}

absl::StatusOr<core::SettingsChain> LoadSettings(Database& database) {
  core::SettingsChain settings;
  ASSIGN_OR_RETURN(const std::optional<std::string> before, ReadMeta(database, kBefore));
  if (before) {
    ASSIGN_OR_RETURN(settings.before, DigestFrom(database, *before));
  }
  uint64_t parent = settings.before;
  RETURN_IF_ERROR(database.Query(
      "SELECT number, step, versions, run_config, changes, unix_ms, nonce, digest FROM settings ORDER BY number", {},
      [&](const SqlRow& row) -> absl::Status {
        core::SettingsRevision revision{.number = row.Integer(0),
                                        .step = row.Integer(1),
                                        .versions = {},
                                        .run_config = row.Text(3),
                                        .changes = {},
                                        .unix_ms = row.Integer(5)};
        RETURN_IF_ERROR(Parse(database, revision.number, row.Text(2), revision.versions));
        RETURN_IF_ERROR(Parse(database, revision.number, row.Text(4), revision.changes));
        if (!row.IsNull(7)) {
          ASSIGN_OR_RETURN(revision.nonce, DigestFrom(database, row.Text(6)));
          ASSIGN_OR_RETURN(revision.digest, DigestFrom(database, row.Text(7)));
        } else {  // of a program before there were digests
          revision.digest = core::DigestOf(parent, revision);
        }
        parent = revision.digest;
        settings.revisions.push_back(std::move(revision));
        return absl::OkStatus();
      }));
  return settings;
}

}  // namespace causeway::server
