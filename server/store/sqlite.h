// The journal's interface to SQLite: statements with values in, rows out, errors as Status.
//
// Errors name the file: DATA_LOSS for a file that is damaged or no database, RESOURCE_EXHAUSTED for a full disk,
// INTERNAL for the rest (including a duplicate key). A connection is used by one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

struct sqlite3;
struct sqlite3_stmt;

namespace causeway::server {

struct Blob {
  std::string_view bytes;
};

using SqlValue = std::variant<std::monostate, int64_t, double, std::string_view, Blob>;  // monostate: NULL

// The current row of a query; columns count from 0. Valid inside the callback only.
class SqlRow {
 public:
  explicit SqlRow(sqlite3_stmt* statement) : statement_(statement) {}

  bool IsNull(int column) const;
  int64_t Integer(int column) const;
  double Real(int column) const;
  std::string Text(int column) const;  // of a text or a blob

 private:
  sqlite3_stmt* statement_;
};

class Database {
 public:
  enum class Mode { kReadOnly, kReadWrite };

  // Opens the file, creating it if necessary and allowed.
  static absl::StatusOr<std::unique_ptr<Database>> Open(const std::string& path, Mode mode);
  ~Database();

  const std::string& path() const { return path_; }

  // Runs one statement with a ? for each value. Statements are prepared once and kept.
  absl::Status Run(std::string_view sql, std::initializer_list<SqlValue> values = {});
  // The same for a statement that returns rows; ends with the first error of `each`.
  absl::Status Query(std::string_view sql, std::initializer_list<SqlValue> values,
                     const std::function<absl::Status(const SqlRow&)>& each);
  absl::Status Script(const char* sql);  // several statements without values

  int64_t changed_rows() const;  // by the last Run
  sqlite3* handle() const { return database_; }
  // DATA_LOSS with advice on what to do.
  absl::Status Damaged(const std::string& what) const;

 private:
  Database(std::string path, sqlite3* database) : path_(std::move(path)), database_(database) {}
  absl::StatusOr<sqlite3_stmt*> Prepare(std::string_view sql);
  absl::Status Error(int code) const;

  const std::string path_;
  sqlite3* const database_;
  std::map<std::string, sqlite3_stmt*, std::less<>> statements_;
};

// Undoes everything written since it began, unless Commit succeeded.
class Transaction {
 public:
  static absl::StatusOr<Transaction> Begin(Database& database);
  Transaction(Transaction&& other) noexcept : database_(std::exchange(other.database_, nullptr)) {}
  Transaction& operator=(Transaction&&) = delete;
  ~Transaction();

  absl::Status Commit();  // durable when it returns OK

 private:
  explicit Transaction(Database* database) : database_(database) {}
  Database* database_;
};

}  // namespace causeway::server
