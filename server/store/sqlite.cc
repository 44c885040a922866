#include "server/store/sqlite.h"

#include <sqlite3.h>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "formats/posix_file.h"

namespace causeway::server {
namespace {

// How long a person's sqlite3 may hold the database before the journal gives up.
constexpr int kBusyTimeoutMs = 10'000;

int Bind(sqlite3_stmt* statement, int index, const SqlValue& value) {
  struct Binder {
    sqlite3_stmt* statement;
    int index;
    int operator()(std::monostate) const { return sqlite3_bind_null(statement, index); }
    int operator()(int64_t number) const { return sqlite3_bind_int64(statement, index, number); }
    int operator()(double number) const { return sqlite3_bind_double(statement, index, number); }
    int operator()(std::string_view text) const {
      // A null pointer would be NULL, and these texts are not.
      return sqlite3_bind_text64(statement, index, text.data() == nullptr ? "" : text.data(), text.size(),
                                 SQLITE_TRANSIENT, SQLITE_UTF8);
    }
    int operator()(Blob blob) const {
      return sqlite3_bind_blob64(statement, index, blob.bytes.data() == nullptr ? "" : blob.bytes.data(),
                                 blob.bytes.size(), SQLITE_TRANSIENT);
    }
  };
  return std::visit(Binder{statement, index}, value);
}

}  // namespace

bool SqlRow::IsNull(int column) const { return sqlite3_column_type(statement_, column) == SQLITE_NULL; }
int64_t SqlRow::Integer(int column) const { return sqlite3_column_int64(statement_, column); }
double SqlRow::Real(int column) const { return sqlite3_column_double(statement_, column); }
std::string SqlRow::Text(int column) const {
  const void* bytes = sqlite3_column_blob(statement_, column);
  const int size = sqlite3_column_bytes(statement_, column);
  return bytes == nullptr ? std::string() : std::string(static_cast<const char*>(bytes), size);
}

absl::StatusOr<std::unique_ptr<Database>> Database::Open(const std::string& path, Mode mode) {
  const int flags = mode == Mode::kReadOnly ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE;
  sqlite3* opened = nullptr;
  const int code = sqlite3_open_v2(path.c_str(), &opened, flags | SQLITE_OPEN_NOMUTEX, nullptr);
  std::unique_ptr<Database> database(new Database(path, opened));  // even one that failed needs closing
  if (opened == nullptr) return absl::ResourceExhaustedError(absl::StrCat(path, ": out of memory"));
  if (code != SQLITE_OK) return database->Error(code);
  sqlite3_extended_result_codes(opened, 1);
  sqlite3_busy_timeout(opened, kBusyTimeoutMs);
  return database;
}

Database::~Database() {
  for (const auto& [sql, statement] : statements_) sqlite3_finalize(statement);
  sqlite3_close(database_);
}

absl::Status Database::Damaged(const std::string& what) const {
  return absl::DataLossError(absl::StrCat(
      path_, ": ", what,
      "; restore the whole state directory from a backup and start once with --new_lineage, or move it away and start "
      "with --rebuild_from_sites"));
}

absl::Status Database::Error(int code) const {
  const std::string message = sqlite3_errmsg(database_);
  switch (code & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB: return Damaged(message);
    case SQLITE_FULL: return absl::ResourceExhaustedError(absl::StrCat(path_, ": ", message));
    case SQLITE_CANTOPEN:
    case SQLITE_READONLY:
    case SQLITE_PERM: return absl::PermissionDeniedError(absl::StrCat(path_, ": ", message));
    default: break;
  }
  const std::string limit = (code & 0xff) == SQLITE_IOERR ? formats::FileSizeLimit() : "";
  return absl::InternalError(absl::StrCat(path_, ": ", message, " (SQLite's code ", code, ")", limit));
}

absl::StatusOr<sqlite3_stmt*> Database::Prepare(std::string_view sql) {
  if (const auto found = statements_.find(sql); found != statements_.end()) return found->second;
  sqlite3_stmt* statement = nullptr;
  const int code = sqlite3_prepare_v3(database_, sql.data(), static_cast<int>(sql.size()), SQLITE_PREPARE_PERSISTENT,
                                      &statement, nullptr);
  if (code != SQLITE_OK) return Error(code);
  return statements_[std::string(sql)] = statement;
}

absl::Status Database::Run(std::string_view sql, std::initializer_list<SqlValue> values) {
  return Query(sql, values, [](const SqlRow&) { return absl::OkStatus(); });
}

absl::Status Database::Query(std::string_view sql, std::initializer_list<SqlValue> values,
                             const std::function<absl::Status(const SqlRow&)>& each) {
  ASSIGN_OR_RETURN(sqlite3_stmt* const statement, Prepare(sql));
  CHECK(sqlite3_bind_parameter_count(statement) == static_cast<int>(values.size()));
  int index = 0;
  for (const SqlValue& value : values) CHECK(Bind(statement, ++index, value) == SQLITE_OK);
  absl::Status status;
  int code = SQLITE_ROW;
  while (status.ok() && (code = sqlite3_step(statement)) == SQLITE_ROW) status = each(SqlRow(statement));
  if (status.ok() && code != SQLITE_DONE) status = Error(code);
  sqlite3_reset(statement);
  sqlite3_clear_bindings(statement);
  return status;
}

absl::Status Database::Script(const char* sql) {
  const int code = sqlite3_exec(database_, sql, nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? absl::OkStatus() : Error(code);
}

int64_t Database::changed_rows() const { return sqlite3_changes64(database_); }

absl::StatusOr<Transaction> Transaction::Begin(Database& database) {
  RETURN_IF_ERROR(database.Run("BEGIN IMMEDIATE"));
  return Transaction(&database);
}

Transaction::~Transaction() {
  if (database_ != nullptr) database_->Run("ROLLBACK").IgnoreError();  // SQLite may have done so itself
}

absl::Status Transaction::Commit() {
  RETURN_IF_ERROR(database_->Run("COMMIT"));
  database_ = nullptr;
  return absl::OkStatus();
}

}  // namespace causeway::server
