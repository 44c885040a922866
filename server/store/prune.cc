#include "server/store/prune.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/limits.h"
#include "formats/posix_file.h"
#include "server/store/rows.h"
#include "server/store/snapshots.h"

namespace causeway::server {
namespace {

// Starts with the oldest, until the log is small enough. A fragment's updates are removed in order, so the remaining
// ones are consecutive.
absl::Status PruneUpdates(Database& database, int64_t max_bytes) {
  int64_t total = 0;
  RETURN_IF_ERROR(
      database.Query("SELECT sum(update_bytes) FROM rounds WHERE update_segment <> 0", {}, [&](const SqlRow& row) {
        total = row.Integer(0);
        return absl::OkStatus();
      }));
  if (total <= max_bytes) return absl::OkStatus();
  std::vector<int64_t> superfluous;
  RETURN_IF_ERROR(
      database.Query("SELECT id, update_bytes FROM rounds AS r WHERE update_segment <> 0 AND version <= "
                     "(SELECT max(version) FROM snapshots AS s WHERE s.fragment = r.fragment) ORDER BY id",
                     {}, [&](const SqlRow& row) {
                       if (total > max_bytes) superfluous.push_back(row.Integer(0));
                       total -= row.Integer(1);
                       return absl::OkStatus();
                     }));
  for (const int64_t id : superfluous) {
    RETURN_IF_ERROR(LetUpdatesGo(database, "id = ?", {id}));
  }
  return absl::OkStatus();
}

// A site's last contributions stay, however long ago: the next are measured against them. Rounds whose update is still
// stored stay with their contributors: a site that comes back asks which sites were merged. So does the round that made
// the snapshot: it names the codec of contributions to its version.
absl::Status PruneHistory(Database& database, core::FragmentId fragment, core::Version snapshot) {
  RETURN_IF_ERROR(
      database.Run("DELETE FROM rounds WHERE id <= (SELECT max(id) FROM rounds) - ? AND fragment = ? AND version < ? "
                   "AND update_segment = 0",
                   {core::kMaxHistoryEvents, int64_t{fragment}, snapshot}));
  return database.Run(
      "DELETE FROM contributions AS c WHERE id <= (SELECT max(id) FROM contributions) - ? AND fragment = ? "
      "AND merged_version <= ? AND NOT EXISTS (SELECT 1 FROM rounds AS r WHERE r.fragment = c.fragment "
      "AND r.version = c.merged_version AND r.update_segment <> 0) AND (norm IS NULL OR base < (SELECT base FROM "
      "contributions AS d WHERE d.fragment = c.fragment AND d.site = c.site AND d.norm IS NOT NULL AND "
      "d.merged_version IS NOT NULL ORDER BY base DESC LIMIT 1 OFFSET ?))",
      {core::kMaxHistoryEvents, int64_t{fragment}, snapshot, int64_t{core::kMergedKept} - 1});
}

}  // namespace

absl::StatusOr<std::vector<std::string>> PruneRows(Database& database, core::FragmentId fragment,
                                                   const PruneLimits& limits) {
  core::Version newest = 0;
  RETURN_IF_ERROR(database.Query("SELECT max(version) FROM snapshots WHERE fragment = ?", {int64_t{fragment}},
                                 [&](const SqlRow& row) {
                                   newest = row.Integer(0);
                                   return absl::OkStatus();
                                 }));
  std::vector<std::string> superfluous;
  RETURN_IF_ERROR(database.Query(
      "DELETE FROM snapshots WHERE fragment = ?1 AND version NOT IN "
      "(SELECT version FROM snapshots WHERE fragment = ?1 ORDER BY version DESC LIMIT ?2) AND version <> ?3 "
      "RETURNING file",
      {int64_t{fragment}, std::max<int64_t>(limits.keep, 1), limits.kept}, [&](const SqlRow& row) {
        superfluous.push_back(row.Text(0));
        return absl::OkStatus();
      }));
  RETURN_IF_ERROR(
      database.Run("UPDATE contributions SET segment = 0, offset = 0, chunk_bytes = NULL, chunk_digests = NULL "
                   "WHERE segment <> 0 AND fragment = ? AND merged_version <= ?",
                   {int64_t{fragment}, newest}));
  RETURN_IF_ERROR(PruneUpdates(database, limits.max_update_log_bytes));
  RETURN_IF_ERROR(PruneHistory(database, fragment, newest));
  return superfluous;
}

absl::StatusOr<std::vector<int64_t>> LiveSegments(Database& database) {
  std::vector<int64_t> segments;
  RETURN_IF_ERROR(
      database.Query("SELECT segment FROM contributions WHERE segment <> 0 "
                     "UNION SELECT update_segment FROM rounds WHERE update_segment <> 0",
                     {}, [&](const SqlRow& row) {
                       segments.push_back(row.Integer(0));
                       return absl::OkStatus();
                     }));
  return segments;
}

absl::StatusOr<std::vector<std::string>> LiveSnapshots(Database& database) {
  std::vector<std::string> files;
  RETURN_IF_ERROR(database.Query("SELECT file FROM snapshots", {}, [&](const SqlRow& row) {
    files.push_back(row.Text(0));
    return absl::OkStatus();
  }));
  return files;
}

absl::Status ForgetUnfinishedSeed(Database& database) {
  return database.Run("DELETE FROM snapshots WHERE NOT EXISTS (SELECT 1 FROM meta WHERE key = 'manifest')");
}

absl::Status RemoveSnapshotsBut(const std::string& directory, const std::vector<std::string>& live) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, formats::NamesIn(directory));
  for (const std::string& name : names) {
    if (!IsSnapshotFileName(name) || std::find(live.begin(), live.end(), name) != live.end()) continue;
    if (::unlink(absl::StrCat(directory, "/", name).c_str()) != 0 && errno != ENOENT) {
      return formats::FileError("remove", absl::StrCat(directory, "/", name));
    }
  }
  return absl::OkStatus();
}

}  // namespace causeway::server
