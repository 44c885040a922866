// The rows of the journal's tables (schema.h), with one function for each thing written, inside a transaction of the
// caller. INTERNAL for a request that only a bug of the coordinator can cause, DATA_LOSS for digests that differ.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/store/records.h"
#include "server/store/sqlite.h"

namespace causeway::server {

// The number of events of kind "command", which are not pruned with the others: each takes some 300 bytes.
inline constexpr int64_t kMaxCommands = 100'000;

absl::StatusOr<std::optional<std::string>> ReadMeta(Database& database, std::string_view key);
absl::Status WriteMeta(Database& database, std::string_view key, SqlValue value);

absl::StatusOr<uint64_t> DigestFrom(const Database& database, const std::string& text);  // parses 16 hexadecimal digits

// The numbers of a list in their memory representation.
template <typename Number>
std::string ToBlob(const std::vector<Number>& numbers) {
  return std::string(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number));
}
template <typename Number>
std::vector<Number> FromBlob(const std::string& blob) {
  std::vector<Number> numbers(blob.size() / sizeof(Number));
  if (!numbers.empty()) std::memcpy(numbers.data(), blob.data(), numbers.size() * sizeof(Number));
  return numbers;
}

// Reads an extent from four columns, `first` and those after it: segment, offset, lengths and digests of chunks.
Extent ExtentFrom(const SqlRow& row, int first);

// The part of a round's row that describes its merge.
struct MergedRow {
  std::optional<uint64_t> digest;
  Extent update;
};
absl::StatusOr<std::optional<MergedRow>> ReadMerged(Database& database, core::FragmentId fragment,
                                                    core::Version version);

absl::Status WriteContribution(Database& database, const ContributionRecord& contribution, const Extent& extent);
absl::Status WriteRound(Database& database, const RoundRecord& round, int64_t unix_ms);
absl::Status WriteMerged(Database& database, const MergedRecord& merged, const Extent& update);
// Forgets the updates of the rounds that match: no site can fetch them any more. The rounds stay in the history.
absl::Status LetUpdatesGo(Database& database, std::string_view condition, std::initializer_list<SqlValue> values = {});
absl::Status WriteEvalLoss(Database& database, const EvalLoss& loss);
absl::Status WriteData(Database& database, const core::DataOfSites& data);
absl::Status WriteRun(Database& database, const RunRecord& run);
absl::Status WriteModel(Database& database, const ModelRecord& model);
absl::Status WriteSettings(Database& database, const core::SettingsChain& settings);  // appends to those that are there
// A snapshot whose file exists.
struct SnapshotRow {
  core::FragmentId fragment = 0;
  core::Version version = 0;
  uint64_t digest = 0;  // the anchor's digest
  uint64_t hash = 0;    // the file's hash
  int64_t run_tokens = 0;
};
absl::Status WriteSnapshotRow(Database& database, const SnapshotRow& snapshot);
absl::StatusOr<std::vector<SnapshotRow>> ReadSnapshotRows(Database& database,
                                                          core::FragmentId fragment);  // oldest first

// The history. Drops its oldest events: at most kMaxHistoryEvents and core::kMaxHistoryBytes are kept, and kMaxCommands
// of the commands, which are pruned separately.
class EventRows {
 public:
  absl::Status Write(Database& database, const Event& event, int64_t unix_ms);

 private:
  absl::Status Forget(Database& database, std::string_view condition, std::initializer_list<SqlValue> values);

  std::optional<int64_t> bytes_;  // of all events but commands; nullopt: not yet counted in this life
};

// The sites and flags of the rules. Remembers the written rows, so that only changed ones are written again.
class RulesRows {
 public:
  absl::Status Write(Database& database, const core::RoundState& state);

 private:
  bool known_ = false;        // false: nothing was written in this life, and earlier lives' rows are replaced
  core::RoundState written_;  // without versions and contributions
};

}  // namespace causeway::server
