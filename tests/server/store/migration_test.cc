// A state directory of format 1, 2 or 3 is taken over by a process that is killed before, or in the midst of, each of
// its calls that change a file; the next start goes on from whatever that has left, with the rows and bytes of before.
#include <dlfcn.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "absl/strings/str_join.h"
#include "server/store/scrubber.h"
#include "tests/server/store/journal_for_test.h"

namespace causeway::server {
namespace {

constexpr int kKilled = 77;

// Calls until the process dies. 0: it does not.
int calls_left = 0;

bool IsLast() { return calls_left > 0 && --calls_left == 0; }

void DieIfLast() {
  if (IsLast()) ::_exit(kKilled);
}

template <typename Function>
Function Real(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

struct Recorded {
  std::string name;       // of a file in tests/golden
  std::string folder;     // in it
  std::string to_former;  // makes it older than any that was recorded
};

class Migration : public JournalTest, public testing::WithParamInterface<Recorded> {
 protected:
  Migration() {
    std::filesystem::create_directory(folder_ / "former");
    const std::string archive = absl::StrCat(CAUSEWAY_SOURCE_DIR, "/tests/golden/", GetParam().name, ".tar.xz");
    EXPECT_EQ(std::system(absl::StrCat("tar -xJf ", archive, " -C ", std::string(folder_ / "former"), " ",  // NOLINT
                                       GetParam().folder)
                              .c_str()),
              0);
    former_ = absl::StrCat(std::string(folder_ / "former"), "/", GetParam().folder);
    if (!GetParam().to_former.empty()) {
      const auto database = *Database::Open(former_ + "/journal.sqlite", Database::Mode::kReadWrite);
      EXPECT_TRUE(database->Script(GetParam().to_former.c_str()).ok());
    }
    std::filesystem::remove(former_ + "/lock");
  }

  // A copy of the former directory, in the place of the one before.
  void CopyFormer() const {
    std::filesystem::remove_all(options_.directory);
    std::filesystem::copy(former_, options_.directory, std::filesystem::copy_options::recursive);
  }

  // False: the start ended before that call.
  bool StartAndDieAt(int call) const {
    const pid_t child = ::fork();
    if (child == 0) {
      calls_left = call;
      const bool opened = Journal::Open(options_).ok();
      ::_exit(opened ? 0 : 1);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == kKilled)) << status;
    return WEXITSTATUS(status) == kKilled;
  }

  // Everything that rows say, but for how often the run was started.
  std::string Rows() const {
    const auto index = *Database::Open(IndexPath(options_.directory), Database::Mode::kReadOnly);
    const auto texts = [&](const std::string& sql) {
      std::vector<std::string> texts;
      const absl::Status status = index->Query(sql, {}, [&](const SqlRow& row) {
        texts.push_back(row.Text(0));
        return absl::OkStatus();
      });
      EXPECT_TRUE(status.ok()) << status;
      return texts;
    };
    std::string rows;
    for (const char* table : {"meta", "sites", "contributions", "rounds", "snapshots", "events"}) {
      std::vector<std::string> columns;
      for (const std::string& column :
           texts(absl::StrCat("SELECT name FROM pragma_table_info('", table, "') ORDER BY name"))) {
        columns.push_back(absl::StrCat("'", column, "=' || quote(", column, ")"));
      }
      absl::StrAppend(&rows, table, "\n  ",
                      absl::StrJoin(texts(absl::StrCat("SELECT ", absl::StrJoin(columns, " || ' ' || "), " FROM ",
                                                       table, " ORDER BY 1")),
                                    "\n  "),
                      "\n");
    }
    const size_t epoch = rows.find("key='epoch'");
    return rows.erase(epoch, rows.find('\n', epoch) - epoch);
  }

  // Opens the directory, and reads all that its rows name, and writes; the rows before.
  std::string GoOn() {
    const auto journal = Open();
    if (journal == nullptr) return "";
    const StoredRun stored = Load(*journal);
    EXPECT_TRUE(stored.rounds.seeded);
    for (const StoredFragment& fragment : stored.fragments) {
      for (const StoredRound& round : fragment.to_replay) {
        for (const StoredContribution& contribution : round.contributions) Payload(*journal, contribution.extent);
      }
    }
    for (size_t p = 0; p < stored.fragments.size(); ++p) {
      EXPECT_TRUE(journal->LoadSnapshot(static_cast<core::FragmentId>(p), stored.fragments[p].snapshot).ok());
    }
    Scrubber scrubber({.state_dir = options_.directory,
                       .bytes_per_s = 1 << 30,
                       .durable = [&] { return (*StateLog::Read(options_.directory))->end.sequence; },
                       .found = [](const DiskDamage& damage) { ADD_FAILURE() << damage.Text(); },
                       .wait_until = [](core::Clock::TimePoint) { return true; }});
    EXPECT_TRUE(scrubber.Pass().ok());
    const std::string rows = Rows();
    journal->Commit({.admitted = {Contribution(0, "late", 1000)}});
    journal->Flush();
    EXPECT_TRUE(journal->status().ok()) << journal->status();
    return rows;
  }

  std::string former_;
};

TEST_P(Migration, KilledAtAnyCallGoesOnWithTheSameRowsAndBytes) {
  CopyFormer();
  const std::string expected = GoOn();
  ASSERT_GT(expected.size(), 1000u);
  int calls = 0;
  do {
    CopyFormer();
    if (!StartAndDieAt(++calls)) break;
    EXPECT_EQ(GoOn(), expected) << "killed at call " << calls;
  } while (!HasFailure());
  EXPECT_GT(calls, 40);
  RecordProperty("calls", calls);
}

INSTANTIATE_TEST_SUITE_P(Formats, Migration,
                         testing::Values(Recorded{"session-0.1.0-format2", "after",
                                                  "ALTER TABLE sites DROP COLUMN stay; PRAGMA user_version = 1"},
                                         Recorded{"session-0.1.0-format2", "after", ""},
                                         Recorded{"session-0.1.0-format3", "after", ""},
                                         Recorded{"checkpoint-0.1.0-format3", "state", ""}));

}  // namespace
}  // namespace causeway::server

