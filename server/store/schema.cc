#include "server/store/schema.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/digest.h"
#include "core/outer_step.h"
#include "core/random.h"
#include "formats/atomic_file.h"
#include "server/store/change_set.h"
#include "server/store/rows.h"

namespace causeway::server {
namespace {

constexpr int64_t kFormat = 7;  // PRAGMA user_version; raised when an older coordinator could not read it

absl::StatusOr<int64_t> QueryInteger(Database& database, std::string_view sql) {
  int64_t number = 0;
  RETURN_IF_ERROR(database.Query(sql, {}, [&](const SqlRow& row) {
    number = row.Integer(0);
    return absl::OkStatus();
  }));
  return number;
}

// Removes the file, and the log of its transactions if there is one.
absl::Status RemoveDatabase(const std::string& path) {
  for (const char* suffix : {"", "-wal", "-shm", "-journal"}) {
    const std::string file = path + suffix;
    if (::unlink(file.c_str()) != 0 && errno != ENOENT) return formats::FileError("remove", file);
  }
  return absl::OkStatus();
}

// For a directory without a log: a database with tables is the index of a lost log, or of another format.
absl::Status CheckNoIndex(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error) && !error) return absl::OkStatus();
  if (error) return absl::PermissionDeniedError(absl::StrCat(path, ": ", error.message()));
  ASSIGN_OR_RETURN(const auto database, Database::Open(path, Database::Mode::kReadOnly));
  ASSIGN_OR_RETURN(const int64_t format, QueryInteger(*database, "PRAGMA user_version"));
  if (format == 0) return absl::OkStatus();
  if (format == kFormat) return database->Damaged("is an index of log/, which is missing");
  return absl::FailedPreconditionError(absl::StrCat(path, ": expected format ", kFormat, ", got ", format,
                                                    ": written by another version of the coordinator"));
}

absl::StatusOr<std::vector<std::string>> FormerLineages(Database& database) {
  ASSIGN_OR_RETURN(const std::optional<std::string> former, ReadMeta(database, "former_lineages"));
  const auto parsed = nlohmann::json::parse(former.value_or("[]"), nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_array()) return database.Damaged("the list of former lineages is none");
  std::vector<std::string> lineages;
  for (const auto& name : parsed) lineages.push_back(name.is_string() ? name.get<std::string>() : name.dump());
  return lineages;
}

constexpr size_t kMaxFloors = 16;

// 256 bits.
std::string NewSecret() {
  std::string secret;
  for (int i = 0; i < 4; ++i) secret += core::DigestText(core::DeviceRandom());
  return secret;
}

}  // namespace

const char kTables[] = R"sql(
CREATE TABLE meta (key TEXT PRIMARY KEY, value);
CREATE TABLE sites (
  site TEXT PRIMARY KEY, session TEXT, state TEXT, reason TEXT, first_versions TEXT, last_merged TEXT, stay INTEGER,
  refusals INTEGER DEFAULT 0, quarantined INTEGER DEFAULT 0, starts_anew INTEGER DEFAULT 0,
  releases INTEGER DEFAULT 0, ended TEXT DEFAULT 'left');
CREATE TABLE contributions (
  id INTEGER PRIMARY KEY, fragment INTEGER, site TEXT, base INTEGER, tokens INTEGER, steps INTEGER,
  segment INTEGER, offset INTEGER, chunk_bytes BLOB, merged_version INTEGER, weight REAL, chunk_digests BLOB, norm REAL,
  factor REAL DEFAULT 1, UNIQUE (fragment, site, base));
CREATE TABLE rounds (
  id INTEGER PRIMARY KEY, fragment INTEGER, version INTEGER, decided_unix_ms INTEGER, lr REAL, momentum REAL,
  sites TEXT, reason TEXT, numerics_version INTEGER, config_revision INTEGER, digest TEXT,
  update_segment INTEGER, update_offset INTEGER, update_chunk_bytes BLOB, update_bytes INTEGER,
  codec_up TEXT, codec_down TEXT, codec_next_up TEXT, update_chunk_digests BLOB, rolled_back_to INTEGER,
  run_tokens INTEGER DEFAULT 0, gain REAL DEFAULT 1,
  UNIQUE (fragment, version));
CREATE TABLE snapshots (
  fragment INTEGER, version INTEGER, file TEXT, digest TEXT, hash TEXT, run_tokens INTEGER DEFAULT 0,
  PRIMARY KEY (fragment, version));
