#include "server/store/schema.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/digest.h"
#include "core/numerics.h"
#include "core/random.h"
#include "server/store/rows.h"

namespace causeway::server {
namespace {

constexpr int64_t kFormat = 3;  // PRAGMA user_version; rises when an older coordinator could not read it

// Of format 1: before sites' stays were counted.
constexpr char kFromFormat1[] = "ALTER TABLE sites ADD COLUMN stay INTEGER DEFAULT 1;";
// Of formats 1 and 2: before a round's codecs could be chosen.
constexpr char kFromFormat2[] =
    "ALTER TABLE rounds ADD COLUMN codec_up TEXT; ALTER TABLE rounds ADD COLUMN codec_down TEXT; "
    "ALTER TABLE rounds ADD COLUMN codec_next_up TEXT; PRAGMA user_version = 3;";

constexpr char kTables[] = R"sql(
CREATE TABLE meta (key TEXT PRIMARY KEY, value);
CREATE TABLE sites (
  site TEXT PRIMARY KEY, session TEXT, state TEXT, reason TEXT, first_versions TEXT, last_merged TEXT, stay INTEGER);
CREATE TABLE contributions (
  id INTEGER PRIMARY KEY, fragment INTEGER, site TEXT, base INTEGER, tokens INTEGER, steps INTEGER,
  segment INTEGER, offset INTEGER, chunk_bytes BLOB, merged_version INTEGER, weight REAL,
  UNIQUE (fragment, site, base));
CREATE TABLE rounds (
  id INTEGER PRIMARY KEY, fragment INTEGER, version INTEGER, decided_unix_ms INTEGER, lr REAL, momentum REAL,
  sites TEXT, reason TEXT, numerics_version INTEGER, config_revision INTEGER, digest TEXT,
  update_segment INTEGER, update_offset INTEGER, update_chunk_bytes BLOB, update_bytes INTEGER,
  codec_up TEXT, codec_down TEXT, codec_next_up TEXT,
  UNIQUE (fragment, version));
CREATE TABLE snapshots (
  fragment INTEGER, version INTEGER, file TEXT, digest TEXT, hash TEXT, PRIMARY KEY (fragment, version));
CREATE TABLE events (
  id INTEGER PRIMARY KEY AUTOINCREMENT, unix_ms INTEGER, kind TEXT, site TEXT, fragment INTEGER, text TEXT);
CREATE INDEX contributions_of_round ON contributions (fragment, merged_version);
CREATE INDEX contributions_stored ON contributions (fragment, merged_version, segment) WHERE segment <> 0;
CREATE INDEX updates_stored ON rounds (update_segment, update_bytes) WHERE update_segment <> 0;
PRAGMA user_version = 3;
)sql";

absl::StatusOr<int64_t> QueryInteger(Database& database, std::string_view sql) {
  int64_t number = 0;
  RETURN_IF_ERROR(database.Query(sql, {}, [&](const SqlRow& row) {
    number = row.Integer(0);
    return absl::OkStatus();
  }));
  return number;
}

absl::Status CheckIntegrity(Database& database) {
  return database.Query("PRAGMA quick_check(1)", {}, [&](const SqlRow& row) {
    const std::string result = row.Text(0);
    return result == "ok" ? absl::OkStatus() : database.Damaged(result);
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<Database>> OpenJournalDatabase(const std::string& path, bool new_journal) {
  ASSIGN_OR_RETURN(std::unique_ptr<Database> database, Database::Open(path, Database::Mode::kReadWrite));
  ASSIGN_OR_RETURN(const int64_t format, QueryInteger(*database, "PRAGMA user_version"));
  if (format == 0 && !new_journal) {
    return database->Damaged("is missing or empty, but there are snapshots or segments beside it");
  }
  if (format < 0 || format > kFormat) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": expected format ", kFormat, ", got ", format,
                                                      ": written by another version of the coordinator"));
  }
  RETURN_IF_ERROR(CheckIntegrity(*database));
  RETURN_IF_ERROR(database->Script("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;"));
  if (format != kFormat) {
    ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(*database));
    if (format == 0) RETURN_IF_ERROR(database->Script(kTables));
    if (format == 1) RETURN_IF_ERROR(database->Script(kFromFormat1));
    if (format == 1 || format == 2) RETURN_IF_ERROR(database->Script(kFromFormat2));
    RETURN_IF_ERROR(transaction.Commit());
  }
  return database;
}

absl::Status CheckNumerics(Database& database) {
  return database.Query(
      "SELECT fragment, version, numerics_version FROM rounds AS r WHERE numerics_version <> ? AND version > "
      "(SELECT max(version) FROM snapshots AS s WHERE s.fragment = r.fragment) LIMIT 1",
      {int64_t{core::kNumericsVersion}}, [&](const SqlRow& row) {
        return absl::FailedPreconditionError(
            absl::StrCat(database.path(), ": version ", row.Integer(1), " of fragment ", row.Integer(0),
                         " was decided by a coordinator of numerics version ", row.Integer(2), ", and this one has ",
                         core::kNumericsVersion,
                         ": a replay would give other bits. Start the coordinator that decided it once and stop it "
                         "with SIGTERM, which saves snapshots; then upgrade"));
      });
}

absl::StatusOr<JournalIdentity> BeginLife(Database& database, bool new_lineage) {
  JournalIdentity identity;
  ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(database));
  RETURN_IF_ERROR(database.Run(
      "INSERT INTO meta VALUES ('epoch', 1) ON CONFLICT (key) DO UPDATE SET value = CAST(value AS INTEGER) + 1"));
  ASSIGN_OR_RETURN(const int64_t epoch, QueryInteger(database, "SELECT value FROM meta WHERE key = 'epoch'"));
  identity.epoch = static_cast<uint64_t>(epoch);
  ASSIGN_OR_RETURN(const std::optional<std::string> former, ReadMeta(database, "former_lineages"));
  ASSIGN_OR_RETURN(const std::optional<std::string> lineage, ReadMeta(database, "lineage"));
  const auto parsed = nlohmann::json::parse(former.value_or("[]"), nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_array()) return database.Damaged("the list of former lineages is none");
  for (const auto& name : parsed)
    identity.former_lineages.push_back(name.is_string() ? name.get<std::string>() : name.dump());
  if (lineage && !new_lineage) {
    identity.lineage = *lineage;
  } else {
    if (lineage) identity.former_lineages.push_back(*lineage);
    identity.lineage = core::DigestText(core::DeviceRandom());
    RETURN_IF_ERROR(WriteMeta(database, "lineage", identity.lineage));
    RETURN_IF_ERROR(WriteMeta(database, "former_lineages", nlohmann::json(identity.former_lineages).dump()));
  }
  RETURN_IF_ERROR(transaction.Commit());
  return identity;
}

}  // namespace causeway::server
