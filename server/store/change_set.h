// The row changes of commits, as bytes: patch sets of SQLite's session extension, in its documented, stable format.
// REQUIRES: tables with primary keys.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/store/sqlite.h"

struct sqlite3_session;

namespace causeway::server {

// Collects the changes made through its connection since its creation. Move-only; not thread-safe.
class ChangeRecorder {
 public:
  // `schema` is SQLite's name of an attached database.
  static absl::StatusOr<ChangeRecorder> Begin(Database& database, const char* schema = "main");

  ChangeRecorder(ChangeRecorder&& other) noexcept : session_(std::exchange(other.session_, nullptr)) {}
  ChangeRecorder& operator=(ChangeRecorder&&) = delete;
  ~ChangeRecorder();

  // Adds the changes that lead from the table of the same name in `from_schema` to this one.
  absl::Status AddDifference(const char* from_schema, const std::string& table) const;

  absl::StatusOr<std::string> Changes() const;  // the changes so far; empty: none

 private:
  explicit ChangeRecorder(sqlite3_session* session) : session_(session) {}
  sqlite3_session* session_;
};

// All rows of the database file, as changes that fill empty tables.
absl::StatusOr<std::string> AllRows(const std::string& path, const char* create_tables);

// DATA_LOSS if a change does not fit the rows, which then stay as they were.
absl::Status Apply(Database& database, std::string_view changes);

}  // namespace causeway::server