CREATE TABLE settings (
  number INTEGER PRIMARY KEY, step INTEGER, versions TEXT, run_config BLOB, changes TEXT, unix_ms INTEGER,
  nonce TEXT, digest TEXT);
CREATE TABLE events (
  id INTEGER PRIMARY KEY AUTOINCREMENT, unix_ms INTEGER, kind TEXT, site TEXT, fragment INTEGER, text TEXT);
CREATE INDEX contributions_of_round ON contributions (fragment, merged_version);
CREATE INDEX contributions_stored ON contributions (fragment, merged_version, segment) WHERE segment <> 0;
CREATE INDEX commands ON events (id) WHERE kind = 'command';
CREATE INDEX updates_stored ON rounds (update_segment, update_bytes) WHERE update_segment <> 0;
PRAGMA user_version = 7;
)sql";

std::string IndexPath(const std::string& state_dir) { return state_dir + "/journal.sqlite"; }
std::string NewIndexPath(const std::string& state_dir) { return IndexPath(state_dir) + ".new"; }

absl::StatusOr<std::unique_ptr<Database>> BuildIndex(const std::string& state_dir,
                                                     const std::vector<std::string>& changes, bool expected_new) {
  const std::string path = NewIndexPath(state_dir), before = IndexPath(state_dir);
  RETURN_IF_ERROR(RemoveDatabase(path));
  if (changes.empty()) RETURN_IF_ERROR(CheckNoIndex(before));
  ASSIGN_OR_RETURN(std::unique_ptr<Database> database, Database::Open(path, Database::Mode::kReadWrite));
  RETURN_IF_ERROR(database->Script("PRAGMA journal_mode = MEMORY; PRAGMA synchronous = OFF;"));
  if (changes.empty() && !expected_new) {
    return absl::DataLossError(
        absl::StrCat(before,
                     ": is missing or empty, but there are snapshots or segments beside it; restore the whole "
                     "state directory from a backup and start once with --new_lineage"));
  }
  ASSIGN_OR_RETURN(Transaction transaction, Transaction::Begin(*database));
  RETURN_IF_ERROR(database->Script(kTables));
  for (const std::string& change : changes) RETURN_IF_ERROR(Apply(*database, change));
  RETURN_IF_ERROR(transaction.Commit());
  return database;
}

absl::Status InstallIndex(const std::string& state_dir) {
  const std::string path = IndexPath(state_dir);
  RETURN_IF_ERROR(RemoveDatabase(path));
  if (::rename(NewIndexPath(state_dir).c_str(), path.c_str()) != 0) return formats::FileError("replace", path);
  return formats::SyncFolderOf(path);
}