using namespace causeway::server;  // NOLINT(google-build-using-namespace): what follows has C's names

// The C library's calls that change files, in its place, for SQLite, too.
#pragma GCC visibility push(default)
extern "C" {

ssize_t write(int fd, const void* bytes, size_t size) {
  static const auto real = Real<ssize_t (*)(int, const void*, size_t)>("write");
  if (!IsLast()) return real(fd, bytes, size);
  real(fd, bytes, size / 2);
  ::_exit(kKilled);
}

ssize_t pwrite64(int fd, const void* bytes, size_t size, off64_t offset) {
  static const auto real = Real<ssize_t (*)(int, const void*, size_t, off64_t)>("pwrite64");
  if (!IsLast()) return real(fd, bytes, size, offset);
  real(fd, bytes, size / 2, offset);
  ::_exit(kKilled);
}
ssize_t pwrite(int fd, const void* bytes, size_t size, off_t offset) { return pwrite64(fd, bytes, size, offset); }

int fsync(int fd) {
  static const auto real = Real<int (*)(int)>("fsync");
  DieIfLast();
  return real(fd);
}
int fdatasync(int fd) {
  static const auto real = Real<int (*)(int)>("fdatasync");
  DieIfLast();
  return real(fd);
}

int rename(const char* from, const char* to) {
  static const auto real = Real<int (*)(const char*, const char*)>("rename");
  DieIfLast();
  return real(from, to);
}

int unlink(const char* path) {
  static const auto real = Real<int (*)(const char*)>("unlink");
  DieIfLast();
  return real(path);
}

int remove(const char* path) {
  static const auto real = Real<int (*)(const char*)>("remove");
  DieIfLast();
  return real(path);
}

}  // extern "C"
#pragma GCC visibility pop
