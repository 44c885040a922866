// The log of a run of two lives, and what a start finds in it.
#pragma once

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "tests/server/store/journal_for_test.h"

namespace causeway::server {

class StateLogTest : public JournalTest {
 protected:
  // Two lives of two rounds each, ended by their destructors; `events` of each, to have records.
  StateLogTest() {
    for (core::Version base = 0; base < 4; base += 2) {
      const auto journal = Open();
      if (base == 0) Seed(*journal, 1);
      PlayRound(*journal, 0, base);
      PlayRound(*journal, 0, base + 1);
    }
  }

  std::string At(const std::string& name) const { return options_.directory + "/" + name; }
  // The records, without the zeros that lie ahead of the next one.
  static std::string RecordsIn(const std::string& path) {
    const auto contents = ReadLogFile(path, std::nullopt);
    EXPECT_TRUE(contents.ok()) << contents.status();
    return ReadAll(path).substr(0, contents.ok() ? static_cast<size_t>(contents->end) : 0);
  }
  std::vector<std::string> Logs() const { return FilesIn(At("log")); }
  absl::Status ReadStatus() const { return StateLog::Read(options_.directory).status(); }
  StateLog::Found Found() const {
    auto found = StateLog::Read(options_.directory);
    EXPECT_TRUE(found.ok()) << found.status();
    return found.ok() && *found ? **found : StateLog::Found();
  }
  static void Write(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }
  // The bytes of records that follow `end`, of that many bytes each.
  std::string RecordsAfter(const LogMark& end, const std::vector<size_t>& sizes) const {
    const std::string path = folder_ / "next.log";
    std::filesystem::remove(path);
    auto file = LogFile::Create(path, end, 2);
    EXPECT_TRUE(file.ok()) << file.status();
    for (const size_t size : sizes) EXPECT_TRUE(file->Append(RecordKind::kRows, std::string(size, 'r')).ok());
    return RecordsIn(path);
  }
  std::string Message() const {
    const absl::Status status = ReadStatus();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    return std::string(status.message());
  }
};

}  // namespace causeway::server