absl::StatusOr<std::unique_ptr<Database>> OpenIndex(const std::string& state_dir, Database::Mode mode) {
  ASSIGN_OR_RETURN(std::unique_ptr<Database> database, Database::Open(IndexPath(state_dir), mode));
  if (mode == Database::Mode::kReadOnly) return database;
  RETURN_IF_ERROR(database->Script("PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF;"));
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

absl::StatusOr<uint64_t> LastEpoch(Database& database) {
  ASSIGN_OR_RETURN(const int64_t epoch, QueryInteger(database, "SELECT value FROM meta WHERE key = 'epoch'"));
  return static_cast<uint64_t>(epoch);
}

absl::Status Continue(Database& database, const std::string& lineage) {
  ASSIGN_OR_RETURN(std::vector<std::string> former, FormerLineages(database));
  former.push_back(lineage);
  RETURN_IF_ERROR(WriteMeta(database, "former_lineages", nlohmann::json(former).dump()));
  ASSIGN_OR_RETURN(const std::optional<std::string> own, ReadMeta(database, "lineage"));
  if (own == lineage) RETURN_IF_ERROR(WriteMeta(database, "lineage", core::DigestText(core::DeviceRandom())));
  RETURN_IF_ERROR(database.Run("DELETE FROM contributions WHERE merged_version IS NULL"));
  RETURN_IF_ERROR(LetUpdatesGo(database, "update_segment <> 0"));
  return WriteMeta(database, "continues", lineage);
}

absl::Status RecordFloor(Database& database, JournalIdentity& identity) {
  JournalIdentity::Floor floor{.epoch = identity.epoch, .versions = {}};
  RETURN_IF_ERROR(database.Query(
      "SELECT fragment, max(version) FROM (SELECT fragment, version FROM rounds UNION ALL SELECT fragment, version "
      "FROM snapshots) GROUP BY fragment",
      {}, [&](const SqlRow& row) {
        floor.versions[static_cast<core::FragmentId>(row.Integer(0))] = row.Integer(1);
        return absl::OkStatus();
      }));
  identity.floors.push_back(std::move(floor));
  if (identity.floors.size() > kMaxFloors) identity.floors.erase(identity.floors.begin());
  nlohmann::json floors = nlohmann::json::array();
  for (const auto& [epoch, versions] : identity.floors) floors.push_back({epoch, versions});
  return WriteMeta(database, "floors", floors.dump());
}

constexpr char kCoordinators[] = "coordinators", kForgotten[] = "-";

absl::StatusOr<std::vector<std::string>> ReadCoordinators(Database& database) {
  ASSIGN_OR_RETURN(const std::optional<std::string> all, ReadMeta(database, kCoordinators));
  return nlohmann::json::parse(all.value_or("[]")).get<std::vector<std::string>>();
}

int OwnPlace(const std::vector<std::string>& coordinators) {
  return coordinators.empty() ? 0 : static_cast<int>(std::ranges::find(coordinators, "") - coordinators.begin());
}

namespace {

absl::Status ChangeCoordinators(Database& database, absl::FunctionRef<void(std::vector<std::string>& all)> change) {
  ASSIGN_OR_RETURN(std::vector<std::string> all, ReadCoordinators(database));
  change(all);
  return WriteMeta(database, kCoordinators, nlohmann::json(all).dump());
}

}  // namespace

absl::Status AddStandby(Database& database, const std::string& address, const std::string& formerly) {
  return ChangeCoordinators(database, [&](std::vector<std::string>& all) {
    if (all.empty()) all.emplace_back();
    if (std::ranges::find(all, address) != all.end()) return;
    const auto moved = formerly.empty() ? all.end() : std::ranges::find(all, formerly);
    if (moved == all.end()) {
      all.push_back(address);
    } else {
      *moved = address;
    }
  });
}

absl::Status ForgetStandby(Database& database, const std::string& address) {
  return ChangeCoordinators(
      database, [&](std::vector<std::string>& all) { std::ranges::replace(all, address, std::string(kForgotten)); });
}

absl::Status TurnStandby(Database& database, int place, const std::string& leader) {
  return ChangeCoordinators(database, [&](std::vector<std::string>& all) {
    all.resize(std::max(all.size(), static_cast<size_t>(place) + 1), kForgotten);
    std::ranges::replace(all, std::string(), leader);
    all[static_cast<size_t>(place)].clear();
  });
}

absl::StatusOr<JournalIdentity> BeginLife(Database& database, uint64_t epoch, bool new_lineage) {
  JournalIdentity identity{.epoch = epoch};
  RETURN_IF_ERROR(WriteMeta(database, "epoch", static_cast<int64_t>(epoch)));
  ASSIGN_OR_RETURN(identity.former_lineages, FormerLineages(database));
  ASSIGN_OR_RETURN(const std::optional<std::string> continues, ReadMeta(database, "continues"));
  ASSIGN_OR_RETURN(const std::optional<std::string> lineage, ReadMeta(database, "lineage"));
  ASSIGN_OR_RETURN(const std::optional<std::string> copied_as, ReadMeta(database, kCopiedAs));
  const bool restored = !copied_as.value_or("").empty();
  if (restored) RETURN_IF_ERROR(WriteMeta(database, kCopiedAs, ""));
  if (lineage && !new_lineage && !restored) {
    identity.lineage = *lineage;
    identity.continues = continues.value_or("");
  } else {
    if (lineage) identity.former_lineages.push_back(*lineage);
    identity.lineage = core::DigestText(core::DeviceRandom());
    RETURN_IF_ERROR(WriteMeta(database, "lineage", identity.lineage));
    RETURN_IF_ERROR(WriteMeta(database, "continues", ""));
    RETURN_IF_ERROR(WriteMeta(database, "former_lineages", nlohmann::json(identity.former_lineages).dump()));
  }
  ASSIGN_OR_RETURN(const std::optional<std::string> floors, ReadMeta(database, "floors"));
  for (const nlohmann::json& floor : nlohmann::json::parse(floors.value_or("[]"))) {
    identity.floors.push_back({.epoch = floor.at(0), .versions = floor.at(1)});
  }
  ASSIGN_OR_RETURN(const std::optional<std::string> secret, ReadMeta(database, "secret"));
  identity.secret = secret.value_or(NewSecret());
  if (!secret) RETURN_IF_ERROR(WriteMeta(database, "secret", identity.secret));
  return identity;
}

}  // namespace causeway::server
