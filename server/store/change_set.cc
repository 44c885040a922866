#define SQLITE_ENABLE_SESSION
#define SQLITE_ENABLE_PREUPDATE_HOOK
#include "server/store/change_set.h"

#include <sqlite3.h>

#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/check.h"

namespace causeway::server {
namespace {

absl::Status SessionError(const char* what, int code) {
  return absl::InternalError(absl::StrCat("cannot ", what, ": ", sqlite3_errstr(code)));
}

absl::StatusOr<std::string> PatchSet(sqlite3_session* session) {
  int size = 0;
  void* bytes = nullptr;
  const int code = sqlite3session_patchset(session, &size, &bytes);
  const std::unique_ptr<void, void (*)(void*)> owned(bytes, sqlite3_free);
  if (code != SQLITE_OK) return SessionError("collect what changed", code);
  return std::string(static_cast<const char*>(bytes), static_cast<size_t>(size));
}

absl::StatusOr<std::vector<std::string>> Tables(Database& database, const std::string& schema) {
  std::vector<std::string> tables;
  RETURN_IF_ERROR(database.Query(
      absl::StrCat("SELECT name FROM ", schema, ".sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"), {},
      [&](const SqlRow& row) {
        tables.push_back(row.Text(0));
        return absl::OkStatus();
      }));
  return tables;
}

}  // namespace

absl::StatusOr<ChangeRecorder> ChangeRecorder::Begin(Database& database, const char* schema) {
  sqlite3_session* session = nullptr;
  int code = sqlite3session_create(database.handle(), schema, &session);
  if (code == SQLITE_OK) code = sqlite3session_attach(session, nullptr);
  ChangeRecorder recorder(session);
  if (code != SQLITE_OK) return SessionError("watch what changes", code);
  return recorder;
}

absl::Status ChangeRecorder::AddDifference(const char* from_schema, const std::string& table) const {
  const int code = sqlite3session_diff(session_, from_schema, table.c_str(), nullptr);
  return code == SQLITE_OK ? absl::OkStatus() : SessionError("compare tables", code);
}

ChangeRecorder::~ChangeRecorder() {
  if (session_ != nullptr) sqlite3session_delete(session_);
}

absl::StatusOr<std::string> ChangeRecorder::Changes() const { return PatchSet(session_); }

absl::StatusOr<std::string> AllRows(const std::string& path, const char* create_tables) {
  ASSIGN_OR_RETURN(const auto scratch, Database::Open(":memory:", Database::Mode::kReadWrite));
  RETURN_IF_ERROR(scratch->Script(create_tables));
  RETURN_IF_ERROR(scratch->Run("ATTACH ? AS journal", {std::string_view(path)}));
  ASSIGN_OR_RETURN(const ChangeRecorder recorder, ChangeRecorder::Begin(*scratch, "journal"));
  ASSIGN_OR_RETURN(const std::vector<std::string> tables, Tables(*scratch, "journal"));
  for (const std::string& table : tables) RETURN_IF_ERROR(recorder.AddDifference("main", table));
  return recorder.Changes();
}

absl::Status Apply(Database& database, std::string_view changes) {
  std::string misfit;
  const auto conflict = [](void* misfit, int, sqlite3_changeset_iter* change) {
    const char* table = nullptr;
    int columns = 0, operation = 0, indirect = 0;
    sqlite3changeset_op(change, &table, &columns, &operation, &indirect);
    *static_cast<std::string*>(misfit) = table;
    return SQLITE_CHANGESET_ABORT;
  };
  const int code = sqlite3changeset_apply(database.handle(), static_cast<int>(changes.size()),
                                          const_cast<char*>(changes.data()), nullptr, conflict, &misfit);
  if (code == SQLITE_OK) return absl::OkStatus();
  if (misfit.empty()) return SessionError("apply a change", code);
  return absl::DataLossError(absl::StrCat("a change of table ", misfit, " does not fit the rows before it"));
}

}  // namespace causeway::server
